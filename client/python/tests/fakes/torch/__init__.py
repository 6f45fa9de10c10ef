# SPDX-License-Identifier: Apache-2.0
"""The parts of PyTorch that the package uses, over NumPy: for machines with neither PyTorch nor a
GPU. Types that NumPy does not know are kept as the integers that PyTorch's view() would show."""
import gpumem
import numpy as np

__version__ = "0"
strided = "strided"


class dtype:
    def __init__(self, name, storage):
        self.name, self.storage = name, np.dtype(storage)

    def __repr__(self):
        return f"torch.{self.name}"


for _name, _storage in (
        ("float16", "f2"), ("float32", "f4"), ("float64", "f8"), ("int8", "i1"), ("int16", "i2"),
        ("int32", "i4"), ("int64", "i8"), ("uint8", "u1"), ("bool", "?"), ("complex64", "c8"),
        ("complex128", "c16"), ("bfloat16", "i2"), ("float8_e4m3fn", "u1")):
    globals()[_name] = dtype(_name, _storage)
_OF_NUMPY = {kind.storage: kind for kind in list(globals().values())
             if isinstance(kind, dtype) and kind.name not in ("bfloat16", "float8_e4m3fn")}


class device:
    """Also the block of a `with`, in which tensors are made on it."""
    present = []

    def __init__(self, type="cpu", index=None):
        self.type, self.index = type, index

    def __eq__(self, other):
        return isinstance(other, device) and other.type == self.type

    def __hash__(self):
        return 0

    def __enter__(self):
        self.present.append(self)

    def __exit__(self, *_):
        self.present.pop()


class Storage:
    def __init__(self, array):
        while isinstance(array.base, np.ndarray):
            array = array.base
        self.array = array

    def data_ptr(self):
        return self.array.ctypes.data


class Tensor:
    layout = strided

    def __init__(self, array, kind=None):
        self.array = np.asarray(array)
        self.dtype = kind or _OF_NUMPY[self.array.dtype]
        self.device = device()

    shape = property(lambda self: self.array.shape)
    nbytes = property(lambda self: self.array.nbytes)

    @classmethod
    def _make_subclass(cls, kind, tensor, requires_grad):
        made = kind.__new__(kind)
        made.array, made.dtype, made.device = tensor.array, tensor.dtype, tensor.device
        made.requires_grad = requires_grad
        return made

    def detach(self):
        return Tensor(self.array, self.dtype)

    def clone(self):
        return Tensor(self.array.copy(), self.dtype)

    def cpu(self):
        return self

    def numpy(self):
        return self.array

    def untyped_storage(self):
        return Storage(self.array)

    def storage_offset(self):
        return (self.data_ptr() - self.untyped_storage().data_ptr()) // self.element_size()

    def set_(self, storage):
        return Tensor(storage.array.reshape(-1).view("u1"))

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, other):
        self.array, self.dtype = other.array, other.dtype

    def narrow(self, dim, start, length):
        return self[(slice(None),) * dim + (slice(start, start + length),)]

    def to(self, device):
        assert device == self.device
        return self

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def data_ptr(self):
        return self.array.ctypes.data

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def view(self, kind):
        if kind.storage.itemsize == self.array.itemsize:
            return Tensor(self.array.view(kind.storage), kind)
        return Tensor(np.ascontiguousarray(self.array).view(kind.storage)
                      if self.array.flags.c_contiguous is False
                      else self.array.view(kind.storage), kind)

    def reshape(self, shape):
        return Tensor(self.array.reshape(shape), self.dtype)

    def copy_(self, source):
        if self.dtype is not source.dtype:
            raise TypeError(f"{source.dtype} into {self.dtype}: PyTorch would convert it")
        self.array[...] = source.array

    def t(self):
        return Tensor(self.array.T, self.dtype)

    def __getitem__(self, index):
        return Tensor(self.array[index], self.dtype)


def empty(shape, dtype=None, device=None):
    kind = dtype or float32  # noqa: F821
    where = device or (globals()["device"].present or [None])[-1]
    if where is not None and where.type == "meta":
        made = Tensor(np.broadcast_to(np.zeros((), kind.storage), shape), kind)
        made.device = where
        return made
    return Tensor(np.zeros(shape, kind.storage), kind)


def frombuffer(source, dtype):
    return Tensor(np.frombuffer(source, dtype.storage), dtype)


def as_strided(tensor, shape, stride, offset):
    return Tensor(np.lib.stride_tricks.as_strided(
        tensor.array[offset:], shape, [step * tensor.array.itemsize for step in stride]),
        tensor.dtype)


def from_dlpack(source):
    # In place of PyTorch's reader of capsules.
    seen = gpumem.asarray(source) if hasattr(source, "__dlpack__") else gpumem.from_dlpack(source)
    if seen.dtype == "bfloat16":
        return Tensor(np.asarray(seen.view("int16")), bfloat16)  # noqa: F821
    return Tensor(np.asarray(seen))


def equal(one, other):
    return np.array_equal(one.array, other.array)


def view_as_real(tensor):
    half = {"complex64": float32, "complex128": float64}[tensor.dtype.name]  # noqa: F821
    flat = np.ascontiguousarray(tensor.array)
    return Tensor(flat.view(half.storage).reshape(flat.shape + (2,)), half)


def view_as_complex(tensor):
    whole = {"float32": complex64, "float64": complex128}[tensor.dtype.name]  # noqa: F821
    return Tensor(tensor.array.view(whole.storage)[..., 0], whole)


from . import cuda, nn  # noqa: E402,F401
