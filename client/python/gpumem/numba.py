# SPDX-License-Identifier: Apache-2.0
"""Numba on brokered memory: an External Memory Management plugin.

    import gpumem.numba
    gpumem.numba.use()                  # before Numba's first use of the GPU
    from numba import cuda  # type: ignore[import]
    x = cuda.to_device(host_array)      # lies in gpumem's default pool

or, with no line of code, NUMBA_CUDA_MEMORY_MANAGER=gpumem.numba. The pool is the default pool of
the context's device, configured by GPUMEM_POOL_KIND, GPUMEM_POOL_LIMIT and so on (gpumem.h). Numba
passes no stream: blocks are allocated on the default stream, and freed once all work of the device
is done. As Numba's own manager does, the plugin defers frees, to do several at a time.

Pinned and mapped arrays lie in brokered memory of kind pinned, if the node has that kind. The
driver allocates write-combined ones, and pins the program's arrays for cuda.pinned().

Managed arrays (cuda.managed_array) are the driver's: processes cannot share managed memory, so the
daemon cannot own it, and no tenant is charged. GPUMEM_NUMBA_MANAGED, or use(managed=), says what
happens: "warn" (the default) warns once, "allow" does not, "refuse" raises CudaAPIError 801.

IPC arrays (DeviceNDArray.get_ipc_handle()): in a pool of kind ipc the handle is a real
cudaIpcMemHandle_t, with the block's offset, which any CUDA program opens. The driver makes these
for cudaMalloc alone. For other kinds it is a ticket of the same shape, which only gpumem opens.
"""
from __future__ import annotations

import ctypes
import importlib
import os
import warnings
import weakref
from typing import Any, Dict, List, Optional, Set, Tuple

from numba import cuda  # type: ignore[import]
from numba.cuda.cudadrv import driver as _driver  # type: ignore[import]

from . import _gpumem, connect, default_client
from ._asked import serve
from ._turns import before_suspending, offer, resume, running, suspend, suspended
from .client import Client
from .errors import (Error, FailedPreconditionError, InvalidArgumentError, NotFoundError,
                     ResourceExhaustedError, UnimplementedError)
from .pool import Pool
from .segment import Block

__all__ = ["MemoryManager", "TicketHandle", "resume", "running", "serve", "suspend", "suspended",
           "use"]

_OUT_OF_MEMORY, _NOT_SUPPORTED = 2, 801  # CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_SUPPORTED
_WITH_BINDING = bool(getattr(_driver, "USE_NV_BINDING", True))  # cuda-python's types, or ctypes'


def _binding() -> Any:
    """Returns cuda-python's driver module."""
    return importlib.import_module("cuda.bindings.driver")


def _device_pointer(address: int) -> Any:
    """Returns the pointer in the form that this version of Numba expects."""
    if not _WITH_BINDING:
        return _driver.drvapi.cu_device_ptr(address)
    return _binding().CUdeviceptr(address)


def _host_pointer(address: int) -> Any:
    return address if _WITH_BINDING else ctypes.c_void_p(address)


def _ipc_mem_handle(datum: bytes) -> Any:
    if not _WITH_BINDING:
        return _driver.drvapi.cu_ipc_mem_handle(*datum)
    handle = _binding().CUipcMemHandle()
    handle.reserved = datum
    return handle


def _out_of_memory(error: Error) -> Exception:
    made: Exception = _driver.CudaAPIError(_OUT_OF_MEMORY, str(error))
    made.__cause__ = error
    return made


_reset_devices: Set[int] = set()  # by their ordinals
_managers: "weakref.WeakSet[MemoryManager]" = weakref.WeakSet()


