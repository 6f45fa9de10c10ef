# SPDX-License-Identifier: Apache-2.0
"""Suspending the pools of frameworks when others ask for it: gpumem.torch.serve()."""
from __future__ import annotations

import math
import os
import threading
import warnings
from contextlib import suppress
from typing import Any, Callable, Dict, Iterable, List, Optional

from . import _gpumem, _turns
from ._units import to_seconds
from ._waiting import CancelToken
from .client import Client
from .errors import Error, FailedPreconditionError, InvalidArgumentError
from .pool import Pool
from .segment import Segment
from .watch import open_watches

_OPERATOR = 0  # of enum gpumem_suspension_cause


class _Segments:
    """The program's segments of a client, which are suspended as a pool is."""

    def __init__(self, client: Client, segments: Callable[[], Iterable[Segment]]) -> None:
        self._client, self._segments = client, segments

    @property
    def closed(self) -> bool:
        """False: the client's segments may outlive its close()."""
        return False

    def _found(self, suspended: bool) -> List[Segment]:
        # The segments of a closed client can be neither resumed nor suspended.
        return [] if self._client.closed else [
            each for each in self._segments()
            if not each.closed and each.suspended == suspended]

    @property
    def suspended(self) -> bool:
        """True if there is something to resume. The program may have resumed a part."""
        return bool(self._found(True))

    @property
    def resident(self) -> bool:
        """True if there is something to suspend."""
        return bool(self._found(False))

    def suspend(self, *, timeout: Optional[float] = None) -> None:
        """As Pool.suspend()."""
        found = self._found(False)
        if found:
            self._client.suspend(found, timeout=timeout)

    def resume(self, *, wait: float = 0, timeout: Optional[float] = None,
               cancel: Optional[CancelToken] = None) -> None:
        """As Pool.resume()."""
        self._client.resume(self._found(True), wait=wait, timeout=timeout, cancel=cancel)


class Turns:
    """Requests to suspend and to resume that are served: the result of gpumem.torch.serve()."""

    def __init__(self, wait: float, swappable: Optional[bool],
                 failed: Optional[Callable[[Exception], object]]) -> None:
        self._gate = _turns.gate()
        self._swappable = 0 if swappable is None else 1 + bool(swappable)
        self._failed = failed
        self._cancel = CancelToken()
        self._lock = threading.Lock()
        self._closed = False
        # By session.
        self._clients: Dict[int, _gpumem.Handle] = {}
        self._watches: Dict[int, _gpumem.Handle] = {}
        self._gate.step_wait = wait
        self._gate.active = self._report
        open_watches.add(self)

    def cover(self, client: _gpumem.Handle) -> None:
        """Serves the requests to a client's session."""
        session = _gpumem.client_info(client)[3]
        with self._lock:
            if self._closed or session in self._watches:
                return
            self._watches[session] = _gpumem.serve_requests(client, self._asked, self._swappable)
            self._clients[session] = client

    def cover_pool(self, pool: Pool) -> None:
        """Serves the requests to a pool's session."""
        if pool.kind == "vmm":
            self.cover(_gpumem.pool_client(pool.handle))

    def _report(self) -> None:
        for client in list(self._clients.values()):
            with suppress(Error):  # closed meanwhile
                _gpumem.report_activity(client)

    def _asked(self, what: str, *said: Any) -> None:
        """Called by the threads of the watches."""
        if what != "asked":
            return  # the session has ended
        resume, tag, left_ms, cause = said
        if tag:
            return  # pools have none
        try:
            left = to_seconds(left_ms)
            if resume:
                self._gate.resume(left, None, self._cancel)
            else:
                self._gate.suspend(left, None, returns=cause != _OPERATOR)
        except Exception as error:  # pylint: disable=broad-except; also of the program's functions
            if self._failed is not None:
                self._failed(error)
            elif not self._closed:
                warnings.warn(f"the program could not {'resume' if resume else 'suspend'} as it was "
                              f"asked: {error}", RuntimeWarning, stacklevel=1)

    @property
    def closed(self) -> bool:
        """True if it was closed."""
        return self._closed

    def close(self) -> None:
        """Ends it. Blocks until a request under way is served or refused. Suspended memory stays
        so, and the next step resumes it as agreed.

        Raises FailedPreconditionError: called in a step of running(), which a request waits for."""
        if self._gate.in_step:
            raise FailedPreconditionError("a step of running() cannot end the serving of requests: "
                                          "a request waits for the step")
        with self._lock:
            self._closed = True
        self._cancel.cancel()
        for watch in list(self._watches.values()):
            watch.close()
        self._watches.clear()  # each refers to this
        self._clients.clear()
        self._gate.active = lambda: None
        _forget(self)

    def renew(self) -> None:
        """Closes this in a child after fork(), and lets it be used."""
        self._lock = threading.Lock()
        self._closed = True
        self._gate = _turns.gate()

    def __enter__(self) -> "Turns":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_served: Optional[Turns] = None
_serving = threading.Lock()


def _forget(turns: Turns) -> None:
    global _served  # pylint: disable=global-statement
    with _serving:
        if _served is turns:
            _served = None
            _turns.others.clear()
            _turns.joined.clear()


def serve(*, client: Optional[Client] = None,
          segments: Optional[Callable[[], Iterable[Segment]]] = None, wait: float = math.inf,
          swappable: Optional[bool] = None,
          failed: Optional[Callable[[Exception], object]] = None) -> Turns:
    """Lets operators suspend and resume what suspend() covers (gpumemctl suspend), and the daemon
    suspend it if the tenant is swappable, until close() of the result or the end of a `with`
    block. Everything that uses the GPU, allocates or frees has to be in steps of running().

    A request waits for the steps that are under way, as suspend() does. After one of an operator,
    steps block until the operator resumes, or the program. After one of the daemon the next step
    resumes by itself: it waits in the daemon's queue, at most `wait` seconds, and raises what
    resume() raises. Each step tells the daemon that the program is active.

    Covers the default pools, the pools that the program gives to the frameworks' modules, also
    later, and what `segments` returns, of `client`: all of these that are open, of kind vmm. Once
    the client is closed, segments of it that are suspended stay so.
    swappable: True or False: the daemon may ask, or may not, whatever the tenant's quota says.
    failed: called with the exception if a request could not be served. None: a RuntimeWarning.
    Requests for a tag are not served.

    Raises FailedPreconditionError: the program serves requests already. Raises UnavailableError
    without a daemon; InvalidArgumentError: `segments` without `client`, or the reverse.
    """
    global _served  # pylint: disable=global-statement
    if (client is None) != (segments is None):
        raise InvalidArgumentError("pass `client` and `segments`, or neither of them")
    first = Pool.default(0)  # with it the process has the session of its default pools
    with _serving:
        if _served is not None:
            raise FailedPreconditionError("the program serves requests already: close() the result "
                                          "of the first serve()")
        turns = _served = Turns(wait, swappable, failed)
        _turns.joined.append(turns.cover_pool)
        if client is not None and segments is not None:
            _turns.others.append(_Segments(client, segments))
    try:
        for pool in [first, *Pool.defaults().values(), *_turns.offered()]:
            turns.cover_pool(pool)
        if client is not None:
            turns.cover(client.handle)
    except BaseException:
        turns.close()
        raise
    return turns


def _after_fork_in_child() -> None:
    # Its watches are the parent's.
    global _served, _serving  # pylint: disable=global-statement
    if _served is not None:
        _served.renew()
    _served = None
    _serving = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
