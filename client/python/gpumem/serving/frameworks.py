# SPDX-License-Identifier: Apache-2.0
"""Frameworks whose tensors weights are: how to copy a loader's into brokered memory, and how to see
a publication's."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

from ..errors import InvalidArgumentError, UnimplementedError
from ..publication import Publication

if TYPE_CHECKING:
    from ..client import Client

Bound = List[Tuple[Any, str]]  # tensors of a module, each with the name of what it is made of
Progress = Callable[[int, int], object]  # bytes that were copied, and of all (0: not known)


def pairs_of(loaded: Any) -> Iterable[Tuple[str, Any]]:
    """Yields a loader's names and tensors. Raises InvalidArgumentError for anything else."""
    if not isinstance(loaded, Iterable):
        raise InvalidArgumentError(f"the loader returned {type(loaded).__name__}: it has to return "
                                   "tensors by name, or pairs of name and tensor")
    for pair in loaded.items() if isinstance(loaded, Mapping) else loaded:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidArgumentError(f"the loader gave {type(pair).__name__}, and no pair of name "
                                       "and tensor")
        yield pair[0], pair[1]


class Framework:
    """gpumem's own arrays, which every library takes."""

    def copy(self, client: "Client", loaded: Any, kind: Optional[str], device: Any,
             progress: Optional[Progress]) -> Tuple[Dict[str, Any], Any]:
        """Returns what to publish of a loader's result, and the metadata for it."""
        del client, kind, device, progress  # publish() copies
        made: Dict[str, Any] = {}
        for name, tensor in pairs_of(loaded):
            if name in made:
                raise InvalidArgumentError(f"the loader gave two tensors the name {name!r}")
            made[name] = tensor
        return made, None

    def dropped(self) -> None:
        """Gives back the memory of the loader's tensors, once they are gone."""

    def mapped(self, publication: Publication) -> Tuple[Dict[str, Any], Any]:
        """Returns a publication's tensors by name, and what its publisher added as metadata."""
        return publication.arrays, publication.metadata

    def narrow(self, tensor: Any, dim: int, start: int, length: int) -> Any:
        """Returns a part of a tensor, without a copy."""
        return tensor.narrow(dim, start, length)

    def bind(self, module: Any, tensors: Mapping[str, Any], strict: bool,
             writable: bool) -> Bound:
        """Binds a module, and returns its tensors, each with the name of what it is made of. See
        Weights.bind()."""
        raise UnimplementedError("modules are PyTorch's: pass framework=\"torch\"")

    def check_rebind(self, bound: Bound, tensors: Mapping[str, Any]) -> None:
        """Raises NotFoundError or InvalidArgumentError if rebind() is not possible."""

    def rebind(self, bound: Bound, tensors: Mapping[str, Any]) -> None:
        """Has the tensors of bind() use others' memory. Call check_rebind() first."""


class NumPy(Framework):
    """NumPy's arrays, on the host backend and in pinned memory."""

    def mapped(self, publication: Publication) -> Tuple[Dict[str, Any], Any]:
        import numpy  # pylint: disable=import-outside-toplevel
        arrays, metadata = super().mapped(publication)
        return {name: numpy.asarray(array) for name, array in arrays.items()}, metadata

    def narrow(self, tensor: Any, dim: int, start: int, length: int) -> Any:
        return tensor[(slice(None),) * dim + (slice(start, start + length),)]


class Torch(Framework):
    """PyTorch's tensors."""

    def __init__(self) -> None:
        import torch  # type: ignore[import]  # pylint: disable=import-outside-toplevel
        from .. import _modules, _tensors  # pylint: disable=import-outside-toplevel
        self._torch, self._tensors, self._modules = torch, _tensors, _modules

    def copy(self, client: "Client", loaded: Any, kind: Optional[str], device: Any,
             progress: Optional[Progress]) -> Tuple[Dict[str, Any], Any]:
        if isinstance(loaded, (self._torch.nn.Module, Mapping)):
            tensors = self._tensors.tensors_of(loaded)
            self._tensors.wait_for_gpus(tensors.values())  # a loader's may be on any stream
            copied = self._tensors.copy_all(client, tensors, kind, device)
            if progress is not None:
                total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
                progress(total, total)
        else:
            copied = self._copy_one_by_one(client, loaded, kind, device, progress)
        return ({name: array for name, (array, _) in copied.items()},
                self._tensors.described(copied, False, None))

    def _copy_one_by_one(self, client: "Client", loaded: Any, kind: Optional[str], device: Any,
                         progress: Optional[Progress]) -> Any:
        from .._tensor_stream import TensorStream  # pylint: disable=import-outside-toplevel
        stream = TensorStream(client, kind, device)
        for name, tensor in pairs_of(loaded):
            stream.add(name, tensor)
            if progress is not None:
                progress(stream.nbytes, 0)
        return stream.finish()

    def dropped(self) -> None:
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            self._torch.cuda.empty_cache()

    def mapped(self, publication: Publication) -> Tuple[Dict[str, Any], Any]:
        tensors, _, metadata = self._tensors.mapped(publication)
        return tensors, metadata

    def bind(self, module: Any, tensors: Mapping[str, Any], strict: bool,
             writable: bool) -> Bound:
        return self._modules.bind(module, tensors, strict, writable)

    def check_rebind(self, bound: Bound, tensors: Mapping[str, Any]) -> None:
        self._modules.check_rebind(bound, tensors)

    def rebind(self, bound: Bound, tensors: Mapping[str, Any]) -> None:
        self._modules.rebind(bound, tensors)


_FRAMEWORKS: Dict[str, Callable[[], Framework]] = {"torch": Torch, "numpy": NumPy,
                                                   "gpumem": Framework}


def framework_of(name: str) -> Framework:
    """Returns the framework of that name. Raises InvalidArgumentError, ImportError."""
    if name not in _FRAMEWORKS:
        raise InvalidArgumentError(
            f"unknown framework {name!r}: use one of {', '.join(_FRAMEWORKS)}")
    return _FRAMEWORKS[name]()
