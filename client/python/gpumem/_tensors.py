# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors as arrays of brokered memory, and the other way round."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Tuple

import torch  # type: ignore[import]

from . import _cuda, _dtypes
from ._listing import paused_collection
from .arrays import Array
from .errors import DataLossError, InvalidArgumentError
from .publication import Publication
from .segment import Segment

if TYPE_CHECKING:
    from .client import Client

FORMAT = "gpumem-torch/1"  # of the metadata that publishers of tensors add
ALIGNMENT = 512  # bytes
# Types that both PyTorch and DLPack of every version can express; others travel as integers.
_AS_IS = {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"}
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
# Every PyTorch reads these from DLPack. Others become integers, and then a view.
_READ = _AS_IS | {"bfloat16"}

Copied = Dict[str, Tuple[Array, str]]  # by name, each with PyTorch's name of its dtype


def dtype_name(dtype: Any) -> str:
    """Returns PyTorch's name of a dtype: "bfloat16"."""
    return str(dtype).split(".", maxsplit=1)[-1]


def _dtype(name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InvalidArgumentError(f"this PyTorch has no dtype {name!r}")
    return found


def wire(dtype: Any, itemsize: int) -> Tuple[str, int]:
    """Returns the type that elements travel as, and how many of them make one element."""
    name = dtype_name(dtype)
    if name in _AS_IS:
        return name, 1
    if itemsize in _INTEGERS:
        return _INTEGERS[itemsize], 1
    return "int64", itemsize // 8  # complex128


def _aligned(tensor: Any) -> Any:
    """Returns the tensor if it is aligned, else raises. PyTorch does not check, and a publisher is
    untrusted. A kernel that reads unaligned data ends its process's use of the GPU."""
    if tensor.numel() > 0 and tensor.data_ptr() % min(tensor.element_size(), 16) != 0:
        raise InvalidArgumentError(
            f"a tensor of {dtype_name(tensor.dtype)} at {tensor.data_ptr():#x} is not aligned to "
            f"{min(tensor.element_size(), 16)} bytes")
    return tensor


def _carrier(dtype: _dtypes.DType) -> _dtypes.DType:
    """Returns the type that PyTorch reads elements of this one as: the same, or an integer."""
    if dtype.name in _READ or dtype.itemsize not in _INTEGERS:
        return dtype
    return _dtypes.NAMED[_INTEGERS[dtype.itemsize]]


def from_array(array: Array, dtype: Optional[str] = None) -> Any:
    """Returns the tensor of an array's memory, which keeps the memory: no copy. dtype: PyTorch's
    name of it if that is not the array's ("bfloat16"). Raises InvalidArgumentError if the array is
    not aligned."""
    wanted = dtype or array.dtype
    carrier = _carrier(array.dtype_object)
    if array.readonly or carrier is not array.dtype_object:
        array = array.without_readonly_mark(carrier)
    made = torch.from_dlpack(array)
    return _aligned(made if wanted == carrier.name else made.view(_dtype(wanted)))


def tensor_of(array: Array, dtype: str) -> Any:
    """Returns the tensor of an array that copy_into() made of a tensor of that dtype."""
    if dtype == "complex128" and array.dtype == "int64":
        return _aligned(torch.view_as_complex(from_array(array).view(torch.float64)))
    made = from_array(array, dtype)
    if tuple(made.shape) != array.shape:
        raise InvalidArgumentError(f"elements of {array.dtype} are not those of {dtype}")
    return made


def published(publication: Publication, name: str, dtype: Optional[str] = None) -> Any:
    """Returns the tensor of a publication's array; of one that copy_into() made of a tensor, with
    that tensor's dtype. As from_array() and tensor_of(), in less time: a model has thousands."""
    row = publication.row(name)
    wanted = _dtypes.NAMED.get(dtype or row.dtype.name)
    if wanted is None or wanted.itemsize != row.dtype.itemsize or row.segment is None:
        array = publication[name]
        return from_array(array) if dtype is None else tensor_of(array, dtype)
    carrier = _carrier(wanted)
    made = torch.from_dlpack(publication.capsule(row, carrier))
    return _aligned(made if carrier is wanted else made.view(_dtype(wanted.name)))


# ---- Publications of tensors ---------------------------------------------------------------------


def tensors_of(what: Any) -> Dict[str, Any]:
    """Returns tensors by name; of a module all parameters and buffers, also those not in
    state_dict(). Raises InvalidArgumentError for anything but a module, a tensor, or tensors by
    name."""
    if isinstance(what, torch.nn.Module):
        found = dict(what.named_parameters(remove_duplicate=False))
        found.update(what.named_buffers(remove_duplicate=False))
        return {name: tensor.detach() for name, tensor in found.items()}
    if isinstance(what, torch.Tensor):
        return {"": what.detach()}
    if isinstance(what, Mapping):
        for name, tensor in what.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise InvalidArgumentError(
                    f"the entry {name!r} is not a tensor with a str as its name: publish a module, "
                    "or a dict of tensors by name")
        return {name: tensor.detach() for name, tensor in what.items()}
    raise InvalidArgumentError(
        f"cannot publish {type(what).__name__}: pass a module, a dict of tensors or a tensor")


def described(copied: Copied, single: bool, metadata: Any) -> Dict[str, Any]:
    """Returns the metadata to publish with tensors; `metadata` is the publisher's addition."""
    return {"format": FORMAT, "single": single, "metadata": metadata,
            "dtypes": {name: dtype for name, (_, dtype) in copied.items()}}


def mapped(publication: Publication) -> Tuple[Dict[str, Any], bool, Any]:
    """Returns a publication's tensors by name, True if a single one was published, and what the
    publisher added as metadata. Publications of arrays and of files have tensors, too.

    Raises DataLossError: the metadata, which is untrusted, is not well-formed;
    InvalidArgumentError: a dtype or an alignment that PyTorch cannot have.
    """
    said = publication.metadata
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        with paused_collection():
            return ({name: published(publication, name) for name in publication},
                    publication.single, said)
    dtypes, single = said.get("dtypes"), said.get("single")
    if (not isinstance(dtypes, dict) or not isinstance(single, bool)
            or dtypes.keys() != publication.keys() or (single and list(dtypes) != [""])
            or not all(isinstance(dtype, str) for dtype in dtypes.values())):
        raise DataLossError(f"the metadata of publication {publication.name!r} names the format "
                            f"{FORMAT}, but is not well-formed")
    with paused_collection():
        return ({name: published(publication, name, dtype) for name, dtype in dtypes.items()},
                single, said.get("metadata"))


# ---- Copies --------------------------------------------------------------------------------------


def device_name(tensor: Any, device: Any) -> Any:
    """Returns the copy's device: a GPU's tensor stays on its GPU, others go to the default device.
    """
    if device is not None or tensor.device.type != "cuda":
        return device
    return _cuda.uuid_of(tensor.device.index or 0)


def identity(tensor: Any) -> Tuple[Any, ...]:
    """Identifies tensors that are the same memory in the same way: tied weights."""
    return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def same_bytes(one: Any, other: Any) -> bool:
    """True if two tensors of one shape and dtype are one memory, or have the same bytes."""
    if one.device == other.device and one.data_ptr() == other.data_ptr():
        return bool(one.stride() == other.stride())
    if one.element_size() not in _INTEGERS:  # complex128
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    kind = _dtype(_INTEGERS[one.element_size()])
    return bool(torch.equal(one.view(kind), other.to(one.device).view(kind)))


def copy_into(segment: Segment, offset: int, tensor: Any, filled: bool = False) -> Array:
    """Returns the array at that place of a segment for a tensor, and starts to copy the tensor into
    it; not if it is `filled` already. wait_for_gpus() waits for the copies."""
    kind, parts = wire(tensor.dtype, tensor.element_size())
    shape = tuple(tensor.shape) if parts == 1 else tuple(tensor.shape) + (parts,)
    array = segment.array(shape, kind, offset=offset)
    if tensor.numel() > 0 and not filled:
        from_array(array, dtype_name(tensor.dtype) if parts == 1 else None).copy_(
            tensor if parts == 1 else torch.view_as_real(tensor).view(torch.int64))
    return array


def copy_all(client: "Client", tensors: Mapping[str, Any], kind: Optional[str], device: Any
             ) -> Copied:
    """Copies the tensors into one segment for each device. Tensors of the same memory stay so."""
    plans: Dict[Any, List[Tuple[str, Any, int]]] = {}
    sizes: Dict[Any, int] = {}
    seen: Dict[Tuple[Any, ...], int] = {}
    for name, tensor in tensors.items():
        where = device_name(tensor, device)
        key = (where,) + identity(tensor)
        if tensor.numel() == 0:
            offset = 0
        elif key in seen:
            offset = seen[key]
        else:
            offset = -(-sizes.get(where, 0) // ALIGNMENT) * ALIGNMENT
            sizes[where] = offset + tensor.numel() * tensor.element_size()
            seen[key] = offset
        plans.setdefault(where, []).append((name, tensor, offset))
    made: Copied = {}
    for where, plan in plans.items():
        segment = client.acquire(max(sizes.get(where, 0), 1), kind=kind, device=where)
        # All copies begin before anything else is done: a GPU copies meanwhile.
        _copy_into_bytes(from_array(segment.array((segment.size,), "uint8")), plan)
        for name, tensor, offset in plan:
            made[name] = (copy_into(segment, offset, tensor, filled=True),
                          dtype_name(tensor.dtype))
    wait_for_gpus(tensors.values())
    return made


def _copy_into_bytes(to: Any, plan: Iterable[Tuple[str, Any, int]]) -> None:
    """Starts to copy each tensor to its offset in a tensor of bytes; to no offset twice."""
    written = set()
    for _, tensor, offset in plan:
        if tensor.numel() > 0 and offset not in written:
            written.add(offset)
            end = offset + tensor.numel() * tensor.element_size()
            to[offset:end].view(tensor.dtype).reshape(tensor.shape).copy_(tensor)


def wait_for_gpus(tensors: Iterable[Any]) -> None:
    """Blocks until the work is done on the GPUs of these tensors, and on the current one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in {tensor.device for tensor in tensors
                       if tensor.device.type == "cuda"} | {torch.device("cuda")}:
            torch.cuda.synchronize(device)
