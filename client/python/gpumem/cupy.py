# SPDX-License-Identifier: Apache-2.0
"""CuPy on brokered memory.

    import cupy, gpumem.cupy
    pool = gpumem.cupy.use()            # every new array of the process lies in brokered memory
    x = cupy.ones((1024, 1024))
    pool.used_bytes()
    with gpumem.cupy.using(gpumem.connect().pool(limit=1 << 30)):
        y = cupy.ones(10)               # and these, of this thread, in a pool of their own

The functions that CuPy calls for each array are in C (extension/cupy_blocks.cc behind
cupy.cuda.CFunctionAllocator). A block is for work on CuPy's current stream at the time when the
array is made. It is freed on that stream, as with CuPy's own pool: wait for the work of other
streams that use the memory first.

After use(), cupy.get_default_memory_pool() returns the pool of gpumem, so its figures and limit are
true: call use() before a program asks CuPy for its pool. CUPY_GPU_MEMORY_LIMIT is honoured for
pools without a limit. cupy.cuda.Device.mem_info answers the device; mem_info() answers the quota.

Streams on which arrays were made are kept until no memory of theirs is left, so that none is
destroyed before. Streams of other libraries (cupy.cuda.ExternalStream) must outlive the arrays made
on them; their owner has to keep them. Before such a stream is destroyed, call
pool.pool.forget_stream(stream.ptr). PyTorch's streams live for ever.

A stream that is being captured into a graph gets no new memory: make arrays before. Frees are
deferred until the capture ends.

Memory hooks (cupy.cuda.MemoryHook) are called: malloc and free for every array, and alloc, after
the fact, for those that made the pool lease more. While a hook is in force Python runs on the path.

`use(cupy_pool=True)` puts CuPy's own MemoryPool on top, which keeps free memory until its
free_all_blocks().
"""
from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from typing import Any, Callable, Iterator, List, Optional, Tuple

import cupy  # type: ignore[import]
from cupy.cuda import memory as _memory  # type: ignore[import]
from cupy.cuda import memory_hook as _memory_hook

from . import _cuda, _cupy_defaults, _gpumem, default_client
from ._asked import serve
from ._cupy_streams import Streams, stream_question
from ._turns import before_suspending, offer, resume, running, suspend, suspended
from ._units import UNLIMITED
from .arrays import asarray
from .errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError
from .pool import Pool, PoolStats
from .segment import Layout, Ticket

__all__ = ["MemoryPool", "PinnedMemoryPool", "mem_info", "resume", "running", "serve", "share",
           "suspend", "suspended", "unuse", "use", "using"]


def _device_of(pool: Pool) -> int:
    return _cuda.ordinal_of(pool.device) if pool.backend == "cuda" else 0


def _pool_of_current_device() -> Pool:
    return Pool.default(cupy.cuda.runtime.getDevice())


def _always(pool: Optional[Pool]) -> Callable[[], Pool]:
    """Returns a function that returns the pool; None: the pool of the device that is then current.
    """
    if pool is None:
        return _pool_of_current_device
    chosen = offer(pool)
    return lambda: chosen


def _with_hooks(pool_of: Callable[[], Pool], size: int, malloc: Callable[[int], Any]) -> Any:
    """Called by the extension for an allocation while a hook is in force."""
    hooks = list(_memory_hook.get_memory_hooks().values())
    device = cupy.cuda.runtime.getDevice()
    for hook in hooks:
        hook.malloc_preprocess(device_id=device, size=size, mem_size=size)
    made = None
    try:
        made = _with_hooks_of_growth(hooks, device, pool_of(), size, malloc)
    finally:
        pointer = 0 if made is None else made.ptr
        for hook in hooks:
            hook.malloc_postprocess(device_id=device, size=size, mem_size=size, mem_ptr=pointer,
                                    pmem_id=pointer)
    return made


