# SPDX-License-Identifier: Apache-2.0
"""PyTorch on brokered memory.

    import torch, gpumem.torch
    gpumem.torch.use()                          # before PyTorch's first use of the GPU
    x = torch.ones(1024, device="cuda")         # lies in gpumem's default pool

    with gpumem.torch.using():                  # or a part of a program (torch.cuda.MemPool)
        y = torch.ones(1024, device="cuda")

    gpumem.torch.publish("weights", model)      # one process loads the weights, and may die
    gpumem.torch.attach("weights", model)       # another maps them: no copy, no time

    ticket = gpumem.torch.share(tensor)         # picklable; needs no live producer
    same = ticket.open()

    gpumem.torch.suspend()                      # the GPU is free; tensors and graphs stay
    gpumem.torch.resume(wait=3600)

The daemon keeps published and shared tensors under their names until they are unpublished
(gpumem.unpublish()) or expire. Every dtype works: one that DLPack cannot express travels as
integers of the same size. Without `writable` the memory is mapped read-only. PyTorch does not know
that: a kernel that writes to it faults.
"""
from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch  # type: ignore[import]

from . import _cuda, _gpumem, default_client, library_path
from ._asked import serve
from ._turns import resume, running, suspend, suspended
from .arrays import Array
from .client import Client
from .errors import InvalidArgumentError, NotFoundError
from .pool import Pool
from .publication import Publication
from .segment import Layout, Ticket

__all__ = ["Attached", "SharedTensor", "attach", "from_array", "mem_pool", "publish", "resume",
           "running", "serve", "share", "share_live", "suspend", "suspended", "to_array", "use",
           "using"]

