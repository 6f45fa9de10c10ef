# SPDX-License-Identifier: Apache-2.0
"""The arrays that a publication's metadata lists. It is untrusted: no array may reach beyond its
segment. The format is described in publication.py."""
from __future__ import annotations

import contextlib
import gc
import json
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from . import _dtypes
from ._shapes import check_alignment, extent, to_shape, to_strides

FORMAT = "gpumem-arrays/1"
FILES_FORMAT = "gpumem-files/1"


class Row(NamedTuple):
    """An array's description, checked."""

    dtype: _dtypes.DType
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]  # bytes; None: in C order
    segment: Optional[int]  # None: it has no elements
    offset: int  # in the segment, bytes
    framework: str


class Listing(NamedTuple):
    """What the metadata says."""

    rows: Dict[str, Row]  # by name
    single: bool  # one array was published, without a name
    metadata: Any  # the publisher's addition


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Pauses Python's cyclic garbage collection while a publication's arrays are made. Thousands of
    new objects cause collections that find none of them, and take longer than making them: in a
    process with PyTorch some 0.2 s."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.collect(0)  # else the number of new objects starts a full collection at once
            gc.enable()


def read(blob: bytes, sizes: Sequence[int]) -> Listing:
    """Returns the arrays in the metadata of a publication whose segments have these sizes (bytes);
    none if it was not published as arrays or files.

    Raises KeyError, TypeError, ValueError (of InvalidArgumentError, too), IndexError,
    AttributeError or OverflowError if it is not well-formed.
    """
    try:
        said = json.loads(blob)
    except (ValueError, RecursionError):
        return Listing({}, False, None)
    form = said.get("format") if isinstance(said, dict) else None
    if form == FORMAT:
        listed = [(row["name"], row) for row in said["arrays"]]
    elif form == FILES_FORMAT:
        listed = [(row["name"], {"dtype": "uint8", "shape": [row["bytes"]], "strides": None,
                                 "segment": index if row["bytes"] else None, "offset": 0,
                                 "framework": ""}) for index, row in enumerate(said["files"])]
    else:
        return Listing({}, False, None)
    for name, _ in listed:
        _of_type(name, str, "an array's name")
    checks = _Checks(sizes)
    rows = {name: checks.row(row) for name, row in listed}
    if len(rows) != len(listed):
        raise ValueError("two arrays have the same name")
    if form == FILES_FORMAT:
        return Listing(rows, False, None)
    single = _of_type(said["single"], bool, "\"single\"")
    if single and list(rows) != [""]:
        raise ValueError("\"single\" is true, but there is not one array without a name")
    return Listing(rows, single, said.get("metadata"))


def _of_type(value: Any, kind: type, what: str) -> Any:
    """Returns `value` if it is of that type, else raises; a bool is no int."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{what} must be {kind.__name__}, not {type(value).__name__}")
    return value


class _Form(NamedTuple):
    """The part of a description that thousands of arrays have in common."""

    dtype: _dtypes.DType
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    low: int  # of the array's first byte, from its offset
    high: int  # behind its last byte


class _Checks:
    """Checks descriptions. Equal forms are checked once: a model has few."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._in_c_order: Dict[Tuple[Any, ...], _Form] = {}

    def row(self, row: Dict[str, Any]) -> Row:
        """Returns the description, checked. Raises as read() does."""
        form = self._form(row["dtype"], row["shape"], row["strides"])
        segment, offset = row["segment"], _of_type(row["offset"], int, "an offset")
        if segment is not None:
            if not 0 <= _of_type(segment, int, "a segment") < len(self._sizes):
                raise ValueError(f"segment {segment} does not exist; there are {len(self._sizes)}")
            nbytes = self._sizes[segment]
            if not 0 <= offset <= nbytes or offset + form.low < 0 or offset + form.high > nbytes:
                raise ValueError(f"an array exceeds the {nbytes} bytes of its segment")
            if offset % form.dtype.alignment or row["strides"] is not None:
                check_alignment(offset, form.shape, form.strides, form.dtype)
        elif form.high > form.low:
            raise ValueError("an array with elements has no segment")
        return Row(form.dtype, form.shape, None if row["strides"] is None else form.strides,
                   segment, offset, _of_type(row["framework"], str, "a framework"))

    def _form(self, dtype: Any, shape: Any, strides: Any) -> _Form:
        key = None
        if strides is None and type(shape) is list and set(map(type, shape)) <= {int}:
            key = (_of_type(dtype, str, "a dtype"), *shape)
            known = self._in_c_order.get(key)
            if known is not None:
                return known
        found = _dtypes.parse(_of_type(dtype, str, "a dtype"))
        sizes = to_shape(_of_type(shape, list, "a shape"), found.itemsize)
        steps = to_strides(strides, sizes, found.itemsize)
        made = _Form(found, sizes, steps, *extent(sizes, steps, found.itemsize))
        if key is not None:
            self._in_c_order[key] = made
        return made
