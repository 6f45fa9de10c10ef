# SPDX-License-Identifier: Apache-2.0
"""gpumem for asyncio: the calls that wait, as coroutines.

    client = await gpumem.aio.connect()
    segment = await client.acquire(40 << 30, wait=math.inf)
    weights = await client.attach("weights", version=2, wait=60)

A task that is cancelled meanwhile holds nothing. `client` is also a gpumem.Client and has all its
other functions. A call that asks the daemon one question takes a fraction of a millisecond.
"""
from __future__ import annotations

import asyncio
import math
from typing import Any, Callable, Iterable, List, Optional, Union

from . import client as _client
from ._waiting import call_async
from .claim import Claim
from .publication import Publication
from .segment import Segment
from .watch import Notice, Quota, Watch


class Client:
    """A gpumem.Client whose waiting calls are coroutines; all else is that client's."""

    def __init__(self, client: _client.Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.close()

    async def acquire(self, bytes: int,  # pylint: disable=redefined-builtin
                      **options: Any) -> Segment:
        """gpumem.Client.acquire()."""
        made: Segment = await call_async(
            lambda token: self.client.acquire(bytes, cancel=token, **options))
        return made

    async def acquire_many(self, bytes: int, count: int,  # pylint: disable=redefined-builtin
                           **options: Any) -> List[Segment]:
        """gpumem.Client.acquire_many()."""
        made: List[Segment] = await call_async(
            lambda token: self.client.acquire_many(bytes, count, cancel=token, **options))
        return made

    async def suspend(self, segments: Iterable[Segment], **options: Any) -> None:
        """gpumem.Client.suspend(), in another thread, which also calls `quiesce`. Cancelling the
        task does not undo it: the segments may or may not be suspended."""
        await call_async(lambda token: self.client.suspend(segments, **options))

    async def resume(self, segments: Iterable[Segment], **options: Any) -> None:
        """gpumem.Client.resume()."""
        await call_async(lambda token: self.client.resume(segments, cancel=token, **options))

    async def demote(self, segments: Iterable[Segment], **options: Any) -> None:
        """gpumem.Client.demote(), in another thread, which also calls `pause` and `proceed`.
        Cancelling the task ends the wait for memory; later steps go on."""
        await call_async(lambda token: self.client.demote(segments, cancel=token, **options))

    async def promote(self, segments: Iterable[Segment], **options: Any) -> None:
        """gpumem.Client.promote(), in the same way."""
        await call_async(lambda token: self.client.promote(segments, cancel=token, **options))

    async def attach(self, name: str, **options: Any) -> Publication:
        """gpumem.Client.attach()."""
        made: Publication = await call_async(
            lambda token: self.client.attach(name, cancel=token, **options))
        return made

    async def attach_or_claim(self, name: str, content_id: bytes,
                              **options: Any) -> Union[Publication, Claim]:
        """gpumem.Client.attach_or_claim()."""
        found: Union[Publication, Claim] = await call_async(
            lambda token: self.client.attach_or_claim(name, content_id, cancel=token, **options))
        return found

    async def publish(self, name: str, value: Any, **options: Any) -> int:
        """gpumem.Client.publish(), which may copy much. Cancelling the task does not undo it: the
        version may or may not be published."""
        version: int = await call_async(
            lambda token: self.client.publish(name, value, **options))
        return version

    async def wait_for_quota(self, accept: Callable[[Quota], bool],
                             timeout: float = math.inf) -> Quota:
        """Returns the tenant's quota as soon as `accept(quota)` is true, which may be now.

        Raises TimeoutError after `timeout` seconds."""
        async with Notices(self.client) as notices:
            async def accepted() -> Quota:
                while True:
                    quota = (await notices.get()).quota
                    if quota is not None and accept(quota):
                        return quota
            try:
                return await asyncio.wait_for(accepted(), None if math.isinf(timeout) else timeout)
            except asyncio.TimeoutError:
                raise TimeoutError(f"no quota that `accept` accepts within {timeout} s") from None


class Notices:
    """Notices of the daemon as they arrive: `async with Notices(client) as notices: await
    notices.get()`, or `async for notice in notices`."""

    def __init__(self, client: Any) -> None:
        self._client = client.client if isinstance(client, Client) else client
        self._watch: Optional[Watch] = None

    async def __aenter__(self) -> "Notices":
        loop = asyncio.get_running_loop()
        notices: "asyncio.Queue[Notice]" = asyncio.Queue()

        def tell(notice: Notice) -> None:
            try:
                loop.call_soon_threadsafe(notices.put_nowait, notice)
            except RuntimeError:
                pass  # the loop is closed: no task listens

        self._notices = notices
        self._watch = await call_async(lambda token: Watch(self._client, any=tell))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()

    async def get(self) -> Notice:
        """Returns the next notice."""
        return await self._notices.get()

    def __aiter__(self) -> "Notices":
        return self

    async def __anext__(self) -> Notice:
        return await self.get()


async def connect(*args: Any, **options: Any) -> Client:
    """gpumem.connect()."""
    made: _client.Client = await call_async(lambda token: _client.connect(*args, **options))
    return Client(made)
