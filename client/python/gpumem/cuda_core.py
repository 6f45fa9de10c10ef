# SPDX-License-Identifier: Apache-2.0
"""cuda-python on brokered memory: cuda.core's buffers and memory resources, and the raw handles of
cuda.bindings.runtime (cudart) for programs that do not know gpumem.

    segment = gpumem.connect().acquire(64 << 20)
    buffer = gpumem.cuda_core.buffer(segment)        # a cuda.core.Buffer: copy_to(), fill(), DLPack
    mr = gpumem.cuda_core.PoolMemoryResource()       # a cuda.core.MemoryResource over a gpumem.Pool
    other = mr.allocate(1 << 20, stream=stream)

    handle = gpumem.cuda_core.ipc_mem_handle(ipc_segment)       # cudart.cudaIpcOpenMemHandle
    datum = gpumem.cuda_core.pool_export_data(mempool_segment)  # cudart.cudaMemPoolImportPointer
"""
from __future__ import annotations

import importlib
from typing import Any, Dict, Optional

from . import _cuda
from .arrays import Array, Place
from .errors import InvalidArgumentError
from .pool import Pool
from .segment import Block, Memory, Segment

_core: Any = importlib.import_module("cuda.core")
if not hasattr(_core, "Buffer"):
    _core = importlib.import_module("cuda.core.experimental")

__all__ = ["PoolMemoryResource", "buffer", "import_pool", "ipc_event_handle", "ipc_mem_handle",
           "pool_export_data"]


class _Resource(_core.MemoryResource):  # type: ignore[misc]
    """The properties that cuda.core reads of memory."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._device_id = -1 if place.on_host else _cuda.ordinal_of(place.device)

    @property
    def is_device_accessible(self) -> bool:
        """True if GPUs can use it."""
        return self._place.on_gpu

    @property
    def is_host_accessible(self) -> bool:
        """True if the CPU can use it."""
        return self._place.on_host

    @property
    def is_managed(self) -> bool:
        """Always False."""
        return False

    @property
    def device_id(self) -> int:
        """The ordinal of its device in this process; -1 for the CPU's memory."""
        return self._device_id


class _Keeper(_Resource):
    """Keeps the memory of one buffer."""

    def __init__(self, view: Array) -> None:
        super().__init__(view.place)
        self._view: Optional[Array] = view

    def allocate(self, size: int, stream: Any = None) -> Any:
        """Raises: a segment cannot allocate."""
        raise NotImplementedError("this resource has one buffer: allocate with PoolMemoryResource")

    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
        """Called by cuda.core when the buffer ends."""
        del ptr, size, stream
        self._view = None


def buffer(memory: Memory) -> Any:
    """Returns a segment or block as cuda.core.Buffer, which keeps it: no copy. The end of the
    buffer frees nothing by itself; the memory goes back when the last reference is gone."""
    view = memory.array()  # counts as a view: close() is refused while the buffer lives
    try:
        return _core.Buffer.from_handle(memory.ptr, memory.nbytes, owner=view)
    except TypeError:  # of a version before there were owners
        return _core.Buffer.from_handle(memory.ptr, memory.nbytes, mr=_Keeper(view))


def _stream_number(stream: Any) -> int:
    """Returns the number of a cuda.core stream, or of an object with __cuda_stream__."""
    if stream is None:
        return 0
    handle = getattr(stream, "handle", None)
    if handle is None and hasattr(stream, "__cuda_stream__"):
        said = stream.__cuda_stream__
        handle = (said() if callable(said) else said)[1]
    return int(stream if handle is None else handle)


