# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors that come one after another, so that a loader need not hold all of them."""
from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch  # type: ignore[import]

from . import arrays
from ._tensors import (ALIGNMENT, Copied, copy_into, device_name, dtype_name, identity, same_bytes,
                       tensor_of, wait_for_gpus)
from .arrays import Array
from .errors import InvalidArgumentError, ResourceExhaustedError
from .segment import Segment

if TYPE_CHECKING:
    from .client import Client

_SMALLEST, _LARGEST = 16 << 20, 512 << 20  # bytes, of a segment for several tensors
_MOST = 1024  # small tensors that a segment is made for
_OPEN = 8  # segments of a device that may have room for the next tensor


@dataclass
class _Room:
    """A segment that the next tensors of a device may go to."""

    segment: Segment
    used: int = 0  # bytes
    names: List[str] = field(default_factory=list)

    @property
    def offset(self) -> int:
        """Returns where the next tensor would begin."""
        return -(-self.used // ALIGNMENT) * ALIGNMENT

    @property
    def left(self) -> int:
        """Returns the bytes behind that."""
        return self.segment.size - self.offset


class TensorStream:
    """Copies tensors into segments, in the order in which they come. It holds none of them: at any
    time the loader's present tensor and the copies are all that there is.

    A tensor is tied to an earlier one if that one still lives, is the same memory in the same way,
    and has still the bytes that were copied. The last excludes a loader's buffer that it uses again.
    """

    def __init__(self, client: "Client", kind: Optional[str], device: Any) -> None:
        self._client, self._kind, self._device = client, kind, device
        self.nbytes = 0  # that were copied
        self._rooms: Dict[Any, List[_Room]] = {}
        self._totals: Dict[Any, int] = {}
        self._made: Copied = {}
        self._seen: Dict[Tuple[Any, ...], Tuple["weakref.ref[Any]", str]] = {}
        self._sources: Dict[Any, Any] = {}  # an empty tensor of each device that tensors came from

    def add(self, name: Any, tensor: Any) -> None:
        """Copies a tensor. Raises InvalidArgumentError: no tensor, or the name has come before."""
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(
                f"the loader's entry {name!r} is {type(tensor).__name__}, not a tensor with a str "
                "as its name")
        if name in self._made:
            raise InvalidArgumentError(f"the loader gave two tensors the name {name!r}")
        plain = tensor.detach()
        where = device_name(plain, self._device)
        key = (where,) + identity(plain)
        tied = self._tied(key, plain)
        if tied is not None:
            self._made[name] = self._made[tied]
            self._names_of(tied, where, name)
            return
        nbytes = plain.numel() * plain.element_size()
        room = self._room(where, nbytes)
        offset = room.offset
        array = copy_into(room.segment, offset if nbytes else 0, plain)
        room.used = offset + nbytes if nbytes else room.used
        room.names.append(name)
        self._totals[where] = self._totals.get(where, 0) + nbytes
        self._made[name] = (array, dtype_name(plain.dtype))
        self._sources.setdefault(plain.device, plain[:0] if plain.shape else plain)
        if nbytes:
            self._seen[key] = (weakref.ref(tensor), name)
        self.nbytes += nbytes

    def finish(self) -> Copied:
        """Returns the copies, complete."""
        wait_for_gpus(self._sources.values())
        for where, rooms in self._rooms.items():
            for room in rooms:
                if room.left > room.segment.size // 8:
                    self._shrink(where, room)
        self._rooms.clear()
        return self._made

    def _tied(self, key: Tuple[Any, ...], tensor: Any) -> Optional[str]:
        """Returns the name of an earlier tensor that this one is."""
        if key not in self._seen:
            return None
        earlier, name = self._seen[key]
        if earlier() is None:
            return None
        return name if same_bytes(tensor, tensor_of(*self._made[name])) else None

    def _names_of(self, tied: str, where: Any, name: str) -> None:
        for room in self._rooms.get(where, ()):
            if tied in room.names:
                room.names.append(name)

    def _room(self, where: Any, nbytes: int) -> _Room:
        """Returns the room that a tensor fits best: a model's small tensors fill what its large
        ones leave."""
        rooms = self._rooms.setdefault(where, [])
        fitting = [room for room in rooms if nbytes <= room.left]
        if fitting:
            return min(fitting, key=lambda room: room.left)
        size = self._size(self._totals.get(where, 0), nbytes)
        try:
            segment = self._client.acquire(size, kind=self._kind, device=where)
        except ResourceExhaustedError:
            if size < nbytes + ALIGNMENT:
                raise
            segment = self._client.acquire(max(nbytes, 1), kind=self._kind, device=where)
        if len(rooms) == _OPEN:
            rooms.remove(min(rooms, key=lambda room: room.left))
        rooms.append(_Room(segment))
        return rooms[-1]

    @staticmethod
    def _size(total: int, nbytes: int) -> int:
        """Returns the size of a segment for a tensor and its likes, after `total` bytes of others. A
        model has many tensors of one size: a multiple of it leaves no rest."""
        wanted = max(_SMALLEST, min(total // 4, _MOST * nbytes, _LARGEST))
        each = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
        return each * max(1, wanted // each)

    def _shrink(self, where: Any, room: _Room) -> None:
        """Moves a segment's tensors to a segment without much unused memory, if there is room."""
        try:
            smaller = self._client.acquire(max(room.used, 1), kind=self._kind, device=where)
        except ResourceExhaustedError:
            return
        if smaller.size >= room.segment.size:
            return
        if room.used:
            arrays.copy_into(smaller.array((room.used,), "uint8"),
                             room.segment.array((room.used,), "uint8"))
        for name in room.names:
            array, dtype = self._made[name]
            made: Array = smaller.array(array.shape, array.dtype, offset=array.offset)
            self._made[name] = (made, dtype)
