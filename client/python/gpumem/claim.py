# SPDX-License-Identifier: Apache-2.0
"""Claims: of several processes that need the same contents, one loads them."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple, Union

from . import _gpumem
from ._units import to_ms
from ._waiting import CancelToken, call
from .publication import Publication

if TYPE_CHECKING:
    from .client import Client


class Claim:
    """The right to load contents, as the only session of the tenant (Client.attach_or_claim()).

        found = client.attach_or_claim("weights", digest)
        if isinstance(found, gpumem.Claim):
            with found as claim:
                claim.publish(load())    # the others attach

    name (without a tenant), content_id. It ends with publish(), release(), the end of a `with`
    block, and the process; without a publication, the next process that waits gets it. It stays
    over a restart of the daemon.
    """

    def __init__(self, client: "Client", handle: _gpumem.Handle) -> None:
        self._client = client
        self._handle = handle
        self.name, self.content_id = _gpumem.claim_info(handle)

    def publish(self, value: Any, **options: Any) -> int:
        """Publishes the contents, which ends the claim: Client.publish()."""
        return self._client.publish(self.name, value, content_id=self.content_id, **options)

    def release(self) -> None:
        """Gives the claim up. Has no effect after publish(), or if it was released."""
        self._handle.close()

    @property
    def released(self) -> bool:
        """True if release() was called."""
        return self._handle.closed

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return (f"<gpumem.Claim on {self.name!r}, content {self.content_id.hex()}"
                f"{', released' if self.released else ''}>")


def attach_or_claim(client: "Client", name: str, content_id: bytes, *, wait: float,
                    cancel: Optional[CancelToken], writable: bool, map_devices: Sequence[str],
                    address: int, timeout: Optional[float]) -> Union[Publication, Claim]:
    """See Client.attach_or_claim()."""

    def work(token: Optional[CancelToken]) -> Tuple[bool, _gpumem.Handle]:
        return _gpumem.attach_or_claim(client.handle, name, content_id, to_ms(wait),
                                       None if token is None else token.handle, map_devices,
                                       address, to_ms(timeout), writable)

    claimed, handle = call(work, cancel) if wait else work(cancel)
    return Claim(client, handle) if claimed else Publication(name, handle, readonly=not writable)
