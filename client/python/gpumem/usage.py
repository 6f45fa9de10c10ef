# SPDX-License-Identifier: Apache-2.0
"""Devices, and what a tenant uses of them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from ._units import to_limit


@dataclass(frozen=True)
class Peer:
    """A GPU's access to another GPU's memory."""

    uuid: str
    access: bool
    native_atomics: bool
    performance_rank: int  # 0: the fastest link of the node


@dataclass(frozen=True)
class Device:
    """A device's present state; sizes in bytes."""

    uuid: str
    name: str
    pci_bus_id: str
    backend: str  # "cuda" or "host"
    capacity: int  # bytes that the daemon may lease
    charged: int  # bytes that all tenants together are charged for
    granularity: int  # sizes are rounded up to a multiple of it
    pool_granularity: int  # of kind mempool where that differs, else 0
    driver_free: int  # 0: not known
    kinds: Tuple[str, ...]  # the first is the default
    peers: Tuple[Peer, ...]


@dataclass(frozen=True)
class DeviceUsage:
    """A tenant's usage and limits on a device; bytes but for `waiting_requests`."""

    device: str
    leased: int
    retained: int  # kept for reuse
    lingering: int  # released, but a process may still map them
    charged: int  # all of these
    limit: int  # in force
    peak: int
    guarantee: int  # bytes that the tenant can always get
    borrowed: int  # bytes held above that
    waiting: int  # bytes that requests wait for
    waiting_requests: int
    revocable: int  # bytes held that the daemon may take back

    @property
    def quota(self) -> "DeviceQuota":
        """The tenant's quota there."""
        return DeviceQuota(self.device, to_limit(self.limit), self.guarantee)


@dataclass(frozen=True)
class DeviceQuota:
    """A tenant's quota in force on a device, in bytes."""

    device: str
    limit: Optional[int]
    guarantee: int


@dataclass(frozen=True)
class Usage:
    """The present usage of the client's tenant."""

    tenant: str
    charged: int  # bytes, on all devices
    segments: int
    sessions: int
    waiting: int  # requests that wait for memory
    devices: Tuple[DeviceUsage, ...]
