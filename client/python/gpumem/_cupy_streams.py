# SPDX-License-Identifier: Apache-2.0
"""CuPy's current stream, and how long streams live, for gpumem.cupy."""
from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Dict, List

import cupy  # type: ignore[import]

from .errors import Error
from .pool import Pool

_LEGACY_AND_PER_THREAD = (0, 1, 2)  # CUDA's built-in streams


def _current_stream() -> int:
    return int(cupy.cuda.get_current_stream().ptr)


def stream_question() -> Any:
    """Returns the C function that Cython exports for CuPy's own modules, or its equivalent in
    Python."""
    try:
        stream = importlib.import_module("cupy_backends.cuda.stream")
    except ImportError:
        return _current_stream
    exported = getattr(stream, "__pyx_capi__", {}).get("get_current_stream_ptr")
    return _current_stream if exported is None else exported


class Streams:
    """Keeps CuPy's streams as long as memory of theirs lives."""

    def __init__(self, pool_of: Callable[[], Pool]) -> None:
        self._pool_of = pool_of
        self._kept: Dict[int, Any] = {}

    def __call__(self, pointer: int, idle: List[int]) -> List[int]:
        """Called when CuPy uses a new stream. Forgets the idle streams without other references,
        and returns them."""
        forgotten = []
        for other in idle:
            stream = self._kept.get(other)
            # References of the dict, of this function, and of the call below.
            if stream is None or sys.getrefcount(stream) > 3:
                continue
            try:
                self._pool_of().forget_stream(other)
            except Error:  # it is being captured, for one: another time
                continue
            del self._kept[other]
            forgotten.append(other)
        if pointer not in _LEGACY_AND_PER_THREAD:
            self._kept[pointer] = cupy.cuda.get_current_stream()
        return forgotten
