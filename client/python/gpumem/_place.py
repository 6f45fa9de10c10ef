# SPDX-License-Identifier: Apache-2.0
"""The location of memory: device, backend and kind."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from . import _cuda, _units

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
