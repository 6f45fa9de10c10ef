"""Arrays over brokered memory, which NumPy, CuPy, Numba and PyTorch use without a copy."""
from __future__ import annotations

import ctypes
import itertools
import operator
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from . import _cuda, _dtypes, _gpumem, _units
from .errors import FailedPreconditionError, InvalidArgumentError

Shape = Union[int, Sequence[int]]

# DLDeviceType of dlpack.h.
DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED = 1, 2, 3, 13


@dataclass(frozen=True)
class Place:
    """The location of memory."""

    device: str  # the device's UUID; "" where gpumem does not know it
    backend: str  # "cuda" or "host"
    kind: str  # one of _units.KINDS; "foreign" of other libraries
    registered: bool = False  # of pinned memory: whether GPUs can use it, too
    dlpack: Optional[Tuple[int, int]] = None  # of other libraries' memory: what they said

    @property
    def on_host(self) -> bool:
        """True if the CPU can use it."""
        if self.dlpack is not None:
            return self.dlpack[0] in (DL_CPU, DL_CUDA_HOST, DL_CUDA_MANAGED)
        return self.backend == "host" or self.kind in _units.HOST_KINDS

    @property
    def on_gpu(self) -> bool:
        """True if GPUs can use it."""
        if self.dlpack is not None:
            return self.dlpack[0] in (DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED)
        return self.backend == "cuda" and (self.kind not in _units.HOST_KINDS or self.registered)

    def dlpack_device(self) -> Tuple[int, int]:
        """(DLDeviceType, ordinal in this process)."""
        if self.dlpack is not None:
            return self.dlpack
        if not self.on_gpu:
            return (DL_CPU, 0)
        if self.kind in _units.HOST_KINDS:
            return (DL_CUDA_HOST, 0)
        return (DL_CUDA, _cuda.ordinal_of(self.device))


class Placed:
    """Base of everything with a location: arrays, segments, blocks and pools."""

    __slots__ = ()
    place: Place

    @property
    def device(self) -> str:
        """The UUID of its device; "" if gpumem does not know it."""
        return self.place.device

    @property
    def backend(self) -> str:
        """ "cuda" or "host"."""
        return self.place.backend

    @property
    def kind(self) -> str:
        """The name of its kind, such as "vmm"; "foreign" for another library's memory."""
        return self.place.kind


def nowhere() -> Place:
    """Returns the place of an array without elements, which needs no memory."""
    return Place("", "host", "vmm")


# The most that all consumers support; NumPy 1 keeps no more on its stack.
MAX_DIMENSIONS = 32
_MOST = (1 << 63) - 1  # of a Py_ssize_t, in which sizes and strides are kept


def _numbers(given: Any, what: str) -> Tuple[int, ...]:
    """Returns whole numbers, one for each dimension. `given` is untrusted: no more of it is read
    than an array may have."""
    if isinstance(given, (str, bytes, bytearray, Mapping, Set)):
        raise InvalidArgumentError(f"{what} is a sequence of whole numbers, no {type(given).__name__}")
    try:
        taken = tuple(itertools.islice(iter(given), MAX_DIMENSIONS + 1))
        if len(taken) > MAX_DIMENSIONS:
            raise InvalidArgumentError(f"an array has at most {MAX_DIMENSIONS} dimensions")
        if any(isinstance(number, bool) for number in taken):
            raise TypeError("bool")
        return tuple(operator.index(number) for number in taken)
    except TypeError as error:
        raise InvalidArgumentError(f"{what} is a sequence of whole numbers: {error}") from error


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
            raise InvalidArgumentError(f"no array has the shape {sizes}")
        nbytes *= max(size, 1)
    if nbytes > _MOST:
        raise InvalidArgumentError(f"no memory has room for an array of the shape {sizes}")
    return sizes


def to_strides(strides: Any, shape: Tuple[int, ...], itemsize: int) -> Tuple[int, ...]:
    """Returns strides in bytes for a shape of to_shape(); None: in C order.

    Raises InvalidArgumentError for another number of strides, or if they exceed the address space.
    """
    if strides is None:
        return c_strides(shape, itemsize)
    steps = _numbers(strides, "strides")
    if len(steps) != len(shape):
        raise InvalidArgumentError(f"{len(steps)} strides are none for {len(shape)} dimensions")
    low, high = extent(shape, steps, itemsize)
    if low < -_MOST or high > _MOST or any(not -_MOST <= step <= _MOST for step in steps):
        raise InvalidArgumentError(f"strides {steps} reach beyond every memory")
    return steps


