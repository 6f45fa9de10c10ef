# SPDX-License-Identifier: Apache-2.0
"""The arrays of a file, as its header describes them."""
from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Callable, ContextManager, Dict, Iterator, Optional, Tuple

MAX_ARRAY_NAME = 1024  # bytes


@dataclass(frozen=True)
class FileArray:
    """One array. Its bytes lie in the file at `offset`, unless `stream` opens them."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    nbytes: int
    strides: Optional[Tuple[int, ...]] = None  # in bytes; None: C order
    path: str = ""
    offset: int = 0  # in bytes
    stream: Optional[Callable[[], ContextManager[IO[bytes]]]] = None  # of compressed bytes

    @contextmanager
    def open(self, start: int) -> Iterator[IO[bytes]]:
        """Opens the array's bytes, from `start` on; 0 if they are a stream."""
        if self.stream is not None:
            with self.stream() as file:
                yield file
            return
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset + start)
            yield file


@dataclass(frozen=True)
class Contents:
    """The arrays of files by name, and metadata to publish with them (JSON)."""

    arrays: Dict[str, FileArray] = field(default_factory=dict)
    metadata: Any = None


def is_array_name(name: str) -> bool:
    """True if an array of a publication can have this name: it has no control characters."""
    return 0 < len(name.encode("utf-8", "surrogatepass")) <= MAX_ARRAY_NAME and not any(
        ord(each) < 32 or 0x7f <= ord(each) < 0xa0 or 0xd800 <= ord(each) < 0xe000 for each in name)
