# SPDX-License-Identifier: Apache-2.0
"""Array: elements in brokered memory, or in another library's."""
from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

from . import _cuda, _dtypes, _gpumem
from ._place import DL_CUDA, Place, Placed
from ._shapes import check_alignment, extent, to_shape, to_strides
from .errors import InvalidArgumentError, OutOfRangeError


class Array(Placed, _gpumem.Memory):
    """An array in memory that gpumem, or a library that speaks DLPack, keeps.

    It has no arithmetic. `numpy.asarray(array)`, `cupy.asarray(array)`, `torch.from_dlpack(array)`
    and `numba.cuda.as_cuda_array(array)` see the same memory, without a copy. They keep it alive,
    as does each Array, memoryview and DLPack capsule.

    shape, strides (in bytes), dtype ("float32"), itemsize (bytes), ndim, size (elements), nbytes,
    ptr, readonly, on_host, device (a UUID), backend, kind. `owner` is the Segment, Block or
    Publication that contains the memory, or None; `offset` is the array's start in it (bytes).
    `stream` is the stream to wait for before the memory is used; None if there is none, for example
    if gpumem itself made the array.
    """

    def __init__(self, keep: Optional[_gpumem.Handle], pointer: int, shape: Sequence[int],
                 dtype: Any, *, place: Place, strides: Optional[Sequence[int]] = None,
                 readonly: bool = False, owner: Any = None, offset: int = 0,
                 segment: int = 0, stream: Optional[int] = None, base: Any = None) -> None:
        self._dtype = _dtypes.parse(dtype)
        self.shape = to_shape(shape, self._dtype.itemsize)
        self.strides = to_strides(strides, self.shape, self._dtype.itemsize)
        self.size = 1
        for size in self.shape:
            self.size *= size
        self.place = place
        self.owner = owner
        self.offset = offset
        self.segment_index = segment  # of a publication: in which of its segments
        self.stream = stream
        self._keep = keep
        self._base = base  # of memory that another library's object keeps
        super().__init__(keep, pointer, self.size * self._dtype.itemsize, readonly,
                         place.on_host, True, self._dtype.format, self._dtype.itemsize,
                         self.shape, self.strides)

    # ---- Properties

    @property
    def dtype(self) -> str:
        """The element type: "float32"; a type without such a name, as a typestr ("<M8[ns]")."""
        return self._dtype.name

    @property
    def dtype_object(self) -> _dtypes.DType:
        """The complete description of the type."""
        return self._dtype

    @property
    def typestr(self) -> Optional[str]:
        """The type for the array interface; None if that cannot express it (bfloat16)."""
        return self._dtype.typestr

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._dtype.itemsize

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def segment(self) -> Any:
        """The Segment that contains it, or None."""
        from .segment import Segment  # pylint: disable=import-outside-toplevel
        return self.owner if isinstance(self.owner, Segment) else None

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return (f"<gpumem.Array {self.dtype}{list(self.shape)} at {self.ptr:#x} on "
                f"{self.device or self.place.backend}>")

    # ---- Other arrays of the same memory

    def _like(self, **changes: Any) -> "Array":
        made: Dict[str, Any] = {
            "pointer": self.ptr, "shape": self.shape, "dtype": self._dtype, "place": self.place,
            "strides": self.strides, "readonly": self.readonly, "owner": self.owner,
            "offset": self.offset, "segment": self.segment_index, "stream": self.stream,
            "base": self._base}
        made.update(changes)
        return Array(self._keep, **made)

    def reshape(self, *shape: Any) -> "Array":
        """Returns the same elements in another shape, without a copy; -1 is computed from the rest.

        Raises InvalidArgumentError for another number of elements, or if they are not contiguous.
        """
        sizes = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        if -1 in sizes:
            known = 1
            for size in sizes:
                known *= 1 if size == -1 else size
            sizes[sizes.index(-1)] = self.size // known if known else 0
        count = 1
        for size in to_shape(sizes):
            count *= size
        if count != self.size:
            raise InvalidArgumentError(
                f"an array of {self.size} elements cannot have the shape {tuple(sizes)}")
        if not self.c_contiguous:
            raise InvalidArgumentError(
                "the elements are not contiguous in C order: copy the array first")
        return self._like(shape=sizes, strides=None)

    def view(self, dtype: Any) -> "Array":
        """Returns the same bytes as elements of another type of the same size."""
        return self._like(dtype=self._viewed_as(dtype))

    def _viewed_as(self, dtype: Any) -> _dtypes.DType:
        """Returns the type, checked for view()."""
        found = _dtypes.parse(dtype)
        if found.itemsize != self.itemsize:
            raise InvalidArgumentError(
                f"{found.name} has {found.itemsize} bytes, but the elements of {self.dtype} have "
                f"{self.itemsize}: a view needs a type of the same size")
        check_alignment(self.ptr, self.shape, self.strides, found)
        return found

    def view_as(self, other: "Array") -> "Array":
        """Returns the same bytes, as many as `other` has, with its shape and dtype, in C order."""
        if not self.c_contiguous or self.nbytes != other.nbytes:
            raise InvalidArgumentError(
                f"the array must have {other.nbytes} bytes in C order; it has {self.nbytes}, "
                f"{'' if self.c_contiguous else 'not '}in C order")
        return self._like(shape=other.shape, dtype=other.dtype_object, strides=None)

    def with_strides(self, strides: Sequence[int]) -> "Array":
        """Returns the same bytes in another order of dimensions; it must use all (is_dense)."""
        made = self._like(strides=strides)
        if not self.c_contiguous or not is_dense(made) or (
                extent(made.shape, made.strides, made.itemsize)[0] != 0):
            raise InvalidArgumentError(
                f"strides {tuple(strides)} do not cover each of the array's {self.nbytes} bytes once")
        return made

    def narrow(self, dim: int, start: int, length: int) -> "Array":
        """Returns `length` of the elements of a dimension, from `start` on: the same memory.

        Raises OutOfRangeError if there are no such elements.
        """
        if not 0 <= dim < self.ndim or start < 0 or length < 0 or start + length > self.shape[dim]:
            raise OutOfRangeError(f"an array of the shape {self.shape} has no {length} elements from "
                                  f"{start} on in dimension {dim}")
        step = start * self.strides[dim] if length else 0
        sizes = (*self.shape[:dim], length, *self.shape[dim + 1:])
        return self._like(pointer=self.ptr + step, shape=sizes, strides=self.strides,
                          offset=self.offset + step)

    def on_stream(self, stream: Optional[int]) -> "Array":
        """Returns the same memory, to be used after waiting for `stream` (a cudaStream_t)."""
        return self._like(stream=stream)

    def without_readonly_mark(self, dtype: Any = None) -> "Array":
        """Returns the same memory for frameworks without read-only arrays (PyTorch), and as a view()
        of a dtype if one is given. A write to it still faults: it is mapped read-only."""
        found = self._dtype if dtype is None else self._viewed_as(dtype)
        return self._like(readonly=False, dtype=found)

    # ---- Protocols

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if not self.place.on_host:
            raise AttributeError(
                "the array is in a GPU's memory, which has no __array_interface__")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if not self.place.on_gpu:
            raise AttributeError(
                "GPUs cannot use this memory: it has no __cuda_array_interface__")
        interface = self._interface()
        # 0 is not allowed, since it could mean either default stream; 1 is the legacy one.
        interface["stream"] = 1 if self.stream == 0 else self.stream
        return interface

    def _interface(self) -> Dict[str, Any]:
        if self.typestr is None:
            raise AttributeError(
                f"the array interface has no type for {self.dtype}: use DLPack")
        # The interface requires pointer 0 for an array without elements.
        return {"shape": self.shape, "typestr": self.typestr,
                "data": (self.ptr if self.size else 0, self.readonly),
                "strides": None if self.c_contiguous else self.strides, "version": 3}

    def __array__(self, *_: Any, **__: Any) -> Any:
        # NumPy tries this last; without the error it would make an array of one object.
        raise TypeError(f"NumPy has no type for {self.dtype}: use view() with a type that NumPy has"
                        if self.place.on_host else
                        "NumPy cannot use a GPU's memory: copy the array to the CPU first")

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.place.dlpack_device()

    def __dlpack__(self, *, stream: Optional[int] = None,
                   max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        """Returns a DLPack capsule of this memory. Raises BufferError if the consumer asks for a
        copy, for another device, or by a version that cannot express read-only memory."""
        device = self.place.dlpack_device()
        if copy:
            raise BufferError(
                "gpumem exports memory without a copy: make a copy with gpumem.copy()")
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(
                f"the memory is on device {device}, not on {tuple(dl_device)}: copy it to that")
        if self._dtype.code is None:
            raise BufferError(
                f"DLPack has no type for {self.dtype}: use view() with a type that it has")
        versioned = max_version is not None and max_version[0] >= 1
        if self.readonly and not versioned:
            raise BufferError("the memory is read-only, but the consumer uses a version of DLPack "
                              "that cannot express that: pass array.without_readonly_mark()")
        if device[0] == DL_CUDA and self.stream is not None and stream != -1:
            _cuda.order(device[1], self.stream, 0 if stream in (None, 1) else int(stream or 0))
        return _gpumem.dlpack_export(self, *device, self._dtype.code, 8 * self.itemsize, versioned)


def is_dense(array: Array) -> bool:
    """True if the elements have no gaps in some order of the dimensions, each once."""
    expected = array.itemsize
    for stride, size in sorted(zip(array.strides, array.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