class MemoryManager(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """The plugin, one for each context: numba.cuda.set_memory_manager(MemoryManager)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._blocks: Dict[int, Block] = {}
        self._client: Optional[Client] = None  # of the pools, where they are the manager's own
        self._pool: Optional[Pool] = None
        self._pinned: Optional[Pool] = None
        _managers.add(self)

    @property
    def pool(self) -> Pool:
        """The gpumem.Pool of the context's device: its default pool. After a reset of the context,
        a new pool of the manager, of the same kind and limit."""
        if self._pool is None:
            device = self._ordinal()
            self._pool = Pool.default(device)
            if device in _reset_devices:
                self._pool = offer(self._own_client().pool(
                    device=self._pool.device, kind=self._pool.kind, limit=self._pool.limit))
        return self._pool

    @property
    def pinned_pool(self) -> Pool:
        """The pool of pinned and mapped arrays."""
        if self._pinned is None:
            self._pinned = self._own_client().pool(kind="pinned")
        return self._pinned

    def _own_client(self) -> Client:
        if self._client is None:
            self._client = connect()
        return self._client

    def initialize(self) -> None:
        """Called by Numba before the context is used, perhaps not for the first time."""
        if self.deallocations.memory_capacity == 0:
            self.deallocations.memory_capacity = self.get_memory_info().total

    def _allocate(self, pool: Pool, size: int) -> Block:
        """Allocates; flushes deferred frees if there is no room, as Numba's own manager does."""
        def allocate() -> Block:
            try:
                return pool.allocate(size)
            except ResourceExhaustedError as error:
                raise _out_of_memory(error) from error
            except InvalidArgumentError as error:
                if size <= pool.mem_info()[1]:
                    raise
                raise _out_of_memory(error) from error  # more than the device has
        block: Block = self._attempt_allocation(allocate)
        self._blocks[block.ptr] = block
        return block

    def _finalizer(self, block: Block, size: int, made: List[Any]) -> Any:
        """Returns the function that Numba calls when the memory has no references any more. It must
        not hold this object, nor the memory: `made` has a weak reference to the memory, if that is
        one of the allocations.

        The context may have been reset before, and the address may belong to another block by then.
        """
        blocks, deallocations, allocations = self._blocks, self.deallocations, self.allocations
        address = block.ptr

        def free_block(_: int) -> None:
            if blocks.get(address) is block:
                del blocks[address]
            if not block.closed:
                _gpumem.cuda_synchronize()
                block.free(0, defer=True)

        def finalizer() -> None:
            memory = made[0]() if made else None
            if memory is not None and allocations.get(address) is memory:
                del allocations[address]
            deallocations.add_item(free_block, address, size)
        return finalizer

    def _ordinal(self) -> int:
        device = self.context.device
        # For a context that is not Numba's it is the driver's own (CUdevice).
        return int(getattr(device, "id", device))

    def memalloc(self, size: int) -> Any:
        """Allocates device memory for the context."""
        # Numba also makes arrays of zero bytes, which a pool refuses.
        block = self._allocate(self.pool, max(size, 1))
        made: List[Any] = []
        memory = _driver.AutoFreePointer(
            weakref.proxy(self.context), _device_pointer(block.ptr), size,
            finalizer=self._finalizer(block, size, made))
        made.append(weakref.ref(memory))
        # Held here so that a reset of the context ends it despite other references.
        self.allocations[block.ptr] = memory
        return memory.own()

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False,
                     wc: bool = False) -> Any:
        """Allocates pinned memory, on request mapped. Write-combined memory is the driver's own."""
        if wc or size == 0:
            return super().memhostalloc(size, mapped, portable, wc)
        block = self._allocate(self.pinned_pool, size)
        context = weakref.proxy(self.context)
        made: List[Any] = []
        finalizer = self._finalizer(block, size, made)
        if not mapped:
            return _driver.PinnedMemory(context, _host_pointer(block.ptr), size,
                                        finalizer=finalizer)
        memory = _driver.MappedMemory(context, _host_pointer(block.ptr), size, finalizer=finalizer)
        made.append(weakref.ref(memory))
        self.allocations[block.ptr] = memory
        return memory.own()

    # mempin, defer_cleanup: HostOnlyCUDAMemoryManager's. It registers memory of the program, and
    # its list of deferred frees is the one that is used here.

    def mempin(self, owner: Any, pointer: Any, size: int, mapped: bool = False) -> Any:
        """Pins memory of the program. That is not brokered memory, and is not charged."""
        return super().mempin(owner, pointer, size, mapped)

    def memunpin(self, pointer: Any) -> None:
        """Undoes mempin(). Older versions of Numba call it; newer ones do this themselves."""
        _driver.driver.cuMemHostUnregister(pointer)

    def memallocmanaged(self, size: int, attach_global: bool) -> Any:
        """Allocates managed memory of the driver, which is not charged, or refuses to."""
        _check_managed()
        return super().memallocmanaged(size, attach_global)

    def get_memory_info(self) -> Any:
        """Returns numba.cuda.MemoryInfo(free, total) in bytes, by the tenant's quota."""
        free, total = self.pool.mem_info()
        return _driver.MemoryInfo(free=free, total=total)

    def reset(self) -> None:
        """Frees all memory of the context despite references: its arrays must not be used any more.

        The device may be reset next (numba.cuda.close()), which destroys everything that CUDA has
        made for this process. So no memory stays leased, and later allocations use a new pool.
        """
        super().reset()
        _gpumem.cuda_synchronize()
        for address in list(self._blocks):
            block = self._blocks.pop(address, None)
            if block is not None:
                block.free(0, defer=True)
        pool, pinned, client = self._pool, self._pinned, self._client
        self._pool = self._pinned = self._client = None
        if pool is not None:
            pool.free_all_blocks()
            pool.close(defer=True)
            _reset_devices.add(self._ordinal())
        if pinned is not None:
            pinned.close(defer=True)
        if client is not None:
            client.close()

    def _block_around(self, address: int) -> Block:
        for block in list(self._blocks.values()):
            if block.ptr <= address < block.ptr + block.nbytes:
                return block
        raise NotFoundError(f"the memory at {address:#x} is not gpumem's: only arrays that Numba "
                            "makes after gpumem.numba.use() can be shared")

    def get_ipc_handle(self, memory: Any) -> Any:
        """Returns a handle that opens `memory` in another process: see the module."""
        address = int(memory.device_pointer_value)
        block = self._block_around(address)
        if block.kind != "ipc":
            return TicketHandle(str(block.share()), memory.size, address - block.ptr, memory)
        datum, offset = _cuda_ipc_of(block, self._own_client())
        source = self.context.device.get_device_identity()
        return _driver.IpcHandle(memory, _ipc_mem_handle(datum), memory.size, source,
                                 offset=offset + address - block.ptr)

    @property
    def interface_version(self) -> int:
        """The version of the plugin interface."""
        return 1