def _with_hooks_of_growth(hooks: List[Any], device: int, pool: Pool, size: int,
                          malloc: Callable[[int], Any]) -> Any:
    """Allocates, and calls the hooks for an allocation that made the pool lease more, or failed."""
    before = pool.stats()
    made = None
    try:
        made = malloc(size)
    finally:
        after = pool.stats()
        if after.growths > before.growths or made is None:
            more = max(after.reserved_bytes - before.reserved_bytes, 0)
            for hook in hooks:
                hook.alloc_preprocess(device_id=device, mem_size=more)
            for hook in hooks:
                hook.alloc_postprocess(device_id=device, mem_size=more,
                                       mem_ptr=0 if made is None else made.ptr)
    return made


class _Counts:
    """The counters of both pools under CuPy's names, from their gpumem.Pool. Bytes."""

    pool: Any

    def stats(self) -> PoolStats:
        """Returns all counters of the pool."""
        pool: Pool = self.pool
        return pool.stats()

    def used_bytes(self) -> int:
        """Returns the bytes in use."""
        return self.stats().used_bytes

    def free_bytes(self) -> int:
        """Returns the bytes leased and not in use."""
        return self.stats().free_bytes

    def total_bytes(self) -> int:
        """Returns the bytes leased from the daemon."""
        return self.stats().reserved_bytes

    def n_free_blocks(self) -> int:
        """Returns the number of pieces of free_bytes()."""
        return self.stats().free_blocks


class MemoryPool(_Counts):
    """A gpumem.Pool with the interface of cupy.cuda.MemoryPool: `malloc` is an allocator for
    cupy.cuda.set_allocator.

    pool: of the device that is CuPy's current one whenever it is used; None: the default pool of
    the current device (gpumem.Pool.default, configured by GPUMEM_POOL_… of gpumem.h). Sizes are
    bytes. Any thread may use it.
    """

    malloc: Callable[[int], Any]

    def __init__(self, pool: Optional[Pool] = None) -> None:
        _cupy_defaults.honour_limit(pool)
        self.given = pool  # None: the default pools
        self._pool_of = _always(pool)
        # The state must not refer to this object: the garbage collector cannot see it.
        state, param, malloc, free = _gpumem.cupy_state(
            None if pool is None else pool.handle, 0 if pool is None else _device_of(pool),
            stream_question(), _memory_hook.get_memory_hooks,
            functools.partial(_refuse, self._pool_of), Streams(pool),
            functools.partial(_with_hooks, self._pool_of), _on_free)
        self.malloc = _gpumem.cupy_allocator(
            state, cupy.cuda.CFunctionAllocator(param, malloc, free, None).malloc)

    @property
    def pool(self) -> Pool:
        """The gpumem.Pool; if none was given, that of the current device."""
        return self._pool_of()

    # ---- As cupy.cuda.MemoryPool

    def free_all_blocks(self, stream: Any = None) -> None:
        """Gives free memory back to the daemon, once the work of the streams that freed it (or of
        one) is done."""
        self.pool.free_all_blocks(None if stream is None else int(stream.ptr))

    def free_all_free(self) -> None:
        """The old name of free_all_blocks()."""
        self.free_all_blocks()

    def set_limit(self, size: Optional[float] = None, fraction: Optional[float] = None) -> None:
        """Sets the most that it leases: bytes, or a fraction of the tenant's limit on the device.
        Neither, or 0: no limit but the tenant's. Raises ValueError."""
        if size is not None and fraction is not None:
            raise ValueError("pass either size or fraction, not both")
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"invalid fraction {fraction}: it must be from 0 to 1")
        if size is not None and size < 0:
            raise ValueError(f"invalid limit {size}: it must be a number of bytes from 0")
        if fraction:
            _gpumem.pool_set_limit_fraction(self.pool.handle, fraction)
        else:
            _gpumem.pool_set_limit(self.pool.handle, int(size or 0) or UNLIMITED)

    def get_limit(self) -> int:
        """Returns the limit in bytes; 0: none."""
        return self.pool.limit or 0

    def __repr__(self) -> str:
        return f"<gpumem.cupy.MemoryPool over {self.given or 'the default pools'}>"


