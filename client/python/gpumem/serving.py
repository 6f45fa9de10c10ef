# SPDX-License-Identifier: Apache-2.0
"""Suspending, and resuming, when others ask for it."""
from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, Callable, Iterable, List, Optional

from . import _gpumem
from .errors import Error, FailedPreconditionError, of_status
from .segment import Segment
from .watch import open_watches

_CAUSES = ("operator", "memory-needed", "idle")  # enum gpumem_suspension_cause, by number
_LOOK_S = 0.25  # how often a request that waits for other threads checks if it is closed


class Serving:
    """Serves requests to suspend and to resume from its creation (Client.serve_suspensions) until
    close() or the end of a `with` block. All functions are called in one thread, which also
    suspends and resumes the segments. Meanwhile share(), fd() and other calls that suspend or
    resume them wait, and close() takes effect afterwards.

    segments: returns the segments of this client to suspend or to resume: all of them, as an
        operator's request succeeds once all memory of the session is suspended. Those in the wanted
        state are left as they are, and so are those with another tag than the operator names.
    quiesce: as in Client.suspend(). An exception cancels the request.
    suspended: called with the cause once they are suspended: "operator", who also asks to resume,
        or "memory-needed" or "idle". After these another thread calls Client.resume() once the
        program needs its memory. The function itself must not suspend or resume.
    resumed: called once they are back, after an operator's request.
    failed: called with the exception, also that of `segments` or `quiesce`. Segments that are not
        suspended can be used.
    ended: called with the exception that has ended the requests: the session is over, for example.
    swappable: True or False: others than operators may ask, or may not, whatever the tenant's quota
        says. None: the quota decides.
    """

    def __init__(self, client: _gpumem.Handle, segments: Callable[[], Iterable[Segment]], *,
                 quiesce: Optional[Callable[[], object]] = None,
                 suspended: Optional[Callable[[str], object]] = None,
                 resumed: Optional[Callable[[], object]] = None,
                 failed: Optional[Callable[[BaseException], object]] = None,
                 ended: Optional[Callable[[Error], object]] = None,
                 swappable: Optional[bool] = None) -> None:
        self._requests = _Requests(segments, quiesce, suspended, resumed, failed, ended)
        self._handle = _gpumem.serve_suspensions(client, self._requests, quiesce is not None,
                                                 0 if swappable is None else 1 + bool(swappable))
        open_watches.add(self)

    @property
    def closed(self) -> bool:
        """True if it was closed."""
        return self._handle.closed

    def close(self) -> None:
        """Ends it. Blocks until a request under way is served, unless one of its functions calls
        this. The segments stay as they are."""
        self._requests.closing = True
        self._handle.close()

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Requests:
    """What the extension calls. It does not refer to the Serving, whose end ends it."""

    def __init__(self, segments: Callable[[], Iterable[Segment]],
                 quiesce: Optional[Callable[[], object]],
                 suspended: Optional[Callable[[str], object]],
                 resumed: Optional[Callable[[], object]],
                 failed: Optional[Callable[[BaseException], object]],
                 ended: Optional[Callable[[Error], object]]) -> None:
        self.closing = False
        self._segments, self._quiesce = segments, quiesce
        self._suspended, self._resumed = suspended, resumed
        self._failed, self._ended = failed, ended
        self._locks = ExitStack()  # of the segments, while the library uses them
        self._used: List[Segment] = []
        self._raised: Optional[BaseException] = None  # by `segments` or `quiesce`

    def __call__(self, what: str, *said: Any) -> object:
        if what == "segments":
            return self._begin()
        if what == "quiesce":
            return self._stop()
        if what == "ended":
            if self._ended is not None:
                self._ended(of_status(*said))
            return None
        self._unlock()
        if what == "suspended" and self._suspended is not None:
            self._suspended(_CAUSES[said[0]] if said[0] < len(_CAUSES) else "memory-needed")
        elif what == "resumed" and self._resumed is not None:
            self._resumed()
        elif what == "failed":
            self._tell_failed(of_status(*said))
        elif what == "done" and self._raised is not None:
            self._tell_failed(self._raised)
        return None

    def _begin(self) -> List[_gpumem.Handle]:
        """Locks the segments, and returns them."""
        self._raised = None
        try:
            found = list(self._segments())
            # In one order in all threads, as in Client.suspend().
            for segment in sorted(set(found), key=id):
                while not segment.lock.acquire(timeout=_LOOK_S):
                    if self.closing:
                        raise FailedPreconditionError("the program no longer serves suspensions")
                self._locks.callback(segment.lock.release)
            handles = [segment.handle for segment in found]
            for handle in handles:
                _gpumem.segment_info(handle)  # raises if it is closed
        except BaseException as error:  # pylint: disable=broad-except
            self._raised = error
            self._unlock()
            return []
        self._used = found
        return handles

    def _stop(self) -> bool:
        """True if the program's use of the segments is stopped."""
        try:
            if self._quiesce is not None:
                self._quiesce()
        except BaseException as error:  # pylint: disable=broad-except
            self._raised = error
            return False
        return True

    def _unlock(self) -> None:
        """Lets other threads use the segments again."""
        used, self._used = self._used, []
        for segment in used:
            with suppress(Error):  # it was closed meanwhile
                segment.refresh()
        self._locks.close()

    def _tell_failed(self, error: BaseException) -> None:
        raised, self._raised = self._raised, None
        if self._failed is not None:
            self._failed(error if raised is None else raised)
        elif raised is not None:
            raise raised  # for sys.unraisablehook
