# SPDX-License-Identifier: Apache-2.0
"""Conversions between Python's seconds and None, and the C library's milliseconds and zeros.
"""
from __future__ import annotations

import math
from typing import Optional, Union

from . import _gpumem
from .errors import InvalidArgumentError

UNLIMITED = (1 << 64) - 1

# Names of enum gpumem_kind and gpumem_backend, by number; "" of kinds for the daemon alone.
KINDS = ("default",) + tuple(name for name, _ in _gpumem.kinds())
BACKENDS = ("cuda", "host")
# Kinds of host memory that is registered with CUDA.
HOST_KINDS = frozenset(name for name, registered in _gpumem.kinds() if registered)
# Both enum gpumem_scope and enum gpumem_publication_access.
SCOPES = {"tenant": 0, "any": 1}

DeviceLike = Union[str, int, None]


def to_ms(seconds: Optional[float]) -> int:
    """Returns milliseconds. None is the C library's default (0); math.inf is no limit. A time
    above 0 is at least one millisecond."""
    if seconds is None:
        return 0
    if math.isnan(seconds) or seconds < 0:
        raise InvalidArgumentError(f"invalid time {seconds}: it must be a number of seconds from 0")
    if math.isinf(seconds):
        return UNLIMITED
    return min(math.ceil(seconds * 1000), UNLIMITED - 1)


def to_seconds(milliseconds: int) -> float:
    """Returns seconds; without a limit, math.inf."""
    return math.inf if milliseconds == UNLIMITED else milliseconds / 1000


def to_kind(kind: Optional[str]) -> int:
    """Returns the number of a kind's name."""
    name = "default" if kind is None else kind
    if not name or name not in KINDS:
        known = ", ".join(filter(None, KINDS))
        raise InvalidArgumentError(f"unknown kind {kind!r}: use one of {known}")
    return KINDS.index(name)


def to_scope(scope: str) -> int:
    """Returns the number of "tenant" or "any"."""
    if scope not in SCOPES:
        raise InvalidArgumentError(f"{scope!r} is neither 'tenant' nor 'any'")
    return SCOPES[scope]


def to_device(device: DeviceLike) -> Optional[str]:
    """Returns a device's name: its UUID, PCI bus id, "most-free" or ordinal."""
    return None if device is None else str(device)


def to_limit(limit: int) -> Optional[int]:
    """Returns the limit; None: no limit."""
    return None if limit == UNLIMITED or limit < 0 else limit
