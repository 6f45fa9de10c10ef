# SPDX-License-Identifier: Apache-2.0
""".npy and .npz files of NumPy. Their headers are Python literals, which are never evaluated here:
a strict pattern finds the three entries that there are. Types of objects, which would need pickle,
and of records are refused.
"""
from __future__ import annotations

import os
import re
import zipfile
import zlib
from contextlib import contextmanager
from typing import IO, Dict, Iterator, NamedTuple, Optional, Tuple

from .. import _dtypes
from .._shapes import c_strides, to_shape
from ..errors import DataLossError, InvalidArgumentError
from .contents import Contents, FileArray, is_array_name

_MAGIC = b"\x93NUMPY"
_LARGEST_HEADER = 10000  # bytes, as in NumPy
_MOST_MEMBERS = 1 << 16
_ENTRY = (r"(?:['\"]descr['\"]\s*:\s*(?P<descr>'[^'\\]{1,64}'|\"[^\"\\]{1,64}\")"
          r"|['\"]fortran_order['\"]\s*:\s*(?P<fortran>True|False)"
          r"|['\"]shape['\"]\s*:\s*(?P<shape>\(\s*(?:\d{1,19}L?\s*,\s*)*(?:\d{1,19}L?\s*)?\)))")
_ENTRIES = re.compile(rf"\s*{_ENTRY}\s*(?:,|$)")


class Header(NamedTuple):
    """What a .npy file begins with."""

    dtype: str
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]  # in bytes; None: C order
    nbytes: int  # of the elements
    size: int  # of the header, in bytes


def read_header(file: IO[bytes]) -> Header:
    """Reads the header at the start of a .npy file. Raises InvalidArgumentError."""
    start = _read(file, 8)
    if start[:6] != _MAGIC or start[6] not in (1, 2, 3) or start[7] != 0:
        raise InvalidArgumentError("it is no .npy file of version 1.0, 2.0 or 3.0")
    counted = 2 if start[6] == 1 else 4
    length = int.from_bytes(_read(file, counted), "little")
    if length > _LARGEST_HEADER:
        raise InvalidArgumentError(f"its header has {length} bytes, more than {_LARGEST_HEADER}")
    text = _read(file, length).decode("utf-8" if start[6] == 3 else "latin-1", "replace").strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise InvalidArgumentError("its header is no dictionary")
    found: Dict[str, str] = {}
    rest = text[1:-1].strip()
    while rest:
        entry = _ENTRIES.match(rest)
        if entry is None:
            raise InvalidArgumentError(
                "its header has an entry that cannot be read: only plain types are supported")
        for key, value in entry.groupdict().items():
            if value is not None:
                if key in found:
                    raise InvalidArgumentError(f"its header has the entry {key} twice")
                found[key] = value
        rest = rest[entry.end():].strip()
    if len(found) != 3:
        raise InvalidArgumentError("its header lacks the type, the order or the shape")
    dtype = _dtypes.parse(found["descr"][1:-1])
    if dtype.typestr is None or dtype.typestr != found["descr"][1:-1].replace("=", "<"):
        raise InvalidArgumentError(f"its type {found['descr']} is none of NumPy's typestrs")
    shape = to_shape([int(size) for size in re.findall(r"\d+", found["shape"])], dtype.itemsize)
    nbytes = dtype.itemsize
    for size in shape:
        nbytes *= size
    strides = None
    if found["fortran"] == "True" and len(shape) > 1:
        strides = c_strides(shape[::-1], dtype.itemsize)[::-1]
    return Header(dtype.name, shape, strides, nbytes, 8 + counted + length)


def _read(file: IO[bytes], count: int) -> bytes:
    said = file.read(count)
    if len(said) != count:
        raise InvalidArgumentError("it ends in its header")
    return said


def parse_npy(path: str) -> Contents:
    """Returns the array of a .npy file; its name is that of the file. Raises InvalidArgumentError."""
    name = os.path.basename(path)[:-len(".npy")]
    with open(path, "rb") as file:
        header = read_header(file)
        left = os.fstat(file.fileno()).st_size - header.size
    if left != header.nbytes:
        raise InvalidArgumentError(f"it has {left} bytes of elements, but its header says "
                                   f"{header.nbytes}")
    return Contents({name: FileArray(_checked(name), header.dtype, header.shape, header.nbytes,
                                     header.strides, path, header.size)})


def _checked(name: str) -> str:
    if not is_array_name(name):
        raise InvalidArgumentError(f"an array cannot have the name {name[:80]!r}")
    return name


def parse_npz(path: str) -> Contents:
    """Returns the arrays of a .npz file. Raises InvalidArgumentError."""
    found: Dict[str, FileArray] = {}
    try:
        archive = zipfile.ZipFile(path)  # pylint: disable=consider-using-with
        if len(archive.infolist()) > _MOST_MEMBERS:
            raise InvalidArgumentError(f"it has more than {_MOST_MEMBERS} members")
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                raise InvalidArgumentError(f"its member {member.filename[:80]!r} is no .npy file")
            name = _checked(member.filename[:-len(".npy")])
            if name in found:
                raise InvalidArgumentError(f"two arrays have the name {name!r}")
            with archive.open(member) as file:
                header = read_header(file)
            if member.file_size != header.size + header.nbytes:
                raise InvalidArgumentError(
                    f"{name} has {member.file_size} bytes, but its header says "
                    f"{header.size + header.nbytes}")

            @contextmanager
            def stream(member: zipfile.ZipInfo = member, skip: int = header.size
                       ) -> Iterator[IO[bytes]]:
                try:
                    with archive.open(member) as file:
                        _read(file, skip)
                        yield file
                except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                    raise DataLossError(f"{path}: {member.filename}: {error}") from error

            found[name] = FileArray(name, header.dtype, header.shape, header.nbytes, header.strides,
                                    path, stream=stream)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError,
            ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"it is no .npz file: {error}") from error
    return Contents(found)
