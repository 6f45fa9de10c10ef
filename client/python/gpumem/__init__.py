# SPDX-License-Identifier: Apache-2.0
"""gpumem: GPU memory that a node's daemon owns and several processes share.

    import gpumem
    client = gpumem.connect()
    segment = client.acquire(64 << 20)         # 64 MiB on the first device that serves
    ticket = segment.share()                   # pickle it, or pass on ticket.value
    same = client.open(ticket)                 # elsewhere: the same memory, no copy

    weights = gpumem.empty((1024, 1024), "float32")
    gpumem.publish("weights", {"w": weights})  # outlives this process
    w = gpumem.attach("weights")["w"]          # in another: numpy.asarray(w), torch.from_dlpack(w)

Functions of this module that take no client use one client for the whole process
(default_client()). Sizes are bytes, times seconds. Errors are subclasses of gpumem.Error; see
gpumem.errors. Importing it needs no GPU, driver, NumPy or daemon.
"""
from __future__ import annotations

import os as _os
import threading as _threading
from typing import Any, Optional, Union

from . import _gpumem, _installed, aio, errors
from ._waiting import CancelToken
from .arrays import Array, asarray, from_dlpack
from .claim import Claim
from .client import Client, connect
from .errors import (AbortedError, AlreadyExistsError, CancelledError, Cause, DataLossError,
                     DeadlineExceededError, Denial, Error, FailedPreconditionError, Holder,
                     InternalError, InvalidArgumentError, NotFoundError, OutOfRangeError,
                     PermissionDeniedError, ResourceExhaustedError, UnauthenticatedError,
                     UnavailableError, UnimplementedError, UnknownError)
from .event import Event
from .files import PublishedFiles, content_id
from .pool import Pool, PoolStats
from .publication import Publication, PublicationInfo
from .segment import Block, Layout, Segment, Ticket
from .serving import Serving
from .usage import Device, DeviceQuota, DeviceUsage, MadeTenant, Peer, TenantRemains, Usage
from .watch import Notice, Quota, Watch

__version__ = _gpumem.__version__

_installed.check(_os.path.dirname(_os.path.dirname(_os.path.abspath(__file__))))

__all__ = [
    "AbortedError", "AlreadyExistsError", "Array", "Block", "CancelToken", "CancelledError",
    "Cause", "Claim", "Client", "DataLossError", "DeadlineExceededError", "Denial", "Device",
    "DeviceQuota", "DeviceUsage", "Error", "Event", "FailedPreconditionError", "Holder",
    "InternalError", "InvalidArgumentError", "Layout", "MadeTenant", "NotFoundError", "Notice",
    "OutOfRangeError", "Peer", "PermissionDeniedError", "Pool", "PoolStats", "Publication",
    "PublicationInfo", "PublishedFiles", "Quota", "ResourceExhaustedError", "Segment",
    "Serving", "TenantRemains", "Ticket", "UnauthenticatedError", "UnavailableError",
    "UnimplementedError", "UnknownError", "Usage", "Watch", "aio", "asarray", "attach",
    "attach_or_claim", "connect", "content_id", "copy", "default_client", "empty", "errors",
    "from_dlpack", "library_path", "open", "publish", "set_default_client", "share", "unpublish",
]

_lock = _threading.Lock()
_default: Optional[Client] = None


def default_client() -> Client:
    """Returns the process's client, connected at the first call. Raises as connect()."""
    global _default  # pylint: disable=global-statement
    with _lock:
        if _default is None or _default.closed:
            _default = connect()
        return _default


def set_default_client(client: Optional[Client]) -> None:
    """Sets the client that this module's functions use; None: a new one."""
    global _default  # pylint: disable=global-statement
    with _lock:
        _default = client


def empty(shape: Any, dtype: Any = "float32", **options: Any) -> Array:
    """Returns an array in brokered memory: Client.empty()."""
    return default_client().empty(shape, dtype, **options)


def copy(source: Any, **options: Any) -> Array:
    """Returns a copy of any library's array in brokered memory: Client.copy()."""
    return default_client().copy(source, **options)


def share(array: Any, scope: str = "tenant") -> Ticket:
    """Returns a picklable ticket that opens the array elsewhere: Client.share()."""
    return default_client().share(array, scope)


def open(ticket: Union[Ticket, str],  # pylint: disable=redefined-builtin
         **options: Any) -> Any:
    """Opens a ticket's memory in this process: Client.open()."""
    return default_client().open(ticket, **options)


def publish(name: str, value: Any, **options: Any) -> int:
    """Publishes an array, or arrays by name, and returns the version: Client.publish()."""
    return default_client().publish(name, value, **options)


def attach(name: str, **options: Any) -> Any:
    """Returns the published value: an Array, or a dict of them. They keep the publication attached;
    Client.attach() returns the publication itself."""
    return default_client().attach(name, **options).value


def attach_or_claim(name: str, content_id: bytes, **options: Any) -> Union[Publication, Claim]:
    """Attaches to contents, or claims them to load them: Client.attach_or_claim()."""
    return default_client().attach_or_claim(name, content_id, **options)


def unpublish(name: str) -> int:
    """Ends a publication: Client.unpublish()."""
    return default_client().unpublish(name)


def library_path() -> str:
    """Returns the path of the libgpumem.so that this package uses, for programs that load it."""
    return _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "lib", "libgpumem.so.1")


def _after_fork_in_child() -> None:
    # Threads and locks of the parent do not exist here.
    global _lock, _default  # pylint: disable=global-statement
    _lock = _threading.Lock()
    _default = None


_os.register_at_fork(after_in_child=_after_fork_in_child)
