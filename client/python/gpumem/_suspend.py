# SPDX-License-Identifier: Apache-2.0
"""Suspending segments and resuming them; demoting and promoting them."""
from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Callable, Iterable, Iterator, List, Optional

from . import _gpumem
from ._units import to_ms
from ._waiting import CancelToken, call
from .errors import Error
from .segment import Segment
from .serving import Serving


@contextmanager
def _locked(segments: List[Segment]) -> Iterator[None]:
    """Excludes other calls on these segments."""
    with ExitStack() as locks:  # Ctrl-C may come in between
        # In one order in all threads.
        for segment in sorted(set(segments), key=id):
            locks.enter_context(segment.lock)
        yield


def _refresh(segments: List[Segment]) -> None:
    for segment in segments:
        with suppress(Error):  # it was closed meanwhile
            segment.refresh()


class Suspending:
    """The part of gpumem.Client that replaces the memory of segments at their addresses."""

    _handle: _gpumem.Handle

    def suspend(self, segments: Iterable[Segment], *,
                quiesce: Optional[Callable[[], object]] = None,
                timeout: Optional[float] = None) -> None:
        """Suspends segments of kind vmm, all or none: their bytes move to the daemon's host tier,
        and their device memory is free for others. `ptr` and all views stay as they are, but must
        not be used until resume(): on the host backend a use ends the process (SIGSEGV), on a GPU
        it ends the process's use of CUDA.

        quiesce: stops this process's use of the memory. It is called once the daemon has reserved
        the room, and what it raises is raised here; then nothing changes. It must not use the
        segments' methods. None: on a GPU the call waits for the work that this process has
        submitted, and other threads must not submit more.

        Raises ResourceExhaustedError with its `denial`: the tier has no room, or not for this
        tenant. Raises FailedPreconditionError: a segment is suspended already or lost, or there is
        no host tier. Raises UnimplementedError for another kind; InvalidArgumentError.
        """
        found = list(segments)
        with _locked(found):
            _gpumem.suspend(self._handle, [each.handle for each in found], quiesce, to_ms(timeout))

    def resume(self, segments: Iterable[Segment], *, wait: float = 0,
               timeout: Optional[float] = None, cancel: Optional[CancelToken] = None) -> None:
        """Brings suspended segments back, all or none: the same bytes at the same addresses, so that
        all views of them are valid again. wait: seconds to wait for memory that others hold; Ctrl-C
        and `cancel` end the wait, and the segments stay suspended.

        Raises ResourceExhaustedError with its `denial` if a quota or the device refuses it, also
        after the wait; FailedPreconditionError: a segment is not suspended, or is lost;
        CancelledError.
        """
        found = list(segments)

        def work(token: Optional[CancelToken]) -> None:
            _gpumem.resume(self._handle, [each.handle for each in found], to_ms(wait),
                           to_ms(timeout), None if token is None else token.handle)

        with _locked(found):
            try:
                if wait == 0:
                    work(cancel)
                else:
                    call(work, cancel)
            finally:  # Ctrl-C may come when they are resumed already
                _refresh(found)

    def demote(self, segments: Iterable[Segment], *,
               pause: Optional[Callable[[], object]] = None,
               proceed: Optional[Callable[[], object]] = None, longest_pause: float = 0.005,
               wait: float = 0, timeout: Optional[float] = None,
               cancel: Optional[CancelToken] = None) -> None:
        """Moves the bytes of segments of kind vmm to host memory at the same addresses, all or none,
        and frees their device memory. `ptr`, all views and CUDA graphs stay valid: GPUs read and
        write over PCIe, 10 to 85 times slower. On a GPU, make the arrays before: frameworks may
        refuse to make new ones.

        Until the call returns nothing may write to the segments. Reads may go on, but for some
        milliseconds at a time: pause holds the reads and waits for those under way, proceed lets
        them go on. Both are called for each group of segments that is switched, perhaps in another
        thread, and must not use the segments' methods. What pause raises is raised here; then all
        is undone, for which it is called once more. Without them the call waits for the work that
        this process has submitted to the GPU, and nothing may use the segments until it returns.

        longest_pause: seconds; at least one segment is switched at a time. wait: seconds to wait
        for host memory that others hold; Ctrl-C and `cancel` end the wait, and nothing changes.

        Raises ResourceExhaustedError with its `denial`: the daemon's pinned memory has no room, or
        not for this tenant. Raises FailedPreconditionError: a segment is demoted already,
        suspended, revocable, scratch, lost, published, or used by others; or fd() was called.
        Raises UnimplementedError for another kind, or without memory of kind host;
        InvalidArgumentError; CancelledError.
        """
        self._move(_gpumem.demote, segments, pause, proceed, longest_pause, wait, timeout, cancel)

    def promote(self, segments: Iterable[Segment], *,
                pause: Optional[Callable[[], object]] = None,
                proceed: Optional[Callable[[], object]] = None, longest_pause: float = 0.005,
                wait: float = 0, timeout: Optional[float] = None,
                cancel: Optional[CancelToken] = None) -> None:
        """Moves the bytes of demoted segments back to their devices, at the same addresses, all or
        none. Options and errors as of demote(), for the device's memory. After an error the
        segments stay demoted."""
        self._move(_gpumem.promote, segments, pause, proceed, longest_pause, wait, timeout, cancel)

    def _move(self, move: Callable[..., None], segments: Iterable[Segment],
              pause: Optional[Callable[[], object]], proceed: Optional[Callable[[], object]],
              longest_pause: float, wait: float, timeout: Optional[float],
              cancel: Optional[CancelToken]) -> None:
        found = list(segments)

        def work(token: Optional[CancelToken]) -> None:
            move(self._handle, [each.handle for each in found], pause, proceed,
                 to_ms(longest_pause), to_ms(wait), to_ms(timeout),
                 None if token is None else token.handle)

        with _locked(found):
            try:
                if wait == 0:
                    work(cancel)
                else:
                    call(work, cancel)
            finally:  # Ctrl-C may come when they are moved already
                _refresh(found)

    def serve_suspensions(self, segments: Callable[[], Iterable[Segment]],
                          **handlers: Any) -> Serving:
        """Lets operators suspend and resume this process (gpumemctl suspend), demote and promote
        its memory if `pause` and `proceed` are given, and the daemon suspend it if its tenant is
        swappable: see gpumem.Serving, which this returns."""
        return Serving(self._handle, segments, **handlers)

    def report_activity(self) -> None:
        """Tells the daemon that the program uses its memory now, so that others are asked to
        suspend first. Cheap: makes one call a second at most, and ignores errors."""
        _gpumem.report_activity(self._handle)
