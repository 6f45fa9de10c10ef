# SPDX-License-Identifier: Apache-2.0
"""The types of elements, as the array interface, the buffer protocol and DLPack name them."""
from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import dataclass
from typing import Any, Dict, Optional

from .errors import InvalidArgumentError

_LITTLE = "<" if sys.byteorder == "little" else ">"


@dataclass(frozen=True)
class DType:
    """One type of elements."""

    name: str  # "float32"; the typestr of a type without a name
    itemsize: int  # bytes
    typestr: Optional[str]  # of the array interface; None: it has none
    format: Optional[str]  # of the struct module, as buffers have it; None: none
    code: Optional[int]  # of DLPack; None: none

    @property
    def alignment(self) -> int:
        """Returns the alignment of an element's address, in bytes. A GPU reads up to 16 bytes at
        once, and only where they are aligned (CUDA C++ Programming Guide, "Size and Alignment
        Requirement"). It reads strings of bytes and raw bytes byte by byte, text character by
        character."""
        kind = None if self.typestr is None else self.typestr[1]
        return 1 if kind in ("S", "V") else 4 if kind == "U" else min(self.itemsize, 16)


# DLDataTypeCode of dlpack.h.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6


def _named() -> Dict[str, DType]:
    rows = [("bool", 1, "|b1", "?", _BOOL)]
    for size, signed, unsigned in ((1, "b", "B"), (2, "h", "H"), (4, "i", "I"), (8, "q", "Q")):
        order = _LITTLE if size > 1 else "|"
        rows.append((f"int{8 * size}", size, f"{order}i{size}", signed, _INT))
        rows.append((f"uint{8 * size}", size, f"{order}u{size}", unsigned, _UINT))
    for size, letter in ((2, "e"), (4, "f"), (8, "d")):
        rows.append((f"float{8 * size}", size, f"{_LITTLE}f{size}", letter, _FLOAT))
    for size, letter in ((8, "Zf"), (16, "Zd")):
        rows.append((f"complex{8 * size}", size, f"{_LITTLE}c{size}", letter, _COMPLEX))
    named = {row[0]: DType(*row) for row in rows}
    # NumPy has no names for these; DLPack 1.1 has.
    named["bfloat16"] = DType("bfloat16", 2, None, None, _BFLOAT)
    for name, code in (("float8_e3m4", 7), ("float8_e4m3", 8), ("float8_e4m3b11fnuz", 9),
                       ("float8_e4m3fn", 10), ("float8_e4m3fnuz", 11), ("float8_e5m2", 12),
                       ("float8_e5m2fnuz", 13), ("float8_e8m0fnu", 14)):
        named[name] = DType(name, 1, None, None, code)
    return named


NAMED = _named()
_BY_TYPESTR = {dtype.typestr: dtype for dtype in NAMED.values() if dtype.typestr is not None}
_BY_DLPACK = {(dtype.code, 8 * dtype.itemsize): dtype for dtype in NAMED.values()}
_ALIASES = {"half": "float16", "float": "float64", "double": "float64", "int": "int64",
            "complex": "complex128", "byte": "uint8"}
_TYPESTR = re.compile(r"([<>|=]?)([biufcmMSUV])(\d{1,10})"
                      r"(\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
# Element sizes of each kind, in bytes; of strings and raw bytes, any.
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8, 16), "c": (8, 16, 32),
          "m": (8,), "M": (8,)}
_LARGEST = (1 << 31) - 1  # of an element, in NumPy