def to_offset(offset: Any) -> int:
    """Returns a whole number of bytes. Raises InvalidArgumentError."""
    try:
        return operator.index(offset)
    except TypeError as error:
        raise InvalidArgumentError(f"an offset is a whole number of bytes: {error}") from error


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
            f"offset and strides have to be multiples of {dtype.alignment} bytes")


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
            raise TypeError("an array of no dimension has no length")
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
            raise InvalidArgumentError(f"{self.size} elements have no shape {tuple(sizes)}")
        if not self.c_contiguous:
            raise InvalidArgumentError("the elements do not lie one after another: copy them first")
        return self._like(shape=sizes, strides=None)

    def view(self, dtype: Any) -> "Array":
        """Returns the same bytes as elements of another type of the same size."""
        found = _dtypes.parse(dtype)
        if found.itemsize != self.itemsize:
            raise InvalidArgumentError(
                f"elements of {found.itemsize} bytes are no view of elements of {self.itemsize}")
        check_alignment(self.ptr, self.shape, self.strides, found)
        return self._like(dtype=found)

    def view_as(self, other: "Array") -> "Array":
        """Returns the same bytes, as many as `other` has, with its shape and dtype, in C order."""
        if not self.c_contiguous or self.nbytes != other.nbytes:
            raise InvalidArgumentError(f"{self.nbytes} bytes are no {other.nbytes} in C order")
        return self._like(shape=other.shape, dtype=other.dtype_object, strides=None)

    def with_strides(self, strides: Sequence[int]) -> "Array":
        """Returns the same bytes in another order of dimensions; it must use all (is_dense)."""
        made = self._like(strides=strides)
        if not self.c_contiguous or not is_dense(made) or (
                extent(made.shape, made.strides, made.itemsize)[0] != 0):
            raise InvalidArgumentError(f"strides {tuple(strides)} reach beyond the array")
        return made

    def on_stream(self, stream: Optional[int]) -> "Array":
        """Returns the same memory, to be used after waiting for `stream` (a cudaStream_t)."""
        return self._like(stream=stream)

    def without_readonly_mark(self) -> "Array":
        """Returns the same memory for frameworks without read-only arrays (PyTorch). A write to it
        still faults: it is mapped read-only."""
        return self._like(readonly=False)

    # ---- Protocols

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if not self.place.on_host:
            raise AttributeError("a GPU's memory has no __array_interface__")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if not self.place.on_gpu:
            raise AttributeError("ordinary memory has no __cuda_array_interface__")
        interface = self._interface()
        # 0 is not allowed, since it could mean either default stream; 1 is the legacy one.
        interface["stream"] = 1 if self.stream == 0 else self.stream
        return interface

    def _interface(self) -> Dict[str, Any]:
        if self.typestr is None:
            raise AttributeError(f"the array interface has no word for {self.dtype}: use DLPack")
        # The interface requires pointer 0 for an array without elements.
        return {"shape": self.shape, "typestr": self.typestr,
                "data": (self.ptr if self.size else 0, self.readonly),
                "strides": None if self.c_contiguous else self.strides, "version": 3}

    def __array__(self, *_: Any, **__: Any) -> Any:
        # NumPy tries this last; without the error it would make an array of one object.
        raise TypeError(f"NumPy has no word for {self.dtype}: view() it as one that it has"
                        if self.place.on_host else
                        "this is a GPU's memory, which NumPy cannot use: copy it to the CPU first")

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
            raise BufferError("gpumem hands out its memory itself: copy it with gpumem.copy()")
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"the memory is on device {device}, not on {tuple(dl_device)}")
        if self._dtype.code is None:
            raise BufferError(f"DLPack has no word for elements of {self.dtype}")
        versioned = max_version is not None and max_version[0] >= 1
        if self.readonly and not versioned:
            raise BufferError("the memory is read-only, which this consumer does not know of: give "
                              "it array.without_readonly_mark()")
        if device[0] == DL_CUDA and self.stream is not None and stream != -1:
            _cuda.order(device[1], self.stream, 0 if stream in (None, 1) else int(stream or 0))
        return _gpumem.dlpack_export(self, *device, self._dtype.code, 8 * self.itemsize, versioned)


# ---- Other libraries' arrays ---------------------------------------------------------------------


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
        raise InvalidArgumentError("arrays with masks or named fields have no place here")
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
            f"a {type(source).__name__} is no array: no array interface, DLPack or buffer") from None


def copy_into(to: Array, source: Array) -> None:
    """Copies the elements; shapes and types must be equal. `to` is in C order, unless both have the
    same layout. Blocks until done.

    Raises InvalidArgumentError if they differ, or if a GPU's elements are not dense.
    """
    if to.shape != source.shape or to.itemsize != source.itemsize:
        raise InvalidArgumentError(
            f"{source.dtype}{list(source.shape)} does not fit into {to.dtype}{list(to.shape)}")
    if to.readonly:
        raise FailedPreconditionError("the memory that is to be written was opened read-only")
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
            "the elements lie scattered in a GPU's memory: make the array contiguous first")
    low, high = extent(source.shape, source.strides, source.itemsize)
    gpu = (to if not to.place.on_host else source).place.dlpack_device()[1]
    other = source.place.dlpack_device()[1] if not source.place.on_host else gpu
    if other != gpu:
        _cuda.synchronize(other)  # its work may still be writing what is to be copied
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
