"""Arrays over brokered memory: what NumPy, CuPy, Numba and PyTorch see without a copy."""
from __future__ import annotations

import ctypes
import itertools
import operator
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from . import _cuda, _dtypes, _gpumem
from .errors import FailedPreconditionError, InvalidArgumentError

Shape = Union[int, Sequence[int]]

# DLDeviceType of dlpack.h.
DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED = 1, 2, 3, 13


@dataclass(frozen=True)
class Place:
    """Where memory is."""

    device: str  # the device's UUID; "" where gpumem does not know it
    backend: str  # "cuda" or "host"
    kind: str  # "vmm", "mempool", "ipc" or "pinned"; "foreign" of other libraries
    registered: bool = False  # of pinned memory: whether GPUs can use it, too
    dlpack: Optional[Tuple[int, int]] = None  # of other libraries' memory: what they said

    @property
    def on_host(self) -> bool:
        """Whether the CPU can use it."""
        if self.dlpack is not None:
            return self.dlpack[0] in (DL_CPU, DL_CUDA_HOST, DL_CUDA_MANAGED)
        return self.backend == "host" or self.kind == "pinned"

    @property
    def on_gpu(self) -> bool:
        """Whether GPUs can use it."""
        if self.dlpack is not None:
            return self.dlpack[0] in (DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED)
        return self.backend == "cuda" and (self.kind != "pinned" or self.registered)

    def dlpack_device(self) -> Tuple[int, int]:
        """(DLDeviceType, ordinal in this process)."""
        if self.dlpack is not None:
            return self.dlpack
        if not self.on_gpu:
            return (DL_CPU, 0)
        if self.kind == "pinned":
            return (DL_CUDA_HOST, 0)
        return (DL_CUDA, _cuda.ordinal_of(self.device))


class Placed:
    """What is somewhere: arrays, segments, blocks and pools."""

    __slots__ = ()
    place: Place

    @property
    def device(self) -> str:
        """The UUID of its device; "" where gpumem does not know it."""
        return self.place.device

    @property
    def backend(self) -> str:
        """ "cuda" or "host"."""
        return self.place.backend

    @property
    def kind(self) -> str:
        """ "vmm", "mempool", "ipc" or "pinned"; "foreign" for what another library keeps."""
        return self.place.kind


def nowhere() -> Place:
    """Of an array of no elements, which needs no memory."""
    return Place("", "host", "vmm")


# What all that take arrays from here can take; NumPy 1 keeps no more on its stack.
MAX_DIMENSIONS = 32
_MOST = (1 << 63) - 1  # of a Py_ssize_t, in which sizes and strides are kept


def _numbers(given: Any, what: str) -> Tuple[int, ...]:
    """Whole numbers, one for each dimension. Others made what is given: nothing of it is trusted,
    and no more of it is looked at than an array may have."""
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
    """A tuple of sizes; one number is an array of one dimension.

    Raises InvalidArgumentError where it is none, where there are too many dimensions, or where the
    array (were no size 0) would be larger than any memory.
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
    """Strides in bytes for a shape of to_shape(); None: in C order.

    Raises InvalidArgumentError where they are not as many, or reach farther than addresses do.
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
    """A whole number of bytes. Raises InvalidArgumentError."""
    try:
        return operator.index(offset)
    except TypeError as error:
        raise InvalidArgumentError(f"an offset is a whole number of bytes: {error}") from error


