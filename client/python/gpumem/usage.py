# SPDX-License-Identifier: Apache-2.0
"""Devices, what a tenant uses of them, and tenants that a program makes under its tenant."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Tuple

from . import _gpumem
from ._units import UNLIMITED, to_limit
from .errors import InvalidArgumentError

_COUNT_UNLIMITED = (1 << 32) - 1
_PRELOAD = ("account", "broker")  # enum gpumem_preload_mode


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
    byte_seconds: int  # `charged` summed over time, in bytes times seconds

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


@dataclass(frozen=True)
class MadeTenant:
    """A tenant that programs of this user have made under the client's."""

    name: str  # whole
    lasting: bool
    ending: bool  # it was ended, and still has something
    created: float  # Unix time
    charged: int  # bytes on all GPUs, with those under it
    sessions: int  # the same


@dataclass(frozen=True)
class TenantRemains:
    """What a tenant that has ended, and those under it, still have."""

    gone: bool  # nothing
    charged: int  # bytes on all devices
    sessions: int


def _limit(limit: Optional[float], unlimited: int, what: str) -> int:
    """Returns a limit as the C library takes it: 0 is not set."""
    if limit is None:
        return 0
    if limit == float("inf"):
        return unlimited
    if limit < 1:
        raise InvalidArgumentError(f"{what}={limit}: a limit is at least 1, or math.inf for none")
    return int(limit)


# pylint: disable=too-many-arguments
def _limits(limit: Optional[float], device_limits: Optional[Mapping[str, float]],
            total_limit: Optional[float], pinned_limit: Optional[float],
            tier_limit: Optional[float], max_segments: Optional[float],
            max_sessions: Optional[float], max_waiting: Optional[float],
            priority: Optional[int], preload: Optional[str]) -> Tuple[Any, ...]:
    """Returns the limits as _gpumem takes them."""
    if preload is not None and preload not in _PRELOAD:
        raise InvalidArgumentError(f"preload={preload!r} is neither 'account' nor 'broker'")
    on_devices = dict(device_limits or {})
    return (_limit(limit, UNLIMITED, "limit"), tuple(on_devices),
            tuple(_limit(each, UNLIMITED, "device_limits") for each in on_devices.values()),
            _limit(total_limit, UNLIMITED, "total_limit"),
            _limit(pinned_limit, UNLIMITED, "pinned_limit"),
            _limit(tier_limit, UNLIMITED, "tier_limit"),
            _limit(max_segments, _COUNT_UNLIMITED, "max_segments"),
            _limit(max_sessions, _COUNT_UNLIMITED, "max_sessions"),
            _limit(max_waiting, _COUNT_UNLIMITED, "max_waiting"), priority,
            None if preload is None else _PRELOAD.index(preload))


class MakingTenants:
    """The part of a Client that makes tenants."""

    _handle: _gpumem.Handle

    def create_tenant(self, name: Optional[str] = None, *, lasting: bool = False,
                      limit: Optional[float] = None,
                      device_limits: Optional[Mapping[str, float]] = None,
                      total_limit: Optional[float] = None, pinned_limit: Optional[float] = None,
                      tier_limit: Optional[float] = None, max_segments: Optional[float] = None,
                      max_sessions: Optional[float] = None, max_waiting: Optional[float] = None,
                      priority: Optional[int] = None, preload: Optional[str] = None) -> str:
        """Makes a tenant under the client's, which holds what runs in it to the limits. Returns its
        whole name: processes of this user begin in it by gpumem.connect(tenant=...) or
        $GPUMEM_TENANT. What it uses counts against this client's tenant, too.

        name: letters, digits, ".", "_" and "-"; None: one that no other tenant has. lasting: it
        lasts until end_tenant(), also without sessions and over restarts of the daemon, and needs a
        name; else it ends with this client's session. limit: bytes on any one GPU; device_limits:
        on single ones, by UUID. total_limit: on all GPUs; pinned_limit: of pinned host memory;
        tier_limit: of suspended memory. priority: that of this client's tenant at most. preload:
        "account" or "broker", for unmodified programs. None is no limit of this tenant.

        Raises InvalidArgumentError: a malformed name, or no lasting one; AlreadyExistsError;
        PermissionDeniedError: the priority; FailedPreconditionError: this tenant has ended, or is
        too deep; ResourceExhaustedError: too many such tenants.
        """
        return _gpumem.tenant_create(
            self._handle, name, lasting,
            _limits(limit, device_limits, total_limit, pinned_limit, tier_limit, max_segments,
                    max_sessions, max_waiting, priority, preload))

    def update_tenant(self, tenant: str, *, limit: Optional[float] = None,
                      device_limits: Optional[Mapping[str, float]] = None,
                      total_limit: Optional[float] = None, pinned_limit: Optional[float] = None,
                      tier_limit: Optional[float] = None, max_segments: Optional[float] = None,
                      max_sessions: Optional[float] = None, max_waiting: Optional[float] = None,
                      priority: Optional[int] = None, preload: Optional[str] = None) -> None:
        """Changes limits of a tenant that this user has made under this client's. None: as it is;
        math.inf: no limit of this tenant. limit drops earlier device_limits. Revokes nothing.

        Raises NotFoundError: there is none; InvalidArgumentError: nothing is changed;
        FailedPreconditionError: it has ended; PermissionDeniedError: as create_tenant().
        """
        _gpumem.tenant_update(
            self._handle, tenant,
            _limits(limit, device_limits, total_limit, pinned_limit, tier_limit, max_segments,
                    max_sessions, max_waiting, priority, preload))

    def end_tenant(self, tenant: str) -> TenantRemains:
        """Ends such a tenant, and all that were made under it: they get no new session and no new
        memory. What they hold stays until it is released; returns what that is. Call it again to
        see it go. One that is gone is no error."""
        return TenantRemains(*_gpumem.tenant_end(self._handle, tenant))

    def tenants(self) -> List[MadeTenant]:
        """Lists the tenants that this user's programs have made under this client's, by name."""
        return [MadeTenant(name, lasting, ending, created_ms / 1000, charged, sessions)
                for name, lasting, ending, created_ms, charged, sessions
                in _gpumem.tenants(self._handle)]
