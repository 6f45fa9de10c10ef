# SPDX-License-Identifier: Apache-2.0
"""Arrays over brokered memory, which NumPy, CuPy, Numba and PyTorch use without a copy."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from . import _cuda, _dtypes, _gpumem
from ._array import Array, is_dense
from ._place import (DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, Place, Placed, nowhere)
from ._shapes import (MAX_DIMENSIONS, Shape, c_strides, check_alignment, extent, to_offset, to_shape,
                      to_strides)
from .errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["Array", "DL_CPU", "DL_CUDA", "DL_CUDA_HOST", "DL_CUDA_MANAGED", "MAX_DIMENSIONS",
           "Place", "Placed", "Shape", "asarray", "c_strides", "check_alignment", "copy_into",
           "extent", "framework_of", "from_dlpack", "is_dense", "nowhere", "to_offset", "to_shape",
           "to_strides"]


def from_dlpack(source: Any, *, stream: Optional[int] = None) -> Array:
    """Returns the memory of another library's array, or of a DLPack capsule, as an Array. No copy
    is made; the other library keeps the memory until the Array and all views of it are gone.

    `stream` is the cudaStream_t on which it will be used; None is the legacy default stream. Raises
    InvalidArgumentError for elements of an unknown type, and the other library's errors.
    """
    capsule = source
    ready_on = stream
    if hasattr(source, "__dlpack__"):
        gpu = source.__dlpack_device__()[0] in (DL_CUDA, DL_CUDA_MANAGED)
        arguments = {"stream": 1 if stream is None else stream} if gpu else {}
        # Users of other streams must wait for the stream that is passed there.
        ready_on = (0 if stream in (None, 1) else stream) if gpu and stream != -1 else None
        try:
            capsule = source.__dlpack__(max_version=(1, 1), **arguments)
        except TypeError:  # an older protocol
            capsule = source.__dlpack__(**arguments)
    (keep, pointer, device_type, device_id, code, bits, lanes, shape, steps,
     readonly) = _gpumem.dlpack_import(capsule)
    dtype = _dtypes.of_dlpack(code, bits, lanes)
    strides = None if steps is None else [step * dtype.itemsize for step in steps]
    return Array(keep, pointer, shape, dtype, strides=strides, readonly=readonly,
                 place=_foreign((device_type, device_id)), stream=ready_on)


def _foreign(device: Tuple[int, int]) -> Place:
    on_gpu = device[0] in (DL_CUDA, DL_CUDA_MANAGED)
    return Place(device=_cuda.uuid_of(device[1]) if on_gpu else "",
                 backend="cuda" if on_gpu else "host", kind="foreign", dlpack=device)


def _from_interface(source: Any, interface: Dict[str, Any], device: Tuple[int, int]) -> Array:
    if interface.get("mask") is not None or (interface.get("descr") or [("", "")])[0][0]:
        raise InvalidArgumentError("arrays with masks or named fields are not supported")
    data = interface["data"]
    if isinstance(data, tuple):
        pointer, readonly = data
        return Array(None, pointer or 0, interface["shape"], interface["typestr"],
                     strides=interface.get("strides"), readonly=readonly, place=_foreign(device),
                     stream=interface.get("stream"), base=source)
    # Else it is an object with a buffer, in which the array begins at "offset".
    pointer, nbytes, readonly, base = _exported(memoryview(data))
    offset = to_offset(interface.get("offset") or 0)
    dtype = _dtypes.parse(interface["typestr"])
    shape = to_shape(interface["shape"], dtype.itemsize)
    strides = to_strides(interface.get("strides"), shape, dtype.itemsize)
    low, high = extent(shape, strides, dtype.itemsize)
    if offset < 0 or offset + low < 0 or offset + high > nbytes:
        raise InvalidArgumentError(f"the array reaches beyond the {nbytes} bytes of its buffer")
    return Array(None, pointer + offset, shape, dtype, strides=strides, readonly=readonly,
                 place=_foreign(device), base=base)


def _exported(view: memoryview) -> Tuple[int, int, bool, Any]:
    """Returns (address, bytes, True if read-only, the object that keeps the memory)."""
    readonly = view.readonly
    if readonly or not view.c_contiguous:
        # ctypes gives no address of read-only memory: a copy is needed here.
        view = memoryview(bytearray(view.tobytes()))
    exported = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(exported), view.nbytes, readonly, exported


def _from_buffer(source: Any) -> Array:
    view = memoryview(source)
    dtype = _dtypes.of_format(view.format, view.itemsize)
    pointer, nbytes, readonly, base = _exported(view)
    shape = (nbytes // dtype.itemsize,) if view.shape is None else view.shape
    return Array(None, pointer, shape, dtype, place=_foreign((DL_CPU, 0)), readonly=readonly,
                 base=base)


def framework_of(source: Any) -> str:
    """Returns the name of the library that an object's type comes from: "numpy", "torch", "cupy",
    "gpumem", …; "python" for built-in types."""
    found = type(source).__module__.split(".")[0]
    return "python" if found == "builtins" else found


def asarray(source: Any) -> Array:
    """Returns another library's array (NumPy, CuPy, PyTorch, Numba, or anything with the array
    interface, DLPack or the buffer protocol) as an Array of the same memory.

    Raises InvalidArgumentError for other objects, and for arrays that cannot be represented.
    """
    if isinstance(source, Array):
        return source
    if isinstance(source, _gpumem.Memory):
        made: Array = source.array()  # type: ignore[attr-defined]
        return made
    # A subclass of PyTorch's tensors may come from any library.
    of_torch = any(base.__module__.split(".")[0] == "torch" for base in type(source).__mro__)
    if of_torch and hasattr(source, "detach"):  # a parameter's memory without its history
        source = source.detach()
    if not of_torch:
        interface = getattr(source, "__cuda_array_interface__", None)
        if interface is not None:
            pointer = interface["data"][0]  # 0 of no elements
            ordinal = _cuda.ordinal_of_pointer(pointer) if pointer else 0
            return _from_interface(source, interface, (DL_CUDA, ordinal))
        interface = getattr(source, "__array_interface__", None)
        if interface is not None and interface.get("data") is not None:
            return _from_interface(source, interface, (DL_CPU, 0))
    if hasattr(source, "__dlpack__"):
        return from_dlpack(source)
    try:
        return _from_buffer(source)
    except TypeError:
        raise InvalidArgumentError(
            f"{type(source).__name__} is not an array: it has neither the array interface, nor "
            "DLPack, nor a buffer") from None


def copy_into(to: Array, source: Array) -> None:
    """Copies the elements; shapes and types must be equal. `to` is in C order, unless both have the
    same layout. Blocks until done.

    Raises InvalidArgumentError if they differ, or if a GPU's elements are not dense.
    """
    if to.shape != source.shape or to.itemsize != source.itemsize:
        raise InvalidArgumentError(
            f"{source.dtype}{list(source.shape)} does not fit into {to.dtype}{list(to.shape)}")
    if to.readonly:
        raise FailedPreconditionError("the destination was opened read-only")
    if source.size == 0:
        return
    same = to.strides == source.strides
    whole = (same and is_dense(source)) or (to.c_contiguous and source.c_contiguous)
    if source.place.on_host and to.place.on_host:
        _copy_on_host(to, source, whole)
        return
    if not whole and source.place.on_host and to.c_contiguous:
        gathered = asarray(bytearray(source.nbytes)).view_as(source)
        _copy_on_host(gathered, source, False)
        source, whole = gathered, True
    if not whole:
        raise InvalidArgumentError(
            "the elements are not contiguous in the GPU's memory: make a contiguous copy first")
    low, high = extent(source.shape, source.strides, source.itemsize)
    gpu = (to if not to.place.on_host else source).place.dlpack_device()[1]
    other = source.place.dlpack_device()[1] if not source.place.on_host else gpu
    if other != gpu:
        _cuda.synchronize(other)  # its work may still be writing the source
    _cuda.copy(gpu, to.ptr + low, source.ptr + low, high - low)


def _copy_on_host(to: Array, source: Array, whole: bool) -> None:
    if whole:
        low, high = extent(source.shape, source.strides, source.itemsize)
        ctypes.memmove(to.ptr + low, source.ptr + low, high - low)
        return
    _copy_runs(to.ptr, to.strides, source.ptr, source.strides, source.shape, source.itemsize,
               ctypes.memmove)


def _copy_runs(to: int, to_strides: Sequence[int], source: int, strides: Sequence[int],
               shape: Sequence[int], itemsize: int, move: Callable[[int, int, int], Any]) -> None:
    """Copies dimension by dimension, in the longest contiguous runs."""
    if not shape:
        move(to, source, itemsize)
    elif (tuple(strides) == c_strides(shape, itemsize) and
          tuple(to_strides) == c_strides(shape, itemsize)):
        count = itemsize
        for size in shape:
            count *= size
        move(to, source, count)
    else:
        for i in range(shape[0]):
            _copy_runs(to + i * to_strides[0], to_strides[1:], source + i * strides[0],
                       strides[1:], shape[1:], itemsize, move)