_FORMAT = "gpumem-torch/1"  # of the metadata that publish() adds
_ALIGNMENT = 512  # bytes
# Types that both PyTorch and DLPack of every version can express; others travel as integers.
_AS_IS = {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"}
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


# ---- Tensors and arrays --------------------------------------------------------------------------


def _name(dtype: Any) -> str:
    return str(dtype).split(".", maxsplit=1)[-1]


def _dtype(name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InvalidArgumentError(f"this PyTorch has no dtype {name!r}")
    return found


def _wire(dtype: Any, itemsize: int) -> Tuple[str, int]:
    """Returns the type that elements travel as, and how many of them make one element."""
    name = _name(dtype)
    if name in _AS_IS:
        return name, 1
    if itemsize in _INTEGERS:
        return _INTEGERS[itemsize], 1
    return "int64", itemsize // 8  # complex128


def _aligned(tensor: Any) -> Any:
    """Returns the tensor if it is aligned, else raises. PyTorch does not check, and a publisher is
    untrusted. A kernel that reads unaligned data ends its process's use of the GPU."""
    if tensor.numel() > 0 and tensor.data_ptr() % min(tensor.element_size(), 16) != 0:
        raise InvalidArgumentError(f"a tensor of {_name(tensor.dtype)} at {tensor.data_ptr():#x} is "
                                   f"not aligned to {min(tensor.element_size(), 16)} bytes")
    return tensor


def from_array(array: Array, dtype: Optional[str] = None) -> Any:
    """Returns the tensor of an array's memory, which keeps the memory: no copy. dtype: PyTorch's
    name of it if that is not the array's ("bfloat16"). Raises InvalidArgumentError if the array is
    not aligned."""
    wanted = dtype or array.dtype
    plain = array.without_readonly_mark() if array.readonly else array
    if wanted in _AS_IS and wanted == array.dtype:
        return _aligned(torch.from_dlpack(plain))
    found = _dtype(wanted)
    if array.itemsize in _INTEGERS and array.dtype not in _AS_IS:
        plain = plain.view(_INTEGERS[array.itemsize])
    return _aligned(torch.from_dlpack(plain).view(found))


def to_array(tensor: Any, client: Optional[Client] = None, *, kind: Optional[str] = None,
             device: Any = None) -> Array:
    """Copies a tensor into a new segment."""
    return next(iter(_copy_all(client or default_client(), {"": tensor}, kind, device).values()))[0]


def _device_name(tensor: Any, device: Any) -> Any:
    """Returns the copy's device: a GPU's tensor stays on its GPU, others go to the default device.
    """
    if device is not None or tensor.device.type != "cuda":
        return device
    return _cuda.uuid_of(tensor.device.index or 0)


def _identity(tensor: Any) -> Tuple[Any, ...]:
    """Identifies tensors that are the same memory in the same way: tied weights."""
    return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _copy_all(client: Client, tensors: Mapping[str, Any], kind: Optional[str], device: Any
              ) -> Dict[str, Tuple[Array, str]]:
    """Copies the tensors into one segment for each device, by name, each with PyTorch's name of its
    dtype. Tensors of the same memory stay so."""
    plans: Dict[Any, List[Tuple[str, Any, int]]] = {}
    sizes: Dict[Any, int] = {}
    seen: Dict[Tuple[Any, ...], int] = {}
    for name, tensor in tensors.items():
        where = _device_name(tensor, device)
        key = (where,) + _identity(tensor)
        if tensor.numel() == 0:
            offset = 0
        elif key in seen:
            offset = seen[key]
        else:
            offset = -(-sizes.get(where, 0) // _ALIGNMENT) * _ALIGNMENT
            sizes[where] = offset + tensor.numel() * tensor.element_size()
            seen[key] = offset
        plans.setdefault(where, []).append((name, tensor, offset))
    made: Dict[str, Tuple[Array, str]] = {}
    for where, plan in plans.items():
        segment = client.acquire(max(sizes.get(where, 0), 1), kind=kind, device=where)
        written = set()
        for name, tensor, offset in plan:
            wire, parts = _wire(tensor.dtype, tensor.element_size())
            shape = tuple(tensor.shape) if parts == 1 else tuple(tensor.shape) + (parts,)
            array = segment.array(shape, wire, offset=offset)
            if tensor.numel() > 0 and offset not in written:
                written.add(offset)
                from_array(array, _name(tensor.dtype) if parts == 1 else None).copy_(
                    tensor if parts == 1 else torch.view_as_real(tensor).view(torch.int64))
            made[name] = (array, _name(tensor.dtype))
    _wait_for_copies(tensors)
    return made


def _wait_for_copies(tensors: Mapping[str, Any]) -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in {tensor.device for tensor in tensors.values()
                       if tensor.device.type == "cuda"} | {torch.device("cuda")}:
            torch.cuda.synchronize(device)


def _tensor_of(array: Array, dtype: str) -> Any:
    if dtype == "complex128":
        return _aligned(torch.view_as_complex(from_array(array).view(torch.float64)))
    return from_array(array, dtype)


# ---- The allocator -------------------------------------------------------------------------------

_allocator: Any = None


def _pluggable() -> Any:
    global _allocator  # pylint: disable=global-statement
    if _allocator is None:
        _allocator = torch.cuda.memory.CUDAPluggableAllocator(
            library_path(), "gpumem_torch_malloc", "gpumem_torch_free")
    return _allocator


def use() -> Pool:
    """Makes PyTorch take all GPU memory from gpumem's default pools, one for each device. Call it
    before PyTorch's first use of a GPU in this process, else it raises RuntimeError. Returns the
    pool of device 0 (stats(), limit, trim()); gpumem.Pool.default(n) has the others. Raises
    UnavailableError without a daemon.

    torch.cuda.memory_stats() and the like do not see this memory, and empty_cache() does nothing:
    see Pool.free_all_blocks(). A denial does not raise PyTorch's own exception for it; the reason
    is printed on stderr.
    """
    pool = Pool.default(0)  # first: if it fails, PyTorch keeps its allocator
    torch.cuda.memory.change_current_allocator(_pluggable())
    return pool


def mem_pool(**options: Any) -> Any:
    """Returns a torch.cuda.MemPool with gpumem's memory, for torch.cuda.use_mem_pool(). PyTorch's
    own caching allocator works on top; the memory that it keeps goes back with the MemPool. Options
    are MemPool's (use_on_oom, no_split)."""
    return torch.cuda.MemPool(_pluggable().allocator(), **options)


@contextlib.contextmanager
def using(pool: Any = None) -> Iterator[Any]:
    """Makes a `with` block allocate in gpumem's memory: by `pool`, a mem_pool(), or a new one. Keep
    the MemPool that it returns as long as the tensors live."""
    made = mem_pool() if pool is None else pool
    with torch.cuda.use_mem_pool(made):
        yield made


# ---- Suspending: help(gpumem.torch.suspend) ------------------------------------------------------


# ---- Publications --------------------------------------------------------------------------------


def _tensors_of(what: Any) -> Dict[str, Any]:
    """Returns tensors by name; of a module all parameters and buffers, also those not in
    state_dict()."""
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


def publish(name: str, what: Any, *, client: Optional[Client] = None, kind: Optional[str] = None,
            device: Any = None, metadata: Any = None, **options: Any) -> int:
    """Publishes a module (parameters and buffers), a dict of tensors (state_dict()) or a tensor,
    and returns the version. The tensors are copied once, onto their own device, those of the CPU
    onto `device` (None: the first that serves). The copies outlive this process. Options (access,
    ephemeral, expire_after) as of Client.publish(); `metadata` is any JSON value, for those that
    attach.

    Raises ResourceExhaustedError if the tenant has no room for a copy; InvalidArgumentError.
    """
    session = client or default_client()
    copies = _copy_all(session, _tensors_of(what), kind, device)
    said = {"format": _FORMAT, "single": isinstance(what, torch.Tensor), "metadata": metadata,
            "dtypes": {key: dtype for key, (_, dtype) in copies.items()}}
    return session.publish(name, {key: array for key, (array, _) in copies.items()},
                           metadata=said, **options)


@dataclass(frozen=True)
class Attached:
    """The result of attach(). The tensors keep the memory; this keeps the publication's facts."""

    tensors: Dict[str, Any]
    version: int
    metadata: Any  # what the publisher added
    publication: Publication

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]


def attach(name: str, module: Any = None, *, client: Optional[Client] = None, strict: bool = True,
           **options: Any) -> Any:
    """Maps a publication: no copy. Returns the tensors by name (Attached), or the tensor if one was
    published. With a module, replaces its parameters and buffers and returns the module. Make the
    module with torch.device("meta"), and it takes no memory before.

    Options of Client.attach(): `wait` (seconds, for a name yet to come), `version`, `writable`.
    Parameters need no gradients unless the publication is attached as writable. strict: the module
    must have exactly the publication's names.

    Raises NotFoundError: no such publication, or names differ; InvalidArgumentError: shapes or
    dtypes differ, or it was not published by gpumem.torch nor as arrays.
    """
    session = client or default_client()
    publication = session.attach(name, **options)
    said = publication.metadata
    if not isinstance(said, dict) or said.get("format") != _FORMAT:
        said = {"single": publication.single, "metadata": said,
                "dtypes": {key: array.dtype for key, array in publication.items()}}
    tensors = {key: _tensor_of(publication[key], dtype) for key, dtype in said["dtypes"].items()}
    if module is not None:
        _put(module, tensors, strict, options.get("writable", False))
        return module
    if said["single"]:
        return tensors[""]
    return Attached(tensors, publication.version, said["metadata"], publication)


def _put(module: Any, tensors: Mapping[str, Any], strict: bool, writable: bool) -> None:
    """Replaces the module's tensors, all or none."""
    places: Dict[str, Tuple[Any, str, Any]] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for table in (owner._parameters, owner._buffers):
            for leaf, old in table.items():
                if old is not None:
                    places[f"{prefix}.{leaf}" if prefix else leaf] = (table, leaf, old)
    missing, more = sorted(places.keys() - tensors.keys()), sorted(tensors.keys() - places.keys())
    if strict and (missing or more):
        raise NotFoundError(f"{len(missing)} tensors are only in the module {missing[:3]}, and "
                            f"{len(more)} only in the publication {more[:3]}: pass strict=False to "
                            "attach the others")
    for name, tensor in tensors.items():
        if name in places and (tuple(places[name][2].shape) != tuple(tensor.shape)
                               or places[name][2].dtype != tensor.dtype):
            old = places[name][2]
            raise InvalidArgumentError(
                f"{name} is {_name(tensor.dtype)}{list(tensor.shape)} in the publication, but "
                f"{_name(old.dtype)}{list(old.shape)} in the module")
    made: Dict[int, Any] = {}  # parameters that are one stay one
    for name, (table, leaf, old) in places.items():
        if name not in tensors:
            continue
        if isinstance(old, torch.nn.Parameter):
            if id(old) not in made:
                wants = writable and old.requires_grad
                made[id(old)] = torch.nn.Parameter(tensors[name], requires_grad=wants)
            table[leaf] = made[id(old)]
        else:
            table[leaf] = tensors[name]


# ---- Sharing one tensor --------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedTensor:
    """A picklable ticket of a tensor, for processes of the same tenant. Its producer may have
    ended. Keep it secret: every process of the tenant that knows the name may attach."""

    name: str  # of the publication
    version: int

    def open(self, client: Optional[Client] = None, writable: bool = False) -> Any:
        """Returns the tensor, without a copy. Raises NotFoundError once it has expired."""
        return attach(self.name, client=client, version=self.version, writable=writable)

    def unshare(self, client: Optional[Client] = None) -> None:
        """Prevents further opens; processes that have opened it keep it."""
        (client or default_client()).unpublish(self.name)


def share(tensor: Any, *, expire_after: float = 600.0, client: Optional[Client] = None,
          **options: Any) -> SharedTensor:
    """Shares a tensor as torch.multiprocessing does, but the producer need not live. The tensor is
    copied once into a new publication, which ends once no process has had it open for
    `expire_after` seconds (0: never). Options as of publish()."""
    session = client or default_client()
    name = f"torch-{uuid.uuid4().hex}"
    return SharedTensor(name, publish(name, tensor.detach(), client=session,
                                      expire_after=expire_after, **options))


def share_live(tensor: Any, pool: Optional[Pool] = None) -> Ticket:
    """Returns the ticket of a tensor that lies in gpumem's memory already (use()), without a copy.
    It opens (gpumem.open(), and from_array() of that) for as long as this process has the tensor.
    Wait for the work that writes the tensor first.

    It opens as an Array; a dtype that DLPack cannot express, as an Array of integers of its size.

    pool: the tensor's pool; None: the default one of its device. Raises NotFoundError if the tensor
    does not lie in it, InvalidArgumentError for complex128, which needs share().
    """
    source = Pool.default(tensor.device.index or 0) if pool is None else pool
    start = tensor.untyped_storage().data_ptr()
    wire, parts = _wire(tensor.dtype, tensor.element_size())
    if parts != 1:
        raise InvalidArgumentError(
            f"share_live() does not support {_name(tensor.dtype)}: use share()")
    try:
        address, nbytes = source.find(start)
    except (NotFoundError, InvalidArgumentError) as error:
        raise NotFoundError("the tensor is not in that pool: call gpumem.torch.use() before "
                            "PyTorch's first use of the GPU, or use share()") from error
    size = tensor.element_size()
    layout = Layout(tuple(tensor.shape), wire, tuple(step * size for step in tensor.stride()),
                    tensor.data_ptr() - address, "torch")
    return Ticket(_gpumem.pool_share(source.handle, address, nbytes), layout)

