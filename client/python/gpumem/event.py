# SPDX-License-Identifier: Apache-2.0
"""Interprocess events."""
from __future__ import annotations

from . import _gpumem


class Event:
    """An event that a producer's stream records and a consumer's stream, in another process, waits
    for on the GPU. Made by Client.create_event() and Client.open_event().

    As with every CUDA event, wait() waits for the last record() that was called before. Streams are
    cudaStream_t as numbers; 0 is the default stream of the event's device. On the host backend a
    record takes effect at once. Raises InternalError with the driver's error by its name.
    """

    def __init__(self, handle: _gpumem.Handle) -> None:
        self._handle = handle

    def record(self, stream: int = 0) -> None:
        """Records the work submitted to the stream so far, for others to wait for."""
        _gpumem.event_record(self._handle, stream)

    def wait(self, stream: int = 0) -> None:
        """Makes the stream wait; does not block the caller."""
        _gpumem.event_wait(self._handle, stream)

    def synchronize(self) -> None:
        """Blocks the caller until the recorded work is done."""
        _gpumem.event_synchronize(self._handle)

    @property
    def done(self) -> bool:
        """True if the work recorded last is done."""
        return _gpumem.event_is_done(self._handle)

    def ipc_handle(self) -> bytes:
        """Returns the 64 bytes of its cudaIpcEventHandle_t."""
        return _gpumem.event_ipc_handle(self._handle)

    @property
    def cuda_event(self) -> int:
        """The cudaEvent_t; 0 on the host backend."""
        return _gpumem.event_cuda_event(self._handle)

    @property
    def closed(self) -> bool:
        """True if close() was called."""
        return self._handle.closed

    def close(self) -> None:
        """Closes it here; other processes keep it until all have closed it."""
        self._handle.close(True)

    def __enter__(self) -> "Event":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
