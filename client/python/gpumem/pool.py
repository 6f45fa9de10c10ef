# SPDX-License-Identifier: Apache-2.0
"""Pools: blocks cut from leased segments, without a call to the daemon."""
from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence, Tuple, Union

from . import _gpumem
from ._units import BACKENDS, KINDS, DeviceLike, to_device, to_kind, to_limit, to_ms
from ._dtypes import parse
from ._waiting import CancelToken, call, call_without_token
from .arrays import Array, Place, Placed, Shape, to_shape
from .errors import InvalidArgumentError, NotFoundError
from .segment import Block

if TYPE_CHECKING:
    from .client import Client

# Reuse policies for memory that was freed on another stream (enum gpumem_reuse).
REUSE = {"same_stream": 1, "follow_event_dependencies": 2, "allow_opportunistic": 4,
         "allow_internal_dependencies": 8}
_MAX_DEVICES = 256  # of default pools


@dataclass(frozen=True)
class PoolStats:
    """Counters in bytes, but for counts; see PoolStats of pool.h."""

    reserved_bytes: int  # in leased segments
    used_bytes: int
    free_bytes: int  # the difference
    used_blocks: int
    free_blocks: int
    segments: int
    reserved_peak_bytes: int  # since reset_peaks()
    used_peak_bytes: int
    allocations: int  # these and what follows: since the pool was made
    frees: int
    growths: int
    reused_after_event: int
    dependencies: int
    out_of_memory: int
    given_under_pressure_bytes: int
    moves: int


def _to_reuse(policies: Optional[Sequence[str]]) -> int:
    if policies is None:
        return 0
    number = REUSE["same_stream"]
    for policy in policies:
        if policy not in REUSE:
            raise InvalidArgumentError(
                f"unknown reuse policy {policy!r}: use {', '.join(REUSE)}")
        number |= REUSE[policy]
    return number


