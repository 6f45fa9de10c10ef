# SPDX-License-Identifier: Apache-2.0
"""CuPy's current stream, and how long streams live, for gpumem.cupy."""
from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

import cupy  # type: ignore[import]

from . import _gpumem
from .errors import Error
from .pool import Pool

_BUILT_IN = (0, 1, 2)  # CUDA's legacy and per-thread streams


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
    """Keeps CuPy's streams as long as memory of theirs lives. The extension drops it with the last
    block of its allocator.

    pool: the allocator's; None: the default pool of each device.
    """

    def __init__(self, pool: Optional[Pool]) -> None:
        self._kept: Dict[int, Tuple[Any, int]] = {}  # the stream, and its device
        self._pool = None if pool is None else pool.handle

    def __call__(self, pointer: int, idle: List[int]) -> List[int]:
        """Called when CuPy uses a new stream. Forgets the idle streams without other references,
        and returns them."""
        forgotten = []
        for other in idle:
            kept = self._kept.get(other)
            if kept is None:
                if other not in _BUILT_IN:
                    # Borrowed: its owner, who tells the pool, may have destroyed it.
                    forgotten.append(other)
                continue
            # References of the tuple and of the call.
            if sys.getrefcount(kept[0]) > 2 or not self._forget(other, kept[1]):
                continue
            if self._kept.get(other) is kept:  # else another thread uses it again
                del self._kept[other]
            forgotten.append(other)
        stream = cupy.cuda.get_current_stream()
        if pointer not in _BUILT_IN and not isinstance(stream, cupy.cuda.ExternalStream):
            self._kept[pointer] = (stream, cupy.cuda.runtime.getDevice())
        return forgotten

    def _forget(self, stream: int, device: int) -> bool:
        """Makes the pool forget the stream. False if it cannot yet: the stream is being captured,
        for example."""
        try:
            pool = _gpumem.pool_default(device) if self._pool is None else self._pool
            _gpumem.pool_forget_stream(pool, stream)
        except Error:
            return False
        return True

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The pool may live on, and must not ask about a stream that is destroyed. At the
        # interpreter's end CuPy destroys none.
        if not is_finalizing():
            for pointer, (_, device) in self._kept.items():
                self._forget(pointer, device)
