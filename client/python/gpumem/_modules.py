# SPDX-License-Identifier: Apache-2.0
"""Puts tensors of a publication into PyTorch's modules, without a copy."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Tuple

import torch  # type: ignore[import]

from ._tensors import dtype_name, same_bytes
from .errors import InvalidArgumentError, NotFoundError

Bound = List[Tuple[Any, str]]  # tensors of modules, each with the name of what it was made of


@dataclass(frozen=True)
class _Place:
    """Where a module has a parameter or a buffer."""

    table: Dict[str, Any]  # of the module that owns it
    leaf: str  # the key in it
    tensor: Any
    own: bool  # a buffer that is not in the state dict


def _places(module: Any) -> Dict[str, _Place]:
    found: Dict[str, _Place] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        own = getattr(owner, "_non_persistent_buffers_set", ())
        for table in (owner._parameters, owner._buffers):
            for leaf, tensor in table.items():
                if tensor is not None:
                    found[f"{prefix}.{leaf}" if prefix else leaf] = _Place(
                        table, leaf, tensor, table is owner._buffers and leaf in own)
    return found


def _check_fits(name: str, old: Any, new: Any) -> None:
    if tuple(old.shape) != tuple(new.shape) or old.dtype != new.dtype:
        raise InvalidArgumentError(
            f"{name} is {dtype_name(new.dtype)}{list(new.shape)} in the publication, but "
            f"{dtype_name(old.dtype)}{list(old.shape)} in the module")


def _assign(places: Mapping[str, _Place], tensors: Mapping[str, Any]) -> Dict[int, str]:
    """Returns the name of the tensor for each of the module's tensors, by id(): tied parameters are
    one, and have one name. Raises InvalidArgumentError if a tensor does not fit."""
    names: Dict[int, str] = {}
    for name, place in places.items():
        if name not in tensors:
            continue
        _check_fits(name, place.tensor, tensors[name])
        first = names.setdefault(id(place.tensor), name)
        if first != name and not same_bytes(tensors[first], tensors[name]):
            raise InvalidArgumentError(
                f"{first} and {name} are one parameter in the module, but differ in the publication")
    return names


def bind(module: Any, tensors: Mapping[str, Any], strict: bool, writable: bool) -> Bound:
    """Replaces the module's parameters and buffers by these tensors, all or none, and returns what
    the module then has of them.

    strict: the names must be those of the module's state dict. One of tied parameters is enough. A
    buffer that is not in the state dict stays as it is, unless there is a tensor of its name.

    Raises NotFoundError: names differ; InvalidArgumentError: a shape or dtype differs, tied
    parameters differ, or a buffer that would stay has no memory (device "meta").
    """
    places = _places(module)
    names = _assign(places, tensors)
    if strict:
        missing = sorted(name for name, place in places.items()
                         if not place.own and id(place.tensor) not in names)
        more = sorted(tensors.keys() - places.keys())
        if missing or more:
            raise NotFoundError(
                f"{len(missing)} tensors are only in the module {missing[:3]}, and {len(more)} only "
                f"in the publication {more[:3]}: pass strict=False to attach the others")
        for name, place in places.items():
            if place.own and id(place.tensor) not in names and getattr(place.tensor, "is_meta",
                                                                       False):
                raise InvalidArgumentError(
                    f"the buffer {name} is not in the state dict, and has no memory: make the "
                    "module's buffers outside torch.device(\"meta\")")
    made: Dict[int, Any] = {}  # parameters that are one stay one
    for place in places.values():
        old = place.tensor
        if id(old) not in names:
            continue
        if id(old) not in made:
            tensor = tensors[names[id(old)]].detach()
            made[id(old)] = tensor if not isinstance(old, torch.nn.Parameter) else (
                torch.nn.Parameter(tensor, requires_grad=writable and old.requires_grad))
        place.table[place.leaf] = made[id(old)]
    return [(tensor, names[key]) for key, tensor in made.items()]


def check_rebind(bound: Bound, tensors: Mapping[str, Any]) -> None:
    """Raises NotFoundError or InvalidArgumentError if rebind() is not possible."""
    for tensor, name in bound:
        if name not in tensors:
            raise NotFoundError(f"the new version has no tensor {name}")
        _check_fits(name, tensor, tensors[name])


def rebind(bound: Bound, tensors: Mapping[str, Any]) -> None:
    """Has tensors of modules use other memory. They stay the same objects. Call check_rebind()
    first."""
    for tensor, name in bound:
        tensor.data = tensors[name].detach()
