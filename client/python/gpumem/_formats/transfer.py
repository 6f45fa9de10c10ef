# SPDX-License-Identifier: Apache-2.0
"""Copies of files' arrays in new memory, made by several threads."""
from __future__ import annotations

import concurrent.futures
import ctypes
import os
import threading
from typing import IO, TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple

from .. import _cuda
from ..arrays import Array
from ..errors import AbortedError
from .contents import FileArray

if TYPE_CHECKING:
    from ..client import Client

_ALIGNMENT = 512  # bytes
_SEGMENT = 1 << 30  # bytes, from which on arrays go to the next segment
_PIECE = 64 << 20  # bytes that a thread copies at a time
_BUFFER = 16 << 20  # bytes, of a thread that copies to a GPU
_THREADS = 8


class _Progress:
    def __init__(self, told: Optional[Callable[[int, int], object]], total: int) -> None:
        self._told, self._total, self._done = told, total, 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._told is not None:
                self._told(self._done, self._total)


def copy_to_memory(client: "Client", files: Sequence[FileArray], device: Optional[str],
                   kind: Optional[str],
                   progress: Optional[Callable[[int, int], object]]) -> Dict[str, Array]:
    """Returns copies of the arrays by name, which keep their segments.

    `progress` is called in several threads, one at a time; what it raises ends the work. Raises
    ResourceExhaustedError; AbortedError: a file is shorter than it was; DataLossError; OSError.
    """
    made = {file.name: array for file, array in _placed(client, files, device, kind)}
    pieces: List[Tuple[FileArray, int, int]] = []
    for file in files:
        step = _PIECE if file.stream is None else max(file.nbytes, 1)
        pieces += [(file, at, min(step, file.nbytes - at)) for at in range(0, file.nbytes, step)]
    told = _Progress(progress, sum(file.nbytes for file in files))
    threads = max(1, min(_THREADS, os.cpu_count() or 1, len(pieces)))
    with concurrent.futures.ThreadPoolExecutor(threads) as executor:
        running = [executor.submit(_copy, file, at, nbytes, made[file.name], told)
                   for file, at, nbytes in pieces]
        try:
            for one in concurrent.futures.as_completed(running):
                one.result()
        except BaseException:
            for one in running:
                one.cancel()
            raise
    return made


def _placed(client: "Client", files: Sequence[FileArray], device: Optional[str],
            kind: Optional[str]) -> List[Tuple[FileArray, Array]]:
    groups: List[Tuple[int, List[Tuple[FileArray, int]]]] = []  # bytes, and arrays at their offsets
    used = _SEGMENT
    for file in files:
        if used >= _SEGMENT:
            groups.append((0, []))
            used = 0
        offset = -(-used // _ALIGNMENT) * _ALIGNMENT if file.nbytes else 0
        groups[-1][1].append((file, offset))
        used = offset + file.nbytes if file.nbytes else used
        groups[-1] = (used, groups[-1][1])
    made = []
    for nbytes, group in groups:
        segment = client.acquire(max(nbytes, 1), kind=kind, device=device)
        made += [(file, segment.array(file.shape, file.dtype, offset=offset, strides=file.strides))
                 for file, offset in group]
    return made


def _copy(file: FileArray, start: int, nbytes: int, array: Array, told: _Progress) -> None:
    """Copies bytes of a file's array, from `start` on."""
    # The bytes in their order, whatever the order of the dimensions.
    flat = array.segment.array((file.nbytes,), "uint8", offset=array.offset)
    on_host = flat.place.on_host
    if on_host:
        target = memoryview(flat)
    else:
        buffer = (ctypes.c_char * min(_BUFFER, nbytes))()
        target = memoryview(buffer).cast("B")
    with file.open(start) as source:
        done = 0
        while done < nbytes:
            count = min(_BUFFER, nbytes - done)
            at = start + done if on_host else 0
            _read(source, target[at:at + count], file)
            if not on_host:
                _cuda.copy(flat.place.dlpack_device()[1], flat.ptr + start + done,
                           ctypes.addressof(buffer), count)
            done += count
            told.add(count)


def _read(source: IO[bytes], target: memoryview, file: FileArray) -> None:
    done = 0
    while done < len(target):
        count = source.readinto(target[done:])  # type: ignore[attr-defined]
        if not count:
            raise AbortedError(f"{file.path} became shorter while it was read")
        done += count
