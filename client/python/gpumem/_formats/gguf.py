# SPDX-License-Identifier: Apache-2.0
"""GGUF files, of version 2 and 3 (https://github.com/ggml-org/ggml, docs/gguf.md).

A tensor of plain numbers becomes an array of them. A tensor of quantised blocks becomes an array of
bytes, whose last dimension holds whole blocks. The metadata has the type of each tensor as GGUF
names it ("Q4_K"), and its number of elements in each dimension. Files are untrusted: sizes, counts
and places are checked against the file before anything is taken.
"""
from __future__ import annotations

import json
import math
import os
import struct
from typing import IO, Any, Dict, List, NamedTuple, Optional, Tuple

from ..errors import InvalidArgumentError
from .contents import Contents, FileArray, is_array_name

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_LARGEST_HEADER = 256 << 20  # bytes
_MOST_TENSORS = 1 << 16
_MOST_KEYS = 1 << 16
_LONGEST_KEY = 65535  # bytes
_DEEPEST = 4  # of arrays in arrays
_MOST_DIMENSIONS = 4
# Keys of short values are kept, for readers of the publication.
_LONGEST_KEPT, _MOST_KEPT = 1024, 64  # bytes of a text, elements of an array
_KEPT_BYTES = 64 << 10  # of all, as JSON

# By GGUF's number: its name, the elements and the bytes of a block, and our name if a block is one
# plain element. Q8_1 (9) is only of calculations, and never in files.
_TYPES: Dict[int, Tuple[str, int, int, Optional[str]]] = {
    0: ("F32", 1, 4, "float32"), 1: ("F16", 1, 2, "float16"), 2: ("Q4_0", 32, 18, None),
    3: ("Q4_1", 32, 20, None), 6: ("Q5_0", 32, 22, None), 7: ("Q5_1", 32, 24, None),
    8: ("Q8_0", 32, 34, None), 10: ("Q2_K", 256, 84, None), 11: ("Q3_K", 256, 110, None),
    12: ("Q4_K", 256, 144, None), 13: ("Q5_K", 256, 176, None), 14: ("Q6_K", 256, 210, None),
    15: ("Q8_K", 256, 292, None), 16: ("IQ2_XXS", 256, 66, None),
    17: ("IQ2_XS", 256, 74, None), 18: ("IQ3_XXS", 256, 98, None), 19: ("IQ1_S", 256, 50, None),
    20: ("IQ4_NL", 32, 18, None), 21: ("IQ3_S", 256, 110, None), 22: ("IQ2_S", 256, 82, None),
    23: ("IQ4_XS", 256, 136, None), 24: ("I8", 1, 1, "int8"), 25: ("I16", 1, 2, "int16"),
    26: ("I32", 1, 4, "int32"), 27: ("I64", 1, 8, "int64"), 28: ("F64", 1, 8, "float64"),
    29: ("IQ1_M", 256, 56, None), 30: ("BF16", 1, 2, "bfloat16"), 34: ("TQ1_0", 256, 54, None),
    35: ("TQ2_0", 256, 66, None), 39: ("MXFP4", 32, 17, None)}
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q",
            11: "<q", 12: "<d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9


class _Tensor(NamedTuple):
    name: str
    sizes: Tuple[int, ...]  # as in the file: the first is that of adjacent elements
    type: int
    offset: int  # from the start of the data
    nbytes: int


class _Reader:
    """Reads a header's values, and never past its end."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self.at = 0
        self.size = min(size, _LARGEST_HEADER)

    def bytes(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise InvalidArgumentError("it ends in its header, or its header is too long")
        said = self._file.read(count)
        if len(said) != count:
            raise InvalidArgumentError("it ends in its header")
        self.at += count
        return said

    def skip(self, count: int) -> None:
        if count > self.size - self.at:
            raise InvalidArgumentError("it ends in its header, or its header is too long")
        self._file.seek(count, os.SEEK_CUR)
        self.at += count

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))[0]

    def count(self, most: int, what: str) -> int:
        found: int = self.number("<Q")
        if found > most:
            raise InvalidArgumentError(f"it says that it has {found} {what}, more than {most}")
        return found

    def text(self, longest: int) -> str:
        length: int = self.number("<Q")
        if length > longest:
            raise InvalidArgumentError(f"a text in its header has {length} bytes")
        try:
            return self.bytes(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"a text in its header is no UTF-8: {error}") from error

    def value(self, kind: int, depth: int = 0) -> Any:
        """Returns a key's value; None if it is too long to be kept, or no JSON."""
        if kind in _SCALARS:
            found = self.number(_SCALARS[kind])
            if kind == _BOOL:
                if found > 1:
                    raise InvalidArgumentError(f"a truth value in its header is {found}")
                return bool(found)
            return found if not isinstance(found, float) or math.isfinite(found) else None
        if kind == _STRING:
            length: int = self.number("<Q")
            if length <= _LONGEST_KEPT:
                return self.bytes(length).decode("utf-8", "replace")
            self.skip(length)
            return None
        if kind != _ARRAY or depth == _DEEPEST:
            raise InvalidArgumentError(f"its header has a value of the unknown type {kind}")
        inner: int = self.number("<I")
        count: int = self.number("<Q")
        if inner in _SCALARS and count > _MOST_KEPT:
            self.skip(count * struct.calcsize(_SCALARS[inner]))
            return None
        # Each has 8 bytes at least, or is one of few: the file bounds the work.
        if count > (self.size - self.at) // (8 if inner in (_STRING, _ARRAY) else 1):
            raise InvalidArgumentError("it ends in its header, or its header is too long")
        kept: Optional[List[Any]] = [] if count <= _MOST_KEPT else None
        for _ in range(count):
            found = self.value(inner, depth + 1)
            if kept is not None:
                kept.append(found)
        return kept


