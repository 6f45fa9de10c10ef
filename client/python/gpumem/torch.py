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
from typing import Any, Dict, Iterator, Optional

import torch  # type: ignore[import]

from . import _gpumem, _modules, _tensors, default_client, library_path
from ._asked import serve
from ._tensors import from_array
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


def to_array(tensor: Any, client: Optional[Client] = None, *, kind: Optional[str] = None,
             device: Any = None) -> Array:
    """Copies a tensor into a new segment."""
    return _tensors.copy_all(client or default_client(), {"": tensor}, kind, device)[""][0]


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
    copied = _tensors.copy_all(session, _tensors.tensors_of(what), kind, device)
    return session.publish(
        name, {key: array for key, (array, _) in copied.items()},
        metadata=_tensors.described(copied, isinstance(what, torch.Tensor), metadata), **options)


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
    module with torch.device("meta"), and it takes no memory before; but make buffers that are not
    in its state dict with memory, as they stay the module's own.

    Options of Client.attach(): `wait` (seconds, for a name yet to come), `version`, `writable`.
    Parameters need no gradients unless the publication is attached as writable. strict: the module
    must have exactly the publication's names; one of tied parameters is enough.

    Raises NotFoundError: no such publication, or names differ; InvalidArgumentError: shapes or
    dtypes differ, or it was not published by gpumem.torch nor as arrays.
    """
    session = client or default_client()
    publication = session.attach(name, **options)
    tensors, single, metadata = _tensors.mapped(publication)
    if module is not None:
        _modules.bind(module, tensors, strict, options.get("writable", False))
        return module
    if single:
        return tensors[""]
    return Attached(tensors, publication.version, metadata, publication)


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
    wire, parts = _tensors.wire(tensor.dtype, tensor.element_size())
    if parts != 1:
        raise InvalidArgumentError(
            f"share_live() does not support {_tensors.dtype_name(tensor.dtype)}: use share()")
    try:
        address, nbytes = source.find(start)
    except (NotFoundError, InvalidArgumentError) as error:
        raise NotFoundError("the tensor is not in that pool: call gpumem.torch.use() before "
                            "PyTorch's first use of the GPU, or use share()") from error
    size = tensor.element_size()
    layout = Layout(tuple(tensor.shape), wire, tuple(step * size for step in tensor.stride()),
                    tensor.data_ptr() - address, "torch")
    return Ticket(_gpumem.pool_share(source.handle, address, nbytes), layout)