def c_strides(shape: Sequence[int], itemsize: int) -> Tuple[int, ...]:
    """Bytes between neighbours, where the last index runs fastest and there are no gaps."""
    strides = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def extent(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Tuple[int, int]:
    """The first byte and the one behind the last that an array uses, from its address."""
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
    """Of an array by its address, or by where it begins in a segment or block, which are aligned for
    every type. A kernel that reads what is not aligned faults, and ends its process's use of the GPU.

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

    It is no calculator: `numpy.asarray(array)`, `cupy.asarray(array)`, `torch.from_dlpack(array)`
    and `numba.cuda.as_cuda_array(array)` see the same memory, without a copy, and keep it for as
    long as they live, as does each Array, memoryview and DLPack capsule.

    shape, strides (in bytes), dtype ("float32"), itemsize (bytes), ndim, size (elements), nbytes,
    ptr, readonly, on_host, device (a UUID), backend, kind. `owner` is the Segment, Block or
    Publication that the memory is part of, or None, and `offset` where in it the array begins
    (bytes). `stream` is the stream that must have been waited for before the memory is used: None
    where there is none, and so where gpumem itself made the array.
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

    # ---- What it is

    @property
    def dtype(self) -> str:
        """The type of its elements: "float32"; what has no such name, as a typestr ("<M8[ns]")."""
        return self._dtype.name

    @property
    def dtype_object(self) -> _dtypes.DType:
        """All that is known of the type."""
        return self._dtype

    @property
    def typestr(self) -> Optional[str]:
        """The same for the array interface; None where that has no word for it (bfloat16)."""
        return self._dtype.typestr

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._dtype.itemsize

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def segment(self) -> Any:
        """The Segment that it is part of, or None."""
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
        """The same elements in another shape, without a copy; -1 is what is left.

        Raises InvalidArgumentError where they are not as many, or do not lie one after another.
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
        """The same bytes as elements of another type of the same size."""
        found = _dtypes.parse(dtype)
        if found.itemsize != self.itemsize:
            raise InvalidArgumentError(
                f"elements of {found.itemsize} bytes are no view of elements of {self.itemsize}")
        check_alignment(self.ptr, self.shape, self.strides, found)
        return self._like(dtype=found)

    def view_as(self, other: "Array") -> "Array":
        """The same bytes, as many as `other` has, with its shape and dtype, in C order."""
        if not self.c_contiguous or self.nbytes != other.nbytes:
            raise InvalidArgumentError(f"{self.nbytes} bytes are no {other.nbytes} in C order")
        return self._like(shape=other.shape, dtype=other.dtype_object, strides=None)

    def with_strides(self, strides: Sequence[int]) -> "Array":
        """The same bytes in another order of dimensions, which has to use them all (is_dense)."""
        made = self._like(strides=strides)
        if not self.c_contiguous or not is_dense(made) or (
                extent(made.shape, made.strides, made.itemsize)[0] != 0):
            raise InvalidArgumentError(f"strides {tuple(strides)} reach beyond the array")
        return made

    def on_stream(self, stream: Optional[int]) -> "Array":
        """The same memory, of which `stream` (a cudaStream_t) must have been waited for."""
        return self._like(stream=stream)

    def without_readonly_mark(self) -> "Array":
        """The same memory for frameworks that know no read-only arrays (PyTorch). A write to it
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
        # Of no elements the pointer is 0, as the interface demands.
        return {"shape": self.shape, "typestr": self.typestr,
                "data": (self.ptr if self.size else 0, self.readonly),
                "strides": None if self.c_contiguous else self.strides, "version": 3}

    def __array__(self, *_: Any, **__: Any) -> Any:
        # NumPy asks for this last, and else makes an array of one object.
        raise TypeError(f"NumPy has no word for {self.dtype}: view() it as one that it has"
                        if self.place.on_host else
                        "this is a GPU's memory, which NumPy cannot use: copy it to the CPU first")

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.place.dlpack_device()

    def __dlpack__(self, *, stream: Optional[int] = None,
                   max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        """A DLPack capsule of this memory. Raises BufferError where the consumer asks for a copy,
        for another device, or in a way that cannot say that the memory is read-only."""
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
    """The memory of another library's array, or of a DLPack capsule, as an Array. No copy is made;
    the other library keeps the memory until the Array and all that was made of it are gone.

    `stream` is the cudaStream_t on which it will be used; None is the legacy default stream.
    Raises InvalidArgumentError for elements of an unknown type, and what the other library does.
    """
    capsule = source
    ready_on = stream
    if hasattr(source, "__dlpack__"):
        gpu = source.__dlpack_device__()[0] in (DL_CUDA, DL_CUDA_MANAGED)
        arguments = {"stream": 1 if stream is None else stream} if gpu else {}
        # What it is told there is the stream that has to be waited for by who uses it on others.
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
    """(address, bytes, whether it may only be read, what keeps it)."""
    readonly = view.readonly
    if readonly or not view.c_contiguous:
        # ctypes has no address of what may only be read: here a copy has to do.
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
    """The library that an object is of, by its module: "numpy", "torch", "cupy", "gpumem", …;
    "python" for what is Python's own."""
    found = type(source).__module__.split(".")[0]
    return "python" if found == "builtins" else found


def asarray(source: Any) -> Array:
    """Another library's array (NumPy, CuPy, PyTorch, Numba, anything with the array interface,
    DLPack or the buffer protocol) as an Array of the same memory.

    Raises InvalidArgumentError where it is no array, or one of a kind that has no place here.
    """
    if isinstance(source, Array):
        return source
    if isinstance(source, _gpumem.Memory):
        made: Array = source.array()  # type: ignore[attr-defined]
        return made
    # A subclass of PyTorch's tensors may be anybody's.
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
    """Copies the elements, whose shape and type have to be the same. `to` is in C order, unless
    both lie in memory alike. Waits until it is done.

    Raises InvalidArgumentError where they differ, or where a GPU's elements lie scattered.
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
    """Copies dimension by dimension, as long runs as there are."""
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
    """Whether the elements lie without gaps in some order of the dimensions, each once."""
    expected = array.itemsize
    for stride, size in sorted(zip(array.strides, array.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
