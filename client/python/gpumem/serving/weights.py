# SPDX-License-Identifier: Apache-2.0
"""Weights: the tensors of one version of a publication, which modules can use and follow."""
from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..errors import DeadlineExceededError
from ..publication import Publication
from .frameworks import Framework
from .slices import Plan, Rank, check_rank, part_of

if TYPE_CHECKING:
    from ..client import Client

_SHORTEST_WAIT_S = 0.001  # that the daemon knows


class _Binding:
    """The tensors of a module that weights were bound to. It does not keep the module."""

    def __init__(self, module: Any, bound: Any, rank: Optional[Rank], plan: Optional[Plan]) -> None:
        self.module = weakref.ref(module)
        self.bound = [(weakref.ref(tensor), name) for tensor, name in bound]
        self.rank, self.plan = rank, plan

    def alive(self) -> List[Tuple[Any, str]]:
        """Returns the tensors that still live, with their names."""
        found = [(reference(), name) for reference, name in self.bound]
        return [(tensor, name) for tensor, name in found if tensor is not None]


class Weights(Mapping[str, Any]):
    """The tensors of a publication by name, mapped into this process: a state dict without a copy.

    name, version, content_id, nbytes (of all its memory), metadata (the publisher's addition),
    loaded (True if this process loaded this version), publication (the gpumem.Publication).

    The memory is mapped read-only unless the weights are `writable`. PyTorch knows no read-only
    tensors: a write to one faults. On the CPU that ends the process (SIGSEGV), and on a GPU its use
    of CUDA (an illegal address). Copy a tensor to change it: `tensor.clone()`.

    Made by load_or_attach(). One thread at a time may call bind(), update() and close().
    """

    def __init__(self, client: "Client", publication: Publication, framework: Framework, *,
                 loaded: bool, map_devices: Sequence[str] = ()) -> None:
        self._client, self._framework, self._map_devices = client, framework, map_devices
        self._bindings: List[_Binding] = []
        self._take(publication, framework.mapped(publication), loaded)

    def _take(self, publication: Publication, mapped: Tuple[Dict[str, Any], Any],
              loaded: bool) -> None:
        self.publication, self.loaded = publication, loaded
        self._tensors, self.metadata = mapped

    # ---- Facts

    @property
    def name(self) -> str:
        """The name of the publication, with the rank's suffix."""
        return self.publication.name

    @property
    def version(self) -> int:
        """The version of the publication."""
        return self.publication.version

    @property
    def content_id(self) -> bytes:
        """The id of the content, b"" if the publisher gave none."""
        return self.publication.content_id

    @property
    def nbytes(self) -> int:
        """The size of the publication's memory, in bytes."""
        return self.publication.nbytes

    @property
    def writable(self) -> bool:
        """True if this process may write to the tensors."""
        return not self.publication.readonly

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return (f"<gpumem.serving.Weights {self.name!r}, version {self.version}, {len(self)} tensors"
                f"{', closed' if self.publication.closed else ''}>")

    # ---- Use

    def slice(self, rank: Rank, plan: Plan) -> Dict[str, Any]:
        """Returns a rank's part of each tensor, as views: no copy.

        rank: (rank, count). plan: the dimension to divide tensors in, by a pattern of their names
        ({"*.q_proj.weight": 0, "*.o_proj.weight": 1}); the first pattern that matches decides, and
        None keeps a tensor whole, as do tensors without a pattern. Parts in dimension 0 are
        contiguous, others are strided.

        It is for ranks that share the memory: those of one GPU, and those that copy their part from
        pinned memory or over NVLink. Ranks that each have a GPU hold less if each loads its part:
        load_or_attach(rank=...). So do weights whose parts are not equal slices, such as fused
        projections.

        Raises InvalidArgumentError: a dimension that a tensor does not have, or that the number of
        ranks does not divide.
        """
        return self._cut(self._tensors, check_rank(rank), plan)

    def _cut(self, tensors: Mapping[str, Any], rank: Optional[Rank],
             plan: Optional[Plan]) -> Dict[str, Any]:
        made = {}
        for name, tensor in tensors.items():
            part = None
            if rank is not None and plan is not None:
                part = part_of(name, tensor.shape, rank, plan)
            made[name] = tensor if part is None else self._framework.narrow(tensor, *part)
        return made

    def bind(self, module: Any, *, strict: bool = True, rank: Optional[Rank] = None,
             plan: Optional[Plan] = None) -> Any:
        """Has a module's parameters and buffers use the mapped tensors, all or none, and returns the
        module. update() has it use the next version.

        Tied parameters stay tied; one of their names is enough. Buffers that are not in the state
        dict (persistent=False) stay the module's own: make them with memory, outside
        torch.device("meta"). Parameters need no gradients, unless the weights are writable.
        strict: the names must be those of the module's state dict. rank, plan: bind what slice()
        returns for them.

        Raises NotFoundError: names differ; InvalidArgumentError: a shape or dtype differs, tied
        parameters differ here, or a buffer has no memory; UnimplementedError: not PyTorch's.
        """
        ranks = None if rank is None else check_rank(rank)
        tensors = self._cut(self._tensors, ranks, plan)
        bound = self._framework.bind(module, tensors, strict, self.writable)
        self._bindings = [each for each in self._bindings
                          if each.module() not in (None, module)]
        self._bindings.append(_Binding(module, bound, ranks, plan))
        return module

    # ---- Versions

    def newer(self) -> Optional[int]:
        """Returns the newest version under the name if it is newer than this one, else None. Lists
        the tenant's publications: for once a second, not for each request."""
        tenant, _, name = self.name.rpartition("/")
        for info in self._client.publications(tenant or self._client.tenant):
            if info.name == name and info.version > self.version:
                return info.version
        return None

    def update(self, wait: float = 0) -> bool:
        """Switches to the newest version, and returns True; False: there is none within `wait`
        seconds. Call it between two requests: while it runs nothing may read the tensors of bound
        modules. One call to the daemon, of about a millisecond if there is nothing newer.

        Bound modules use the new version then: the same Parameter objects, at new addresses, so
        captured CUDA graphs have to be captured again. GPU work on the old version may still run.
        The old version's memory is given back when the last process has let go of it. Tensors taken
        from here before keep it.

        Raises NotFoundError or InvalidArgumentError if the new version does not fit a bound module;
        then all stays as it was. ResourceExhaustedError, CancelledError.
        """
        try:
            publication = self._client.attach(
                self.name, version=self.version + 1, wait=max(wait, _SHORTEST_WAIT_S),
                writable=self.writable, map_devices=self._map_devices)
        except DeadlineExceededError:
            return False
        try:
            mapped = self._framework.mapped(publication)
            changes = []
            for binding in self._bindings:
                changes.append((binding.alive(), self._cut(mapped[0], binding.rank, binding.plan)))
                self._framework.check_rebind(*changes[-1])
        except BaseException:
            publication.close(defer=True)
            raise
        old = self.publication
        for bound, tensors in changes:
            self._framework.rebind(bound, tensors)
        self._bindings = [each for each in self._bindings if each.module() is not None]
        self._take(publication, mapped, loaded=False)
        del changes, mapped
        old.close(defer=True)
        return True

    # ---- Its end

    def close(self) -> None:
        """Lets go of the publication. Its memory stays mapped until its tensors and bound modules
        here are gone, and stays published."""
        self._tensors, self._bindings = {}, []
        self.publication.close(defer=True)

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