class Pool(Placed):
    """An allocator of blocks in memory that a client leases, of one device and kind.

    device, kind: as of Client.acquire(). limit: the most that it leases, in bytes. grow: the least
    that it leases at once (8 MiB). release_threshold: the free bytes that it keeps, above which it
    gives memory back; None: keeps all. wait: seconds that allocate() waits if no memory is left;
    Ctrl-C ends the wait, except with per_thread_default_stream. reuse: which memory freed on
    another stream may be reused ("same_stream", "follow_event_dependencies", "allow_opportunistic",
    "allow_internal_dependencies"); None: all. Any thread may use it. Streams are cudaStream_t as
    numbers; on the host backend mere names. map_devices: the devices whose GPUs will use the
    memory; empty: the pool's.

    Raises NotFoundError, UnimplementedError, InvalidArgumentError, UnavailableError.
    """

    def __init__(self, client: "Client", *, device: DeviceLike = None, kind: Optional[str] = None,
                 limit: Optional[int] = None, grow: int = 0,
                 release_threshold: Optional[int] = None, wait: float = 0,
                 reuse: Optional[Sequence[str]] = None, per_thread_default_stream: bool = False,
                 thread_caches: bool = True, gives_under_pressure: bool = True,
                 revocable: bool = False, map_devices: Sequence[str] = ()) -> None:
        handle = _gpumem.pool_create(
            client.handle, to_device(device), to_kind(kind), _to_reuse(reuse),
            per_thread_default_stream, not thread_caches, limit or 0, release_threshold or 0, grow,
            to_ms(wait), not gives_under_pressure, revocable, map_devices)
        if release_threshold == 0:
            _gpumem.pool_set_release_threshold(handle, 0)
        # Another thread would have another default stream.
        self._adopt(handle, waits=wait > 0 and not per_thread_default_stream)

    def _adopt(self, handle: _gpumem.Handle, waits: bool) -> None:
        self._handle = handle
        self._waits = waits
        device, kind, backend, _, self._address = _gpumem.pool_info(handle)
        self.place = Place(device, BACKENDS[backend], KINDS[kind])

    @classmethod
    def default(cls, device: int = 0) -> "Pool":
        """Returns the process's pool for a device, by its ordinal: the one that gpumem's allocators
        for frameworks use. The environment configures it (GPUMEM_POOL_… of gpumem.h). It never
        ends."""
        pool = cls.__new__(cls)
        pool._adopt(_gpumem.pool_default(device), waits=False)
        return pool

    @classmethod
    def defaults(cls) -> Dict[int, "Pool"]:
        """Returns the default pools that this process has, by the ordinals of their devices. Makes
        none."""
        found = {}
        for device in range(_MAX_DEVICES):
            with contextlib.suppress(NotFoundError):
                pool = cls.__new__(cls)
                pool._adopt(_gpumem.pool_find_default(device), waits=False)
                found[device] = pool
        return found

    @property
    def handle(self) -> _gpumem.Handle:
        """For other parts of the package."""
        return self._handle

    @property
    def c_pool(self) -> int:
        """Returns the address of its gpumem_pool, for functions in C that take one
        (gpumem_cupy_malloc). It is valid until this object is closed."""
        return self._address

    # ---- Blocks

    def allocate(self, nbytes: int, stream: int = 0) -> Block:
        """Allocates a block for work on `stream`.

        Raises InvalidArgumentError: zero bytes; ResourceExhaustedError with its `denial`;
        FailedPreconditionError: the stream is being captured into a graph; UnavailableError: the
        pool would have to grow, and the daemon is gone.
        """
        handle, pointer, size = self._allocate(nbytes, stream)
        return Block(handle, pointer, size, self.place, pool=self)

    def _allocate(self, nbytes: int, stream: int) -> Tuple[_gpumem.Handle, int, int]:
        block = _gpumem.pool_try_allocate(self._handle, nbytes, stream)
        if block is not None:
            return block
        if not self._waits or self.stats().free_bytes >= nbytes:
            return _gpumem.pool_allocate(self._handle, nbytes, stream)
        # It must grow, and may wait: in another thread, so that Ctrl-C works.
        return call_without_token(lambda: _gpumem.pool_allocate(self._handle, nbytes, stream))

    def empty(self, shape: Shape, dtype: Any = "float32", stream: int = 0) -> Array:
        """Returns an array in a new block."""
        nbytes = parse(dtype).itemsize
        sizes = to_shape(shape, nbytes)
        for size in sizes:
            nbytes *= size
        if nbytes == 0:
            return Array(None, 0, sizes, dtype, place=self.place)
        return self.allocate(nbytes, stream).array(sizes, dtype, stream=stream)

    def find(self, pointer: int) -> Tuple[int, int]:
        """Returns (address, bytes) of the block that begins there. Raises NotFoundError."""
        return _gpumem.pool_find(self._handle, pointer)

    def stream_waits(self, waiting: int, awaited: int) -> None:
        """States that later work on `waiting` comes after the work submitted to `awaited`."""
        _gpumem.pool_stream_waits(self._handle, waiting, awaited)

    def forget_stream(self, stream: int) -> None:
        """Forgets a stream. Call it before the stream is destroyed."""
        _gpumem.pool_forget_stream(self._handle, stream)

    # ---- Suspending

    @property
    def suspended(self) -> bool:
        """True from the beginning of suspend() to the end of the resume() that succeeds."""
        return _gpumem.pool_is_suspended(self._handle)

    def suspend(self, *, quiesce: Optional[Callable[[], object]] = None,
                timeout: Optional[float] = None) -> None:
        """Moves the contents of all blocks to the daemon's host tier, or changes nothing. Their
        device memory is free for others. Free memory of the pool is given back, not moved. Blocks
        and arrays stay as they are, but must not be used until resume(). Meanwhile allocate() raises
        FailedPreconditionError, and freeing a block takes effect: its contents do not come back.

        quiesce: stops this process's use of the memory. It is called once the daemon has reserved
        the room, and what it raises is raised here; then nothing changes. None: on a GPU the call
        waits for the work that this process has submitted, and other threads must not submit more.
        timeout: seconds for each answer of the daemon; None: the client's, and one for each GiB.

        Raises ResourceExhaustedError with its `denial`: the tier has no room, or not for this
        tenant. Raises FailedPreconditionError: the pool is suspended already or revocable, or there
        is no host tier. Raises UnimplementedError: a pool of another kind than vmm.
        """
        _gpumem.pool_suspend(self._handle, quiesce, to_ms(timeout))

    def resume(self, *, wait: float = 0, timeout: Optional[float] = None,
               cancel: Optional[CancelToken] = None) -> None:
        """Brings the pool back: the same bytes at the same addresses, so that all arrays, tensors
        and captured graphs of its blocks are valid again. wait: seconds to wait for memory that
        others hold; Ctrl-C and `cancel` end the wait. After any error the pool stays suspended.

        Raises ResourceExhaustedError with its `denial` if a quota or the device refuses it, also
        after the wait; FailedPreconditionError: it is not suspended, or its memory is lost;
        CancelledError.
        """
        def work(token: Optional[CancelToken]) -> None:
            _gpumem.pool_resume(self._handle, to_ms(wait), to_ms(timeout),
                                None if token is None else token.handle)

        if wait == 0:
            work(cancel)
        else:
            call(work, cancel)

    # ---- Usage

    def stats(self) -> PoolStats:
        """Returns the present counters."""
        return PoolStats(*_gpumem.pool_stats(self._handle))

    def reset_peaks(self) -> None:
        """Restarts the peaks from the present values."""
        _gpumem.pool_reset_peaks(self._handle)

    def mem_info(self) -> Tuple[int, int]:
        """Returns (free, total) bytes, as cudaMemGetInfo, by the tenant's quota."""
        return _gpumem.pool_mem_info(self._handle)

    def trim(self, keep: int = 0) -> int:
        """Gives whole free segments back, but keeps `keep` bytes; returns the bytes given back.
        Does not wait for GPU work."""
        return _gpumem.pool_trim(self._handle, keep)

    def free_all_blocks(self, stream: Optional[int] = None) -> int:
        """Waits for the work of the streams that have freed blocks (or of one), gives back all free
        memory, and returns the bytes given back."""
        return _gpumem.pool_free_all_blocks(self._handle, stream)

    @property
    def limit(self) -> Optional[int]:
        """The most that it leases, in bytes; None: no limit. Can also be set to a fraction (a float
        up to 1.0) of the tenant's limit on the device."""
        return to_limit(_gpumem.pool_info(self._handle)[3])

    @limit.setter
    def limit(self, limit: Union[int, float, None]) -> None:
        if isinstance(limit, float):
            _gpumem.pool_set_limit_fraction(self._handle, limit)
        else:
            _gpumem.pool_set_limit(self._handle, (1 << 64) - 1 if limit is None else limit)

    def set_release_threshold(self, nbytes: int) -> None:
        """Sets the free bytes above which a free gives segments back; 0: all, at once."""
        _gpumem.pool_set_release_threshold(self._handle, nbytes)

    def set_gives_under_pressure(self, gives: bool) -> None:
        """Sets whether it gives back free memory when others are denied memory."""
        _gpumem.pool_set_gives_under_pressure(self._handle, gives)

    def set_reuse(self, policies: Optional[Sequence[str]]) -> None:
        """Sets the pool's `reuse`."""
        _gpumem.pool_set_reuse(self._handle, _to_reuse(policies))

    @property
    def closed(self) -> bool:
        """True if it was closed."""
        return self._handle.closed

    def close(self, defer: bool = False) -> None:
        """Gives back all of its memory. While blocks are in use, raises FailedPreconditionError;
        with `defer`, as at the end of a `with` block, the last of them completes it instead. For a
        default pool, drops only this reference."""
        self._handle.close(defer)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close(True)

    def __repr__(self) -> str:
        return f"<gpumem.Pool, {self.kind}, on {self.device}{', closed' if self.closed else ''}>"
