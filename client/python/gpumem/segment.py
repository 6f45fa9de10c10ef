# SPDX-License-Identifier: Apache-2.0
"""Segments and blocks: raw memory."""
from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple, TypeVar

from . import _gpumem
from ._dtypes import parse
from ._units import BACKENDS, KINDS, to_scope
from .arrays import (Array, Place, Placed, Shape, check_alignment, extent, to_offset, to_shape,
                     to_strides)
from .errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError

_M = TypeVar("_M", bound="Memory")


@dataclass(frozen=True)
class Layout:
    """The layout of an array in a segment or block."""

    shape: Tuple[int, ...]
    dtype: str
    strides: Tuple[int, ...]  # bytes
    offset: int  # bytes
    framework: str = "gpumem"  # the library whose array was shared


@dataclass(frozen=True)
class Ticket:
    """An unguessable capability to open memory elsewhere. Pickle it, or pass on `value`, a text
    that is safe in files, environment variables and URLs. Keep it secret. It opens as long as the
    lease that minted it lives."""

    value: str
    layout: Optional[Layout] = None  # of a shared array

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return f"<gpumem.Ticket {self.value[:4]}… of {self.layout or 'memory'}>"


class Memory(Placed, _gpumem.Memory):
    """Base of segments and blocks: `nbytes` bytes at `ptr`.

    On the host backend, and of kind pinned, they have the buffer protocol: `memoryview(segment)`
    and `numpy.frombuffer(segment, "float32")`. On a GPU use array().
    """

    def __init__(self, handle: _gpumem.Handle, pointer: int, nbytes: int, place: Place,
                 readonly: bool) -> None:
        self._handle = handle
        self.place = place
        # Not a counted view: only its exports count.
        super().__init__(handle, pointer, nbytes, readonly, place.on_host, False, "B", 1,
                         (nbytes,), (1,))

    @property
    def handle(self) -> _gpumem.Handle:
        """For other parts of the package."""
        return self._handle

    @property
    def size(self) -> int:
        """The size in bytes: the requested size or, rounded up, more."""
        return self.nbytes

    @property
    def closed(self) -> bool:
        """True if it was closed; with close(defer=True) its views may still live."""
        return self._handle.closed

    @property
    def views(self) -> int:
        """The number of arrays, memoryviews and DLPack capsules of its memory."""
        return self._handle.views

    def array(self, shape: Optional[Shape] = None, dtype: Any = "uint8", *, offset: int = 0,
              strides: Optional[Sequence[int]] = None, stream: Optional[int] = None) -> Array:
        """Returns an array at `offset` (bytes); without a shape, of all bytes from there. Strides
        in bytes.

        Raises InvalidArgumentError, also for unaligned elements, and OutOfRangeError if the array
        would reach beyond the memory.
        """
        found = parse(dtype)
        if shape is None:
            shape = max(self.nbytes - offset, 0) // found.itemsize
        sizes = to_shape(shape, found.itemsize)
        steps = to_strides(strides, sizes, found.itemsize)
        offset = to_offset(offset)
        low, high = extent(sizes, steps, found.itemsize)
        if offset < 0 or offset + low < 0 or offset + high > self.nbytes:
            raise OutOfRangeError(f"{found.name}{list(sizes)} at byte {offset} exceeds the "
                                  f"{self.nbytes} bytes of the memory")
        check_alignment(offset, sizes, steps, found)
        return Array(self._handle, self.ptr + offset, sizes, found, strides=steps,
                     place=self.place, readonly=self.readonly, owner=self, offset=offset,
                     stream=stream)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.place.dlpack_device()

    def __dlpack__(self, **arguments: Any) -> Any:
        """Exports all of its bytes."""
        return self.array().__dlpack__(**arguments)

    def close(self, defer: bool = False) -> None:
        """Gives the memory back. While arrays, memoryviews or capsules of it live, raises
        FailedPreconditionError; with `defer`, the end of the last of them completes it instead. On
        a GPU it waits for the work that this process has submitted, as cudaFree does.

        Without `defer` it raises UnavailableError if no daemon could be told. The memory is
        unmapped all the same, and the lease ends as soon as there is a daemon. With `defer` it does
        not wait for the daemon, which is told before the process's next call, or else within a
        millisecond or so. The end of a `with` block is close(defer=True), and so is the end of the
        object itself."""
        self._handle.close(defer)

    def __enter__(self: _M) -> _M:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close(True)


