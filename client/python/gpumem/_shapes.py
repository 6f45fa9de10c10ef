# SPDX-License-Identifier: Apache-2.0
"""Shapes, strides and offsets of arrays, checked."""
from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Set
from typing import Any, Sequence, Tuple, Union

from . import _dtypes
from .errors import InvalidArgumentError

Shape = Union[int, Sequence[int]]

# The most that all consumers support; NumPy 1 keeps no more on its stack.
MAX_DIMENSIONS = 32
_MOST = (1 << 63) - 1  # of a Py_ssize_t, in which sizes and strides are kept


def _numbers(given: Any, what: str) -> Tuple[int, ...]:
    """Returns whole numbers, one for each dimension. `given` is untrusted: no more of it is read
    than an array may have."""
    if isinstance(given, (str, bytes, bytearray, Mapping, Set)):
        raise InvalidArgumentError(
            f"{what} must be a sequence of integers, not {type(given).__name__}")
    try:
        taken = tuple(itertools.islice(iter(given), MAX_DIMENSIONS + 1))
        if len(taken) > MAX_DIMENSIONS:
            raise InvalidArgumentError(f"an array can have at most {MAX_DIMENSIONS} dimensions")
        if any(isinstance(number, bool) for number in taken):
            raise TypeError("bool")
        return tuple(operator.index(number) for number in taken)
    except TypeError as error:
        raise InvalidArgumentError(f"{what} must be a sequence of integers: {error}") from error


def to_shape(shape: Any, itemsize: int = 1) -> Tuple[int, ...]:
    """Returns a tuple of sizes; a single number makes one dimension.

    Raises InvalidArgumentError for other types, for too many dimensions, and if the array (were no
    size 0) would be larger than any memory.
    """
    single = hasattr(shape, "__index__") and not hasattr(shape, "__len__")
    sizes = _numbers((shape,) if single else shape, "a shape")
    nbytes = itemsize
    for size in sizes:
        if not 0 <= size <= _MOST:
            raise InvalidArgumentError(
                f"invalid shape {sizes}: each size must be from 0 to {_MOST}")
        nbytes *= max(size, 1)
    if nbytes > _MOST:
        raise InvalidArgumentError(
            f"an array of the shape {sizes} has more than {_MOST} bytes")
    return sizes


def to_strides(strides: Any, shape: Tuple[int, ...], itemsize: int) -> Tuple[int, ...]:
    """Returns strides in bytes for a shape of to_shape(); None: in C order.

    Raises InvalidArgumentError for another number of strides, or if they exceed the address space.
    """
    if strides is None:
        return c_strides(shape, itemsize)
    steps = _numbers(strides, "strides")
    if len(steps) != len(shape):
        raise InvalidArgumentError(
            f"an array of {len(shape)} dimensions needs {len(shape)} strides, not {len(steps)}")
    low, high = extent(shape, steps, itemsize)
    if low < -_MOST or high > _MOST or any(not -_MOST <= step <= _MOST for step in steps):
        raise InvalidArgumentError(f"strides {steps} exceed the address space")
    return steps


def to_offset(offset: Any) -> int:
    """Returns a whole number of bytes. Raises InvalidArgumentError."""
    try:
        return operator.index(offset)
    except TypeError as error:
        raise InvalidArgumentError(f"an offset must be an integer: {error}") from error


def c_strides(shape: Sequence[int], itemsize: int) -> Tuple[int, ...]:
    """Returns strides in bytes in C order: the last index runs fastest, without gaps."""
    strides = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def extent(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Tuple[int, int]:
    """Returns the addresses of an array's first byte and of the one behind its last."""
    low, high = 0, itemsize
    for size, stride in zip(shape, strides):
        if size == 0:
            return (0, 0)
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return (low, high)


def check_alignment(offset: int, shape: Sequence[int], strides: Sequence[int],
                    dtype: _dtypes.DType) -> None:
    """Requires alignment of an array's address, or of its offset in a segment or block (these are
    aligned). A kernel that reads unaligned data faults, and ends its process's use of the GPU.

    Raises InvalidArgumentError.
    """
    if any(size == 0 for size in shape):
        return
    steps = [stride for size, stride in zip(shape, strides) if size > 1]
    if any(number % dtype.alignment for number in [offset] + steps):
        raise InvalidArgumentError(
            f"{dtype.name}{list(shape)} at byte {offset} with strides {list(strides)} is not aligned: "
            f"offset and strides must be multiples of {dtype.alignment} bytes")
