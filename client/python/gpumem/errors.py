"""What goes wrong, as exceptions: one class for each status of the daemon, below gpumem.Error.

Each is also the built-in exception that says the same, where there is one: `except MemoryError`
catches a denied acquire, `except TimeoutError` a deadline, `except ConnectionError` a daemon that
is not there.
"""
from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Dict, Optional, Tuple, Type

from . import _gpumem


class Cause(enum.IntEnum):
    """What stood in the way of a request (gpumem_cause of gpumem.h)."""

    UNKNOWN = 0
    DEVICE_LIMIT = 1
    TOTAL_LIMIT = 2
    CAPACITY = 3
    DRIVER = 4
    MAX_SEGMENTS = 5
    MAX_SESSIONS = 6
    MAX_IN_FLIGHT = 7
    DAEMON_LIMIT = 8
    MAX_WAITING = 9
    GUARANTEES = 10
    QUEUE = 11
    UNBROKERED = 12
    MAX_PUBLICATIONS = 13


@dataclass(frozen=True)
class Holder:
    """A tenant, and how much it holds of what is used."""

    tenant: str
    used: int


@dataclass(frozen=True)
class Denial:
    """Why a request was denied, as data. `asked`, `used` and `limit` are bytes for memory, else
    counts."""

    cause: Cause
    tenant: str
    device: str  # its UUID; "" where it is no device's
    asked: int
    used: int
    limit: int
    help: str  # what would help, in words
    limited_tenant: str  # whose limit it is, where that is not `tenant` but one that it is under
    holders: Tuple[Holder, ...]  # of what is used, the largest first; a few

    @property
    def requested(self) -> int:
        """The same as `asked`."""
        return self.asked


class Error(Exception):
    """Something that the daemon or the library refused. `status` is its number, `status_name` as
    in "NOT_FOUND"; str() is one sentence: what was wrong, and what would help."""

    status = 2
    status_name = "UNKNOWN"
    denial: Optional[Denial] = None

    @property
    def message(self) -> str:
        """The sentence."""
        return str(self.args[0]) if self.args else ""


class CancelledError(Error):
    """The call was cancelled; nothing is held."""


class InvalidArgumentError(Error, ValueError):
    """A wrong argument."""


class DeadlineExceededError(Error, TimeoutError):
    """The daemon did not answer in time, or what was waited for did not come."""


class NotFoundError(Error, LookupError):
    """There is no such device, publication, event or ticket."""


class AlreadyExistsError(Error):
    """The name is taken."""


class PermissionDeniedError(Error, PermissionError):
    """The daemon's rules do not allow it."""


class ResourceExhaustedError(Error, MemoryError):
    """Denied for want of memory or of a count; `denial` says by what."""


class FailedPreconditionError(Error):
    """Not now: closed, lost, in a child after fork(), or in use."""


class AbortedError(Error):
    """Somebody else came first."""


class OutOfRangeError(Error, IndexError):
    """There are not so many."""


class UnimplementedError(Error, NotImplementedError):
    """Not for this kind of memory, or not by this version."""


class InternalError(Error):
    """The driver's error, by its name, or one of gpumem's own."""


class UnavailableError(Error, ConnectionError):
    """The daemon is not there, goes, or does not know the session any more."""


class DataLossError(Error):
    """Something was lost."""


class UnauthenticatedError(Error):
    """The daemon does not know this process."""


class UnknownError(Error):
    """A status that says nothing."""


_CLASSES: Dict[int, Type[Error]] = {
    1: CancelledError,
    2: UnknownError,
    3: InvalidArgumentError,
    4: DeadlineExceededError,
    5: NotFoundError,
    6: AlreadyExistsError,
    7: PermissionDeniedError,
    8: ResourceExhaustedError,
    9: FailedPreconditionError,
    10: AbortedError,
    11: OutOfRangeError,
    12: UnimplementedError,
    13: InternalError,
    14: UnavailableError,
    15: DataLossError,
    16: UnauthenticatedError,
}
_NAMES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
          "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
          "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
          "UNAUTHENTICATED")
for _status, _class in _CLASSES.items():
    _class.status = _status
    _class.status_name = _NAMES[_status]

_DenialTuple = Tuple[int, str, str, int, int, int, str, str, Tuple[Tuple[str, int], ...]]


def _to_cause(number: int) -> Cause:
    try:
        return Cause(number)
    except ValueError:  # of a newer library
        return Cause.UNKNOWN


def _make(status: int, name: str, message: str, denial: Optional[_DenialTuple]) -> Error:
    """The exception for a status; called by the extension."""
    error = _CLASSES.get(status, Error)(message)
    if type(error) is Error:
        error.status, error.status_name = status, name
    if denial is not None:
        error.denial = Denial(_to_cause(denial[0]), *denial[1:8],
                              holders=tuple(Holder(*holder) for holder in denial[8]))
    return error


_gpumem.set_error_factory(_make)