def _is_for_want_of_memory(pool_of: Callable[[], Pool], size: int, error: Exception) -> bool:
    if isinstance(error, ResourceExhaustedError):
        return True
    # gpumem rejects more than the device's capacity as a wrong argument.
    return isinstance(error, InvalidArgumentError) and size > pool_of().mem_info()[1]


def _refuse(pool_of: Callable[[], Pool], size: int, error: Exception, attempt: int) -> None:
    """Called by the extension on a refusal. Returns if another try is worthwhile, else raises."""
    if not _is_for_want_of_memory(pool_of, size, error):
        raise error
    if attempt == 1 and isinstance(error, ResourceExhaustedError):
        gc.collect()  # arrays in cycles
        return
    denial = getattr(error, "denial", None)  # none if the pool's limit refused it
    pool = pool_of()
    refused = _memory.OutOfMemoryError(
        size, pool.stats().reserved_bytes if denial is None else denial.used,
        (pool.limit or 0) if denial is None else denial.limit)
    refused.denial = denial
    raise refused from error


def _on_free(device: int, size: int, pointer: int, done: int) -> None:
    """Called by the extension while a hook is in force."""
    for hook in list(_memory_hook.get_memory_hooks().values()):
        told = hook.free_postprocess if done else hook.free_preprocess
        told(device_id=device, mem_size=size, mem_ptr=pointer, pmem_id=pointer)


# ---- CuPy's own pool on top ----------------------------------------------------------------------


def _base_allocator(pool: Optional[Pool]) -> Callable[[int], Any]:
    """Returns the allocator below CuPy's pool, which calls it seldom and knows streams itself. Its
    memory has no pending work. Freeing waits for the device, as cudaFree does: CuPy's pool relies
    on that."""
    pool_of = _always(pool)
    state, param, malloc, free = _gpumem.cupy_state(
        None if pool is None else pool.handle, 0 if pool is None else _device_of(pool), None,
        None, functools.partial(_refuse_base, pool_of), None, None, None)
    allocator: Callable[[int], Any] = _gpumem.cupy_allocator(
        state, cupy.cuda.CFunctionAllocator(param, malloc, free, None).malloc)
    return allocator


def _refuse_base(pool_of: Callable[[], Pool], size: int, error: Exception, _: int) -> None:
    """Called by the extension on a refusal. For want of memory, CuPy's pool gives back the memory
    that it keeps, tries again, and raises OutOfMemoryError in the end."""
    if not _is_for_want_of_memory(pool_of, size, error):
        raise error
    raise cupy.cuda.runtime.CUDARuntimeError(2) from error  # cudaErrorMemoryAllocation


# ---- Pinned memory -------------------------------------------------------------------------------


class _PinnedBlock:
    """The memory object that cupy.cuda.PinnedMemoryPointer takes."""

    def __init__(self, pool: Pool, size: int) -> None:
        self._block = pool.allocate(size) if size else None
        self.ptr = 0 if self._block is None else self._block.ptr
        self.size = size

    def __int__(self) -> int:
        return self.ptr


class PinnedMemoryPool(_Counts):
    """Brokered pinned memory with the interface of cupy.cuda.PinnedMemoryPool: `malloc` is an
    allocator for cupy.cuda.set_pinned_memory_allocator. CuPy holds each block until the copies that
    use it are done.

    pool: of kind pinned; None: a new one of the default client.
    """

    def __init__(self, pool: Optional[Pool] = None) -> None:
        self.pool = default_client().pool(kind="pinned") if pool is None else pool
        if not self.pool.place.on_host:
            raise InvalidArgumentError(
                f"PinnedMemoryPool needs a pool of kind pinned, not {self.pool.kind}")

    def malloc(self, size: int) -> Any:
        """Returns a cupy.cuda.PinnedMemoryPointer. Raises MemoryError."""
        return cupy.cuda.PinnedMemoryPointer(_PinnedBlock(self.pool, size), 0)

    def free_all_blocks(self) -> None:
        """Gives free memory back to the daemon."""
        self.pool.free_all_blocks()


