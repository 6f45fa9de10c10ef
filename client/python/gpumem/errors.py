# SPDX-License-Identifier: Apache-2.0
"""Errors as exceptions: one class for each status of the daemon, below gpumem.Error.

Each is also the built-in exception with the same meaning, if there is one. `except MemoryError`
catches a denied acquire, `except TimeoutError` a deadline, `except ConnectionError` an absent
daemon.
"""
from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Dict, Optional, Tuple, Type

from . import _gpumem


class Cause(enum.IntEnum):
    """The cause of a denial (gpumem_cause of gpumem.h)."""

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
    """A tenant, and how much of the used amount it holds."""

    tenant: str
    used: int


@dataclass(frozen=True)
class Denial:
    """The reason for a denial, as data. `asked`, `used` and `limit` are bytes for memory, else
    counts."""

    cause: Cause
    tenant: str
    device: str  # its UUID; "" if the cause is not about one device
    asked: int
    used: int
    limit: int
    help: str  # advice, in one sentence
    limited_tenant: str  # the parent of `tenant` with the limit; "": `tenant` itself
    holders: Tuple[Holder, ...]  # a few users of the memory, the largest first

    @property
    def requested(self) -> int:
        """The same as `asked`."""
        return self.asked


class Error(Exception):
    """A refusal by the daemon or the library. `status` is its number, `status_name` as in
    "NOT_FOUND". str() is one sentence: the error, and a remedy."""

    status = 2
    status_name = "UNKNOWN"
    denial: Optional[Denial] = None

    @property
    def message(self) -> str:
        """The error as a sentence."""
        return str(self.args[0]) if self.args else ""


class CancelledError(Error):
    """The call was cancelled; nothing is held."""


class InvalidArgumentError(Error, ValueError):
    """A wrong argument."""


class DeadlineExceededError(Error, TimeoutError):
    """The daemon did not answer in time, or the awaited event did not happen."""


class NotFoundError(Error, LookupError):
    """The device, publication, event or ticket does not exist."""


class AlreadyExistsError(Error):
    """The name is in use."""


class PermissionDeniedError(Error, PermissionError):
    """The daemon's rules do not allow it."""


class ResourceExhaustedError(Error, MemoryError):
    """Denied: there is no memory left, or a limit is reached. `denial` has the cause."""


class FailedPreconditionError(Error):
    """Not possible in the present state: closed, lost, in use, or in a child after fork()."""


class AbortedError(Error):
    """A concurrent operation ended this one, such as the end of the session."""


class OutOfRangeError(Error, IndexError):
    """Beyond the end of the memory, or beyond a count."""


class UnimplementedError(Error, NotImplementedError):
    """Not supported for this kind of memory, or by this version."""


class InternalError(Error):
    """An error of the driver, by its name, or of gpumem."""


class UnavailableError(Error, ConnectionError):
    """The daemon is absent, is stopping, or no longer knows the session."""


class DataLossError(Error):
    """Data was lost."""


class UnauthenticatedError(Error):
    """The daemon cannot identify this process."""


class UnknownError(Error):
    """An error without a more exact status."""


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
    """Returns the exception for a status; called by the extension."""
    error = _CLASSES.get(status, Error)(message)
    if type(error) is Error:
        error.status, error.status_name = status, name
    if denial is not None:
        error.denial = Denial(_to_cause(denial[0]), *denial[1:8],
                              holders=tuple(Holder(*holder) for holder in denial[8]))
    return error


_gpumem.set_error_factory(_make)


def of_status(status: int, message: str) -> Error:
    """Returns the exception for a status that a handler is told. For other parts of the package."""
    return _make(status, _NAMES[status] if status < len(_NAMES) else "", message, None)