def _cuda_ipc_of(block: Block, client: Client) -> Tuple[bytes, int]:
    """Returns the cudaIpcMemHandle_t of a kind ipc block's segment, and the block's offset there.
    """
    # "gmb_OFFSET_BYTES.SEGMENT"; the segment's ticket opens the segment here once more.
    head, *segments = str(block.share()).split(".")
    if len(segments) != 1:
        raise FailedPreconditionError(f"the block is in {len(segments)} segments, but an IPC "
                                      "handle is of one: set GPUMEM_POOL_GROW to make segments "
                                      "larger")
    with client.open(segments[0]) as segment:
        return segment.ipc_handle(), int(head.split("_")[1])


_KIND_VARIABLE = "GPUMEM_POOL_KIND"
_MANAGED_VARIABLE = "GPUMEM_NUMBA_MANAGED"
_MANAGED_SETTINGS = ("warn", "allow", "refuse")
_has_warned_of_managed = False


def _check_managed() -> None:
    """Applies the setting for managed memory: see the module."""
    global _has_warned_of_managed  # pylint: disable=global-statement
    setting = os.environ.get(_MANAGED_VARIABLE) or "warn"
    if setting not in _MANAGED_SETTINGS:
        raise InvalidArgumentError(f"{_MANAGED_VARIABLE}: \"{setting}\" is not "
                                   + ", ".join(_MANAGED_SETTINGS))
    if setting == "refuse":
        error = UnimplementedError(
            f"managed memory is not brokered, and {_MANAGED_VARIABLE} refuses it: device_array() "
            "and mapped_array() are brokered")
        raise _driver.CudaAPIError(_NOT_SUPPORTED, str(error)) from error
    if setting == "warn" and not _has_warned_of_managed:
        _has_warned_of_managed = True
        warnings.warn(f"managed memory is not brokered and not charged to the tenant ("
                      f"{_MANAGED_VARIABLE}=allow or refuse ends this warning)", RuntimeWarning,
                      stacklevel=6)  # managed_array()'s caller


