# SPDX-License-Identifier: Apache-2.0
"""Notices of the daemon to a session."""
from __future__ import annotations

import atexit
import math
import os
import queue
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

from . import _gpumem
from ._units import to_limit, to_seconds
from .errors import FailedPreconditionError

if TYPE_CHECKING:
    from .client import Client


@dataclass(frozen=True)
class Quota:
    """A tenant's limits; None: no limit set for it. Bytes but for counts."""

    limit: Optional[int]  # on any one GPU
    total_limit: Optional[int]  # over all GPUs
    pinned_limit: Optional[int]
    guarantee: int  # 0: none
    max_segments: Optional[int]
    max_sessions: Optional[int]
    max_in_flight: Optional[int]
    max_waiting: Optional[int]
    priority: int
    revocable: bool  # all of its leases are
    parent: str  # the tenant whose quota includes it; "": none


@dataclass(frozen=True)
class Notice:
    """One notice of the daemon. `what` is one of:
    - "segments_lost" (lease_ids)
    - "draining" (value: whether it is)
    - "pressure" (device, "": any; bytes that would be enough; seconds that it helps, 0: unknown)
    - "revocation" (lease_ids; seconds until the end)
    - "quota_changed" (quota)
    - "ended" (value: the status; message)"""

    what: str
    lease_ids: Tuple[int, ...] = ()
    device: str = ""
    bytes: int = 0
    seconds: float = 0
    value: int = 0
    message: str = ""
    quota: Optional[Quota] = None


def _to_notice(what: str, *said: Any) -> Notice:
    if what == "segments_lost":
        return Notice(what, lease_ids=said[0])
    if what == "draining":
        return Notice(what, value=int(said[0]))
    if what == "pressure":
        return Notice(what, device=said[0], bytes=said[1], seconds=to_seconds(said[2]))
    if what == "revocation":
        return Notice(what, lease_ids=said[0], seconds=to_seconds(said[1]))
    if what == "quota_changed":
        quota = Quota(to_limit(said[0]), to_limit(said[1]), to_limit(said[2]), said[3],
                      to_limit(said[4]), to_limit(said[5]), to_limit(said[6]), to_limit(said[7]),
                      said[8], said[9], said[10])
        return Notice(what, quota=quota)
    return Notice(what, value=said[0], message=said[1])


# Closed at the interpreter's end: a library thread that calls into it then would end the process.
# For other parts of the package.
open_watches: "weakref.WeakSet[Any]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for watch in list(open_watches):
        watch.close()


# After fork(), the watches are the parent's.
os.register_at_fork(after_in_child=open_watches.clear)


class Watch:
    """Listens from its creation until close() or the end of a `with` block. The first notice is the
    present quota.

    Each keyword is the name of a notice, or `any`; its value is a function that is called with the
    notice, in a thread of the watch. The function must not take long. get() returns notices without
    a function.
    """

    def __init__(self, client: "Client", **handlers: Callable[[Notice], Any]) -> None:
        known = {"segments_lost", "draining", "pressure", "revocation", "quota_changed", "ended",
                 "any"}
        if not known.issuperset(handlers):
            raise TypeError(f"unknown notices {', '.join(sorted(set(handlers) - known))}: use "
                            f"{', '.join(sorted(known))}")
        self._notices: "queue.SimpleQueue[Optional[Notice]]" = queue.SimpleQueue()
        self._handle = _gpumem.watch_start(client.handle, _teller(self._notices, dict(handlers)))
        open_watches.add(self)

    def get(self, timeout: float = math.inf) -> Notice:
        """Returns the next notice without a function. Raises TimeoutError after `timeout` seconds,
        and FailedPreconditionError once it is closed, also by another thread."""
        try:
            notice = self._notices.get(timeout=None if math.isinf(timeout) else timeout)
        except queue.Empty:
            raise TimeoutError(f"no notice of the daemon within {timeout} s") from None
        if notice is None:
            self._notices.put(None)  # for the next call
            raise FailedPreconditionError("the watch is closed")
        return notice

    @property
    def closed(self) -> bool:
        """True if it was closed."""
        return self._handle.closed

    def close(self) -> None:
        """Ends the watch. Blocks until a running function has returned, unless that function calls
        this."""
        self._handle.close()
        self._notices.put(None)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _teller(notices: "queue.SimpleQueue[Optional[Notice]]",
            handlers: Dict[str, Callable[[Notice], Any]]) -> Callable[..., None]:
    """Returns the function that the extension calls. It does not refer to the Watch, whose end ends
    it."""

    def tell(what: str, *said: Any) -> None:
        notice = _to_notice(what, *said)
        handler = handlers.get(what) or handlers.get("any")
        if handler is None:
            notices.put(notice)
        else:
            handler(notice)

    return tell
