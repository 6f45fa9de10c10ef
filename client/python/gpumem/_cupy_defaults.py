# SPDX-License-Identifier: Apache-2.0
"""CuPy's default pools and its CUPY_GPU_MEMORY_LIMIT, for gpumem.cupy."""
from __future__ import annotations

import os
import warnings
import weakref
from typing import Any, Optional, Tuple

import cupy  # type: ignore[import]

from . import _gpumem
from .pool import Pool

# CuPy's module variables, which get_default_memory_pool() and
# get_default_pinned_memory_pool() return.
_DEVICE, _PINNED = "_default_memory_pool", "_default_pinned_memory_pool"
_own_device_pool = cupy.get_default_memory_pool()
_own_pinned_pool = cupy.get_default_pinned_memory_pool()
_has_warned = False
_asked: "weakref.WeakSet[Pool]" = weakref.WeakSet()  # by honour_limit()


def _set(variable: str, pool: Any) -> None:
    """Makes CuPy's function return the pool. Warns once if this CuPy has no such variable."""
    global _has_warned  # pylint: disable=global-statement
    if hasattr(cupy, variable):
        setattr(cupy, variable, pool)
    elif not _has_warned:
        _has_warned = True
        warnings.warn(
            f"gpumem.cupy: cupy.get{variable}() of CuPy {cupy.__version__} still returns CuPy's "
            "pool, whose figures and limit do not count brokered memory: ask the pool that "
            "gpumem.cupy.use() returns", RuntimeWarning, stacklevel=4)


def replace(device_pool: Any, pinned_pool: Any = None) -> None:
    """Makes CuPy allocate by the pools, and return them as its default pools. None: CuPy's own."""
    device = _own_device_pool if device_pool is None else device_pool
    cupy.cuda.set_allocator(device.malloc)
    _set(_DEVICE, device)
    if pinned_pool is not None:
        cupy.cuda.set_pinned_memory_allocator(pinned_pool.malloc)
        _set(_PINNED, pinned_pool)


def restore() -> None:
    """Makes CuPy allocate by the default pools that it had at first."""
    replace(None, _own_pinned_pool)


def limit_of_environment() -> Optional[Tuple[Optional[int], Optional[float]]]:
    """Returns CUPY_GPU_MEMORY_LIMIT as (bytes, None) or (None, fraction); None if it is not set, or
    0. Raises ValueError, as CuPy does."""
    text = os.environ.get("CUPY_GPU_MEMORY_LIMIT", "").strip()
    if not text:
        return None
    if text.endswith("%"):
        fraction = float(text[:-1]) / 100
        if not 0 <= fraction <= 1:
            raise ValueError(f"CUPY_GPU_MEMORY_LIMIT: {text} is no percentage of a device")
        return (None, fraction) if fraction > 0 else None
    size = int(text)
    if size < 0:
        raise ValueError(f"CUPY_GPU_MEMORY_LIMIT: {text} bytes are no limit")
    return (size, None) if size > 0 else None


def honour_limit(pool: Optional[Pool]) -> None:
    """Gives a pool the limit of CUPY_GPU_MEMORY_LIMIT, unless it has a limit. None: the default
    pool of CuPy's current device, and those that are made later (by GPUMEM_POOL_LIMIT, which
    children inherit). A percentage is one of the tenant's limit on the device. Raises ValueError.
    """
    limit = limit_of_environment()
    if limit is None:
        return
    size, fraction = limit
    if pool is None:
        if not os.environ.get("GPUMEM_POOL_LIMIT"):
            # In gpumem's spelling, which has no "+" and no "_" in numbers.
            os.environ["GPUMEM_POOL_LIMIT"] = (
                str(size) if fraction is None else f"{fraction * 100:.12f}%")
        pool = Pool.default(cupy.cuda.runtime.getDevice())
    elif pool in _asked:
        return  # its limit may have been lifted meanwhile
    else:
        _asked.add(pool)
    if pool.limit is not None:
        return
    if fraction is not None:
        _gpumem.pool_set_limit_fraction(pool.handle, fraction)
    elif size is not None:
        _gpumem.pool_set_limit(pool.handle, size)