# By id(). Used to find the segment of another library's array by its address.
_segments: "weakref.WeakValueDictionary[int, Segment]" = weakref.WeakValueDictionary()


def _after_fork_in_child() -> None:
    # A thread of the parent, absent here, may hold any of the locks.
    for segment in list(_segments.values()):
        segment.renew_lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Segment(Memory):
    """A lease on one driver allocation on one device, mapped into this process. Made by
    Client.acquire() and Client.open().

    Attributes: ptr, size and nbytes (bytes), device (UUID), kind, backend, readonly, on_host,
    lease_id, segment_id, and
    - reused: it holds old bytes of the tenant; else zeros
    - registered: pinned memory that GPUs can use, too
    - revocable: the daemon may take it back
    - tag: the name that acquire() gave it, to select segments by; "": none
    - scratch: its bytes are dropped when it is suspended

    Any thread may use it.
    """

    def __init__(self, handle: _gpumem.Handle, readonly: bool = False) -> None:
        (pointer, nbytes, device, kind, backend, self.lease_id, self.segment_id, self.reused,
         self.registered, self.revocable, self.tag, self.scratch) = _gpumem.segment_info(handle)
        place = Place(device, BACKENDS[backend], KINDS[kind], self.registered)
        super().__init__(handle, pointer, nbytes, place, readonly)
        self.renew_lock()
        _segments[id(self)] = self

    def renew_lock(self) -> None:
        """For other parts of the package."""
        self._lock = threading.Lock()  # of what the library does for one thread at a time

    @property
    def lock(self) -> threading.Lock:
        """For other parts of the package."""
        return self._lock

    def refresh(self) -> None:
        """For other parts of the package."""
        self.segment_id = _gpumem.segment_info(self._handle)[6]

    @property
    def suspended(self) -> bool:
        """True from Client.suspend() to Client.resume(): there is no memory at `ptr`."""
        return _gpumem.segment_is_suspended(self._handle)

    @property
    def demoted(self) -> bool:
        """True from Client.demote() to Client.promote(): its memory is host memory, which GPUs use
        at `ptr`. `kind` and `device` stay those that it was acquired with."""
        return _gpumem.segment_is_demoted(self._handle)

    def share(self, scope: str = "tenant") -> Ticket:
        """Returns the ticket that opens it elsewhere (Client.open), for as long as this lease
        lives: for sessions of the same tenant, or with "any" for every session that has the ticket.

        Raises FailedPreconditionError if the segment is lost.
        """
        with self._lock:
            return Ticket(_gpumem.segment_share(self._handle, to_scope(scope)))

    # For programs without gpumem; see gpumem.h. UnimplementedError for other kinds.

    def ipc_handle(self) -> bytes:
        """Of kind ipc: returns the 64 bytes of its cudaIpcMemHandle_t (cudaIpcOpenMemHandle)."""
        return _gpumem.segment_ipc_handle(self._handle)

    def export_data(self) -> bytes:
        """Of kind mempool: returns the 64 bytes of its cudaMemPoolPtrExportData, for other
        processes (cudaMemPoolImportPointer)."""
        return _gpumem.segment_export_data(self._handle)

    def pool_fd(self) -> int:
        """Of kind mempool: returns the descriptor for cudaMemPoolImportFromShareableHandle. The
        segment owns it: do not close it."""
        return _gpumem.segment_pool_fd(self._handle)

    def fd(self) -> int:
        """Of kinds vmm and pinned: returns the descriptor for cuMemImportFromShareableHandle, or
        mmap. The segment owns it: do not close it. Client.suspend() closes it.

        Raises FailedPreconditionError while the segment is suspended."""
        with self._lock:
            return _gpumem.segment_fd(self._handle)

    def __repr__(self) -> str:
        if self.closed:
            return "<gpumem.Segment, closed>"
        return f"<gpumem.Segment of {self.size} bytes, {self.kind}, on {self.device}>"


