"""Interprocess events."""
from __future__ import annotations

from . import _gpumem


class Event:
    """An event that a producer's stream records and a consumer's stream, in another process, waits
    for on the GPU. Made by Client.create_event() and Client.open_event().

    As with every CUDA event, wait() waits for the last record() that was called before. Streams are
    cudaStream_t as numbers; 0 is the default stream of the event's device. On the host backend what
    was recorded has happened. Raises InternalError with the driver's error by its name.
    """

    def __init__(self, handle: _gpumem.Handle) -> None:
        self._handle = handle

    def record(self, stream: int = 0) -> None:
        """What was submitted to the stream so far is what others wait for."""
        _gpumem.event_record(self._handle, stream)

    def wait(self, stream: int = 0) -> None:
        """The stream waits; the caller does not."""
        _gpumem.event_wait(self._handle, stream)

    def synchronize(self) -> None:
        """The caller waits."""
        _gpumem.event_synchronize(self._handle)

    @property
    def done(self) -> bool:
        """Whether what was recorded last has happened."""
        return _gpumem.event_is_done(self._handle)

    def ipc_handle(self) -> bytes:
        """The 64 bytes of its cudaIpcEventHandle_t."""
        return _gpumem.event_ipc_handle(self._handle)

    @property
    def cuda_event(self) -> int:
        """The cudaEvent_t; 0 on the host backend."""
        return _gpumem.event_cuda_event(self._handle)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle.closed

    def close(self) -> None:
        """Ends it here; for others it stays until all have."""
        self._handle.close(True)

    def __enter__(self) -> "Event":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