class PoolMemoryResource(_Resource):
    """A cuda.core.MemoryResource that allocates from a gpumem.Pool, in the order of streams. Make
    it while the device is current (cuda.core.Device.set_current()).

    pool: None: the default pool of device 0.
    """

    def __init__(self, pool: Optional[Pool] = None) -> None:
        self.pool = Pool.default(0) if pool is None else pool
        super().__init__(self.pool.place)
        self._blocks: Dict[int, Block] = {}
        self._is_told = self._find_out()

    def _find_out(self) -> bool:
        """True if cuda.core calls deallocate() for buffers of from_handle(): some versions do not
        (https://github.com/NVIDIA/cuda-python/issues/1619)."""
        block = self.pool.allocate(1)
        pointer, nbytes = block.ptr, block.nbytes
        self._blocks[pointer] = block
        try:
            _core.Buffer.from_handle(pointer, nbytes, mr=self).close()
        except Exception:  # pylint: disable=broad-except  # any failure: it does not call
            pass
        return self._blocks.pop(pointer, None) is None

    def allocate(self, size: int, stream: Any = None) -> Any:
        """Returns a cuda.core.Buffer of `size` bytes, for work on `stream`. Raises
        gpumem.ResourceExhaustedError, which is a MemoryError."""
        block = self.pool.allocate(max(size, 1), _stream_number(stream))
        if not self._is_told:
            # Freed with the buffer, on the stream that it was allocated on.
            return _core.Buffer.from_handle(block.ptr, size, owner=block)
        self._blocks[block.ptr] = block
        return _core.Buffer.from_handle(block.ptr, size, mr=self)

    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
        """Called by cuda.core when the buffer ends, on that stream."""
        del size
        block = self._blocks.pop(int(ptr), None)
        if block is not None:
            block.free(None if stream is None else _stream_number(stream), defer=True)


# ---- Raw handles of the CUDA runtime -------------------------------------------------------------


def _cudart() -> Any:
    return importlib.import_module("cuda.bindings.runtime")


def ipc_mem_handle(segment: Segment) -> Any:
    """Returns the cudaIpcMemHandle_t of a segment of kind ipc. cudart.cudaIpcOpenMemHandle() takes
    it, in this process or, as bytes(handle.reserved), in any other.

    Raises UnimplementedError for other kinds."""
    handle = _cudart().cudaIpcMemHandle_t()
    handle.reserved = segment.ipc_handle()
    return handle


def pool_export_data(segment: Segment) -> Any:
    """Returns the cudaMemPoolPtrExportData of a segment of kind mempool.
    cudart.cudaMemPoolImportPointer() takes it with the imported pool (import_pool()).

    Raises UnimplementedError for other kinds."""
    datum = _cudart().cudaMemPoolPtrExportData()
    datum.reserved = segment.export_data()
    return datum


def import_pool(segment: Segment) -> Any:
    """Returns the cudaMemPool_t of a segment of kind mempool, imported into this process
    (cudaMemPoolImportFromShareableHandle).

    However often a process imports a pool, CUDA returns the same handle. So this is the handle by
    which the segment itself is mapped: it is valid while the segment is open, and ends with the
    last segment of the pool. Do not destroy it: as long as a segment is mapped,
    cudaMemPoolDestroy() returns cudaErrorInvalidValue. A process that has only the descriptor and
    the export data destroys the pool that it has imported.

    Raises UnimplementedError for other kinds, and InvalidArgumentError with the runtime's message.
    """
    cudart = _cudart()
    posix = cudart.cudaMemAllocationHandleType.cudaMemHandleTypePosixFileDescriptor
    error, pool = cudart.cudaMemPoolImportFromShareableHandle(segment.pool_fd(), posix, 0)
    if error != cudart.cudaError_t.cudaSuccess:
        raise InvalidArgumentError(f"cudaMemPoolImportFromShareableHandle: {error}")
    return pool


def ipc_event_handle(event: Any) -> Any:
    """Returns the cudaIpcEventHandle_t of a gpumem.Event, for cudart.cudaIpcOpenEventHandle() in
    another process."""
    handle = _cudart().cudaIpcEventHandle_t()
    handle.reserved = event.ipc_handle()
    return handle
