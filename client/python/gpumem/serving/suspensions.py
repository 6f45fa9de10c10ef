# SPDX-License-Identifier: Apache-2.0
"""Suspending and resuming, demoting and promoting, when others ask for it."""
from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, Callable, Iterable, List, Mapping, Optional

from .. import _gpumem
from ..errors import Error, FailedPreconditionError, InvalidArgumentError, of_status
from ..segment import Segment
from ..watch import open_watches

_CAUSES = ("operator", "memory-needed", "idle")  # enum gpumem_suspension_cause, by number
_LOOK_S = 0.25  # how often a request that waits for other threads checks if it is closed


class Serving:
    """Serves requests from its creation (Client.serve_suspensions) until close() or the end of a
    `with` block: to suspend and to resume, and with `pause` and `proceed` also to demote and to
    promote. All functions are called in one thread, which also does the work. Meanwhile share(),
    fd() and other calls that suspend or resume them wait, and close() takes effect afterwards.

    segments: returns the segments of this client to suspend or to resume: all of them, as an
        operator's request succeeds once all memory of the session is suspended. Those in the wanted
        state are left as they are, and so are those with another tag than the operator names.
    quiesce: as in Client.suspend(). An exception cancels the request.
    suspended: called with the cause once they are suspended: "operator", who also asks to resume,
        or "memory-needed" or "idle". After these another thread calls Client.resume() once the
        program needs its memory. The function itself must not suspend or resume.
    resumed: called once they are back, after an operator's request.
    failed: called with the exception, also that of the program's functions. Segments that are not
        suspended can be used.
    pause, proceed: as in Client.demote(), both or none. Nothing may write to the segments while they
        are demoted or promoted: from the call of `demotable` to that of `done`.
    demotable: returns the segments to demote or to promote, all or none of them: only such that the
        program does not write to. None: those of `segments` that can be demoted.
    done: called last for each request, also if there was nothing to do.
    ended: called with the exception that has ended the requests: the session is over, for example.
    swappable: True or False: others than operators may ask, or may not, whatever the tenant's quota
        says. None: the quota decides.
    """

    def __init__(self, client: _gpumem.Handle, segments: Callable[[], Iterable[Segment]], *,
                 quiesce: Optional[Callable[[], object]] = None,
                 suspended: Optional[Callable[[str], object]] = None,
                 resumed: Optional[Callable[[], object]] = None,
                 failed: Optional[Callable[[BaseException], object]] = None,
                 pause: Optional[Callable[[], object]] = None,
                 proceed: Optional[Callable[[], object]] = None,
                 demotable: Optional[Callable[[], Iterable[Segment]]] = None,
                 done: Optional[Callable[[], object]] = None,
                 ended: Optional[Callable[[Error], object]] = None,
                 swappable: Optional[bool] = None) -> None:
        if (pause is None) != (proceed is None) or (pause is None and demotable is not None):
            raise InvalidArgumentError("`pause` and `proceed` are given together, `demotable` with "
                                       "both")
        functions = {"segments": segments, "quiesce": quiesce, "suspended": suspended,
                     "resumed": resumed, "failed": failed, "pause": pause, "proceed": proceed,
                     "demotable": demotable, "done": done, "ended": ended}
        self._requests = _Requests({name: each for name, each in functions.items()
                                    if each is not None})
        self._handle = _gpumem.serve_suspensions(client, self._requests, quiesce is not None,
                                                 pause is not None, demotable is not None,
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

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.closing = False
        self._functions = functions  # those of the program, by name
        self._locks = ExitStack()  # of the segments, while the library uses them
        self._used: List[Segment] = []
        self._raised: Optional[BaseException] = None  # by a function of the program

    def __call__(self, what: str, *said: Any) -> object:
        if what in ("segments", "demotable"):
            return self._begin(what)
        if what in ("quiesce", "pause"):
            return self._stop(what)
        if what not in ("ended", "proceed"):
            self._unlock()
        if what == "ended":
            self._tell(what, of_status(*said))
        elif what == "proceed":
            self._tell(what)
        elif what == "suspended":
            self._tell(what, _CAUSES[said[0]] if said[0] < len(_CAUSES) else "memory-needed")
        elif what == "resumed":
            self._tell(what)
        elif what == "failed":
            self._tell_failed(of_status(*said))
        elif what == "done":
            try:
                if self._raised is not None:
                    self._tell_failed(self._raised)
            finally:
                self._tell(what)
        return None

    def _tell(self, what: str, *said: object) -> None:
        """Calls the program's function, if there is one."""
        if what in self._functions:
            self._functions[what](*said)

    def _begin(self, what: str) -> List[_gpumem.Handle]:
        """Locks the segments, and returns them."""
        self._raised = None
        try:
            found = list(self._functions[what]())
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

    def _stop(self, what: str) -> bool:
        """True if the program's use of the segments is stopped."""
        try:
            self._tell(what)
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
        if "failed" in self._functions:
            self._tell("failed", error if raised is None else raised)
        elif raised is not None:
            raise raised  # for sys.unraisablehook