class TicketHandle:
    """The numba.cuda.IpcHandle of memory of kinds other than ipc: a pickle of it opens the memory
    in another process of the tenant, through the broker."""

    def __init__(self, ticket: str, size: int, offset: int, base: Any = None) -> None:
        self.ticket = ticket
        self.size = size  # bytes
        self.offset = offset  # bytes in the block
        self.base = base  # kept for as long as this lives; not in a pickle
        self._opened: Optional[Block] = None

    def open(self, context: Any) -> Any:
        """Returns the memory, as Numba's MemoryPointer. Raises ValueError in the process that made
        the handle, or if it is open already; NotFoundError if its producer has ended."""
        if self.base is not None:
            raise ValueError("opening IpcHandle from original process")
        if self._opened is not None:
            raise ValueError("IpcHandle is already opened")
        self._opened = default_client().open(self.ticket)
        return _driver.MemoryPointer(
            context=weakref.proxy(context),
            pointer=_device_pointer(self._opened.ptr + self.offset), size=self.size)

    open_direct = open
    open_staged = open  # the broker maps it for the device that has it, and CUDA copies by itself

    def open_array(self, context: Any, shape: Any, dtype: Any, strides: Any = None) -> Any:
        """Like open(), but returns a device array."""
        devicearray = importlib.import_module("numba.cuda.cudadrv.devicearray")
        return devicearray.DeviceNDArray(
            shape=shape, strides=dtype.itemsize if strides is None else strides, dtype=dtype,
            gpu_data=self.open(context))

    def close(self) -> None:
        """Unmaps the memory. Raises ValueError if it is not open."""
        if self._opened is None:
            raise ValueError("IpcHandle not opened")
        opened, self._opened = self._opened, None
        opened.close(defer=True)

    def can_access_peer(self, context: Any) -> bool:
        """True if the context's device can use it."""
        del context
        return True

    def __reduce__(self) -> Any:
        return TicketHandle, (self.ticket, self.size, self.offset)


def use(kind: Optional[str] = None, *, managed: Optional[str] = None) -> None:
    """Makes Numba take all memory from gpumem. Call it before Numba's first use of the GPU in this
    process: existing contexts keep their managers.

    kind: of the default pool, for example "ipc" for real IPC handles; None: as GPUMEM_POOL_KIND
    says. managed: "warn", "allow" or "refuse" for managed arrays; None: as GPUMEM_NUMBA_MANAGED
    says. Raises FailedPreconditionError if that pool already has another kind, and
    InvalidArgumentError for another setting.
    """
    if managed is not None and managed not in _MANAGED_SETTINGS:
        raise InvalidArgumentError(f"managed=\"{managed}\" is not " + ", ".join(_MANAGED_SETTINGS))
    if kind is not None:
        _require_kind(kind)
    if managed is not None:
        os.environ[_MANAGED_VARIABLE] = managed
    cuda.set_memory_manager(MemoryManager)


def _free_deferred() -> None:
    for manager in list(_managers):
        manager.deallocations.clear()  # which is not to be moved


before_suspending(_free_deferred)


def _require_kind(kind: str) -> None:
    """Makes the default pools of that kind. If it raises, the environment is as before."""
    before = os.environ.get(_KIND_VARIABLE)
    os.environ[_KIND_VARIABLE] = kind  # which the library sees, too
    try:
        pool = Pool.default(0)
        if pool.kind != kind:
            raise FailedPreconditionError(
                f"the process's default pool exists already, with kind {pool.kind}, not {kind}: "
                "call gpumem.numba.use() before any other use of it")
    except Error:
        if before is None:
            del os.environ[_KIND_VARIABLE]
        else:
            os.environ[_KIND_VARIABLE] = before
        raise


# NUMBA_CUDA_MEMORY_MANAGER=gpumem.numba
_numba_memory_manager = MemoryManager