def segments_of(handles: Sequence[_gpumem.Handle], readonly: bool = False) -> List[Segment]:
    """Returns Segment objects for handles."""
    return [Segment(handle, readonly) for handle in handles]


def segment_at(address: int, nbytes: int) -> Optional[Segment]:
    """Returns this process's segment that contains these bytes."""
    for reference in _segments.valuerefs():
        segment = reference()
        try:
            if segment is not None and segment.ptr <= address and (
                    address + nbytes <= segment.ptr + segment.nbytes):
                return segment
        except FailedPreconditionError:
            pass  # it is closed
    return None


def placed(array: Array) -> Array:
    """Returns the same array with its owner, if another library's array lies in a segment of this
    process."""
    if array.owner is not None or array.size == 0:
        return array
    low, high = extent(array.shape, array.strides, array.itemsize)
    segment = segment_at(array.ptr + low, high - low)
    if segment is None:
        return array
    try:
        return segment.array(array.shape, array.dtype, offset=array.ptr - segment.ptr,
                             strides=array.strides, stream=array.stream)
    except InvalidArgumentError:  # not aligned: a copy is
        return array


class Block(Memory):
    """A block of a pool (Pool.allocate), or another session's (Client.open).

    ptr, size and nbytes (bytes), device, kind, backend, readonly, on_host, pool. Freed by free(),
    at the end of a `with` block or of the object, on `stream`, without a wait: work that was
    submitted to that stream before may still use it.
    """

    def __init__(self, handle: _gpumem.Handle, pointer: int, nbytes: int, place: Place,
                 pool: Any = None, readonly: bool = False) -> None:
        self.pool = pool
        super().__init__(handle, pointer, nbytes, place, readonly)

    @property
    def stream(self) -> int:
        """The stream on which it is freed: that of allocate(), unless set."""
        return self._handle.stream

    @stream.setter
    def stream(self, stream: int) -> None:
        self._handle.stream = stream

    def array(self, shape: Optional[Shape] = None, dtype: Any = "uint8", *, offset: int = 0,
              strides: Optional[Sequence[int]] = None, stream: Optional[int] = None) -> Array:
        """As Segment.array(). `stream` is the stream to wait for before the array is used; None:
        for a pool's block, the stream that it was allocated for."""
        if stream is None and self.pool is not None:
            stream = self.stream
        return super().array(shape, dtype, offset=offset, strides=strides, stream=stream)

    def free(self, stream: Optional[int] = None, *, defer: bool = False) -> None:
        """Gives it back to the pool, for later work on `stream` (None: `self.stream`). While views
        of it live, raises or is deferred, as close()."""
        if stream is not None:
            self.stream = stream
        self.close(defer)

    def share(self) -> Ticket:
        """Returns the ticket that opens it in other sessions of the tenant, for as long as the pool
        lives. Do not free it while they use it.

        Raises InvalidArgumentError for a block that was opened, not allocated.
        """
        if self.pool is None:
            raise InvalidArgumentError(
                "only the session that allocated the block can share it: pass on its ticket")
        return Ticket(_gpumem.pool_share(self.pool.handle, self.ptr, self.nbytes))

    def __repr__(self) -> str:
        if self.closed:
            return "<gpumem.Block, freed>"
        return f"<gpumem.Block of {self.size} bytes, {self.kind}, on {self.device}>"