def _of_typestr(text: str) -> Optional[DType]:
    found = _TYPESTR.fullmatch(text)
    if found is None:
        return None
    order, kind, digits, unit = found.groups()
    count = int(digits)
    if count not in _SIZES.get(kind, (count,)) or (unit is not None and kind not in "mM"):
        return None
    if kind in "SV" or count == 1 and kind in "biu":
        order = "|"
    elif order == "|":  # of several bytes there is one
        return None
    elif order in ("", "="):
        order = _LITTLE
    known = _BY_TYPESTR.get(f"{order}{kind}{count}")
    if known is not None:
        return known
    itemsize = 4 * count if kind == "U" else count
    if not 0 < itemsize <= _LARGEST:
        return None
    typestr = f"{order}{kind}{count}{unit or ''}"
    swapped = _BY_TYPESTR.get(f"{_LITTLE}{kind}{count}")
    letter = None if swapped is None or swapped.format is None else order + swapped.format
    return DType(typestr, itemsize, typestr, letter, None)


def parse(dtype: Any) -> DType:
    """Returns an element type by its name ("float32", "bfloat16"), its typestr ("<f4"), Python's
    type (float), or NumPy's, CuPy's or PyTorch's object for it.

    Raises InvalidArgumentError for an unknown type.
    """
    if isinstance(dtype, DType):
        return dtype
    typestr = ""
    if isinstance(dtype, type):
        # NumPy's scalar types, and bool, int, float, complex.
        name = dtype.__name__.rstrip("_")
    else:
        name = str(getattr(dtype, "name", None) or dtype)
        typestr = str(getattr(dtype, "str", ""))
    if name.startswith("torch."):
        name = name[len("torch."):]
    # NumPy's name omits the byte order. Its typestr describes types that others have added
    # (bfloat16) as raw bytes only.
    found = None if typestr[1:2] == "V" else _of_typestr(typestr)
    found = found or NAMED.get(_ALIASES.get(name, name)) or _of_typestr(name) or _of_typestr(typestr)
    if found is None or getattr(dtype, "names", None) is not None:
        raise InvalidArgumentError(
            f"unknown element type {dtype!r}: use one such as 'float32', 'bfloat16' or '<i8'")
    return found


# Native sizes ("@", as array.array has them) that differ from the standard ones.
_NATIVE = {"l": ctypes.sizeof(ctypes.c_long), "L": ctypes.sizeof(ctypes.c_long),
           "n": ctypes.sizeof(ctypes.c_ssize_t), "N": ctypes.sizeof(ctypes.c_size_t)}
_STANDARD = {"l": 4, "L": 4}
_BY_FORMAT = {dtype.format: dtype for dtype in NAMED.values() if dtype.format is not None}


def of_format(text: Optional[str], itemsize: int) -> DType:
    """Returns the type of a buffer's elements, by its format of the struct module; None is bytes.

    Raises InvalidArgumentError unless it is one number, bool or byte.
    """
    given = "B" if text is None else text
    order = given[:1] if given[:1] in ("@", "=", "<", ">", "!") else ""
    letter = given[len(order):]
    swapped = order in (">", "!") and _LITTLE == "<" or order == "<" and _LITTLE == ">"
    sizes = _NATIVE if order in ("", "@") else _STANDARD
    if letter == "c":
        found = _of_typestr("|S1")
    elif letter in sizes:
        signed = "i" if letter.islower() else "u"
        found = _of_typestr(f"{_LITTLE}{signed}{sizes[letter]}")
    else:
        found = _BY_FORMAT.get(letter)
    if found is not None and swapped and found.typestr is not None:
        found = _of_typestr({"<": ">", ">": "<"}.get(found.typestr[0], "|") + found.typestr[1:])
    if found is None or found.itemsize != itemsize:
        raise InvalidArgumentError(f"the buffer's elements have the unsupported format {given!r}: "
                                   "pass its bytes, with memoryview(buffer).cast('B')")
    return found


def of_dlpack(code: int, bits: int, lanes: int) -> DType:
    """Returns the type. Raises InvalidArgumentError if it is unknown."""
    found = _BY_DLPACK.get((code, bits))
    if found is None or lanes != 1:
        raise InvalidArgumentError(
            f"unsupported DLPack type: code {code}, {bits} bits, {lanes} lanes")
    return found