def _read_tensor(reader: _Reader, data_bytes: int) -> _Tensor:
    name = reader.text(_LONGEST_KEY)
    if not is_array_name(name):
        raise InvalidArgumentError(f"a tensor cannot have the name {name[:80]!r}")
    dimensions: int = reader.number("<I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise InvalidArgumentError(f"{name} has {dimensions} dimensions")
    sizes = tuple(reader.number("<Q") for _ in range(dimensions))
    kind: int = reader.number("<I")
    offset: int = reader.number("<Q")
    if kind not in _TYPES:
        raise InvalidArgumentError(f"{name} is of the unknown type {kind}")
    label, elements, nbytes, _ = _TYPES[kind]
    if sizes[0] % elements:
        raise InvalidArgumentError(f"{name} of {label} has rows of {sizes[0]} elements, no multiple "
                                   f"of {elements}")
    nbytes *= sizes[0] // elements
    for size in sizes[1:]:
        nbytes *= size
    if 0 in sizes or max(sizes) > data_bytes * elements or nbytes > data_bytes:
        raise InvalidArgumentError(f"{name} has the sizes {sizes}, which are not those of any tensor "
                                   "in this file")
    return _Tensor(name, sizes, kind, offset, nbytes)


def parse(file: IO[bytes], size: int, path: str = "") -> Contents:
    """Returns the tensors of a GGUF file of `size` bytes. Raises InvalidArgumentError."""
    reader = _Reader(file, size)
    if reader.bytes(4) != _MAGIC:
        raise InvalidArgumentError("it is no GGUF file")
    version: int = reader.number("<I")
    if version not in _VERSIONS:
        raise InvalidArgumentError(f"its version is {version}, and supported are 2 and 3, in "
                                   "little-endian order")
    tensors = reader.count(_MOST_TENSORS, "tensors")
    keys: Dict[str, Any] = {}
    for _ in range(reader.count(_MOST_KEYS, "keys")):
        key = reader.text(_LONGEST_KEY)
        if key in keys:
            raise InvalidArgumentError(f"its header has the key {key[:80]!r} twice")
        keys[key] = reader.value(reader.number("<I"))
    alignment = keys.get("general.alignment", 32)
    if (not isinstance(alignment, int) or isinstance(alignment, bool)
            or alignment not in [1 << shift for shift in range(3, 21)]):
        raise InvalidArgumentError(f"its alignment is {alignment!r}")
    found = [_read_tensor(reader, size) for _ in range(tensors)]
    start = -(-reader.at // alignment) * alignment
    _check_places(found, alignment, size - start)
    return _contents(found, keys, path, start)


def _check_places(tensors: List[_Tensor], alignment: int, data_bytes: int) -> None:
    if not tensors:
        raise InvalidArgumentError("it has no tensors")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise InvalidArgumentError("two of its tensors have the same name")
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset % alignment or tensor.offset < end:
            raise InvalidArgumentError(f"{tensor.name} overlaps another tensor, or is not aligned")
        end = tensor.offset + tensor.nbytes
        if end > data_bytes:
            raise InvalidArgumentError(f"{tensor.name} reaches beyond the end of the file")


def _contents(tensors: List[_Tensor], keys: Dict[str, Any], path: str, start: int) -> Contents:
    arrays = {}
    for tensor in tensors:
        _, elements, block, plain = _TYPES[tensor.type]
        sizes = tensor.sizes if plain else (tensor.sizes[0] // elements * block, *tensor.sizes[1:])
        arrays[tensor.name] = FileArray(tensor.name, plain or "uint8", sizes[::-1], tensor.nbytes,
                                        path=path, offset=start + tensor.offset)
    kept: Dict[str, Any] = {}
    room = _KEPT_BYTES
    for key, value in keys.items():
        room -= len(json.dumps([key, value])) if value is not None else 0
        if value is not None and room >= 0:
            kept[key] = value
    said = {"keys": kept,
            "tensors": {tensor.name: [_TYPES[tensor.type][0], list(tensor.sizes[::-1])]
                        for tensor in tensors}}
    return Contents(arrays, {"gguf": said})


def parse_gguf(path: str) -> Contents:
    """Returns the tensors of a GGUF file. Raises InvalidArgumentError."""
    with open(path, "rb") as file:
        return parse(file, os.fstat(file.fileno()).st_size, path)