# ---- Using them ----------------------------------------------------------------------------------

_default_pool: Optional[MemoryPool] = None
# By id(): an entry ends with its MemoryPool, which keeps the pool.
_of_pools: "weakref.WeakValueDictionary[int, MemoryPool]" = weakref.WeakValueDictionary()
_on_top: Any = None  # CuPy's MemoryPool that use() made last


def _shaped(pool: Any) -> Any:
    """Returns the MemoryPool of a gpumem.Pool, as long as one lives the same one. The default pools
    have one for the process."""
    global _default_pool  # pylint: disable=global-statement
    if pool is None:
        if _default_pool is None:
            _default_pool = MemoryPool()
        return _default_pool
    if not isinstance(pool, Pool):
        return pool
    made = _of_pools.get(id(pool))
    if made is None:
        made = _of_pools[id(pool)] = MemoryPool(pool)
    return made


def use(pool: Any = None, *, cupy_pool: bool = False, pinned: bool = False) -> Any:
    """Makes CuPy take all memory for arrays from gpumem. Returns the pool, which has CuPy's
    used_bytes(), set_limit() and so on.

    pool: a gpumem.Pool of CuPy's current device, or a MemoryPool; None: the default pools, one for
    each device. cupy_pool: with CuPy's own MemoryPool on top. pinned: CuPy's pinned memory, too.
    """
    global _on_top  # pylint: disable=global-statement
    if cupy_pool:
        given = pool.given if isinstance(pool, MemoryPool) else pool
        made = _on_top = cupy.cuda.MemoryPool(_base_allocator(given))
    else:
        made = _shaped(pool)
    _cupy_defaults.replace(made, PinnedMemoryPool() if pinned else None)
    return made


@contextlib.contextmanager
def using(pool: Any = None) -> Iterator[Any]:
    """Like use(), for the arrays that this thread makes in a `with` block. A program that enters it
    often passes a MemoryPool, which remembers streams from one block to the next."""
    made = _shaped(pool)
    with cupy.cuda.using_allocator(made.malloc):
        yield made


def unuse() -> None:
    """Makes CuPy use its default pools again. Existing arrays stay in their memory."""
    _cupy_defaults.restore()


def _free_cached() -> None:
    if _on_top is not None:
        _on_top.free_all_blocks()


before_suspending(_free_cached)


def mem_info(device: Optional[int] = None) -> Tuple[int, int]:
    """Returns (free, total) bytes of a device (None: the current one) by the tenant's quota."""
    return Pool.default(cupy.cuda.runtime.getDevice() if device is None else device).mem_info()


def share(array: Any, pool: Optional[Pool] = None) -> Ticket:
    """Returns the picklable ticket of an array that was made by use() or using(). It opens in other
    sessions of the tenant, for as long as this process holds the array: gpumem.open(ticket), and
    cupy.asarray() of that. Wait for the work that writes the array first.

    pool: the array's pool; None: the default pool of its device. Raises NotFoundError if the array
    is not in it: gpumem.publish() and gpumem.copy() take any.
    """
    found = asarray(array)
    source = Pool.default(array.device.id) if pool is None else pool
    start = int(array.data.mem.ptr)
    try:
        address, nbytes = source.find(start)
    except (NotFoundError, InvalidArgumentError) as error:
        raise NotFoundError("the array is not in that pool: share a copy, made with gpumem.copy(), "
                            "or publish the array with gpumem.publish()") from error
    layout = Layout(found.shape, found.dtype, found.strides, found.ptr - address, "cupy")
    return Ticket(_gpumem.pool_share(source.handle, address, nbytes), layout)
