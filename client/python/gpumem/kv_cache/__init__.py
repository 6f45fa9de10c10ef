# SPDX-License-Identifier: Apache-2.0
"""A paged KV cache on revocable leases, whose prefix blocks other processes of the tenant can use.

    spec = KVCacheSpec("llama-8b@rev1", layers=32, heads=8, head_size=128, dtype="bfloat16")
    with PagedKVCache(client, spec, limit=8 << 30) as cache:
        with cache.running() as preempted:            # a step: recompute these sequences
            computed = cache.allocate("seq", prompt)  # the tokens that need no computation
            ...                                       # kernels write to cache.block_table("seq")
            cache.cache_blocks("seq", prompt)         # for later prompts with the same prefix

A block holds the keys and values of `block_size` tokens. When the daemon revokes a segment, the
sequences with blocks in it are preempted. See docs/how-to/cache-kv.md. Imported by name.
"""
from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections import deque
from typing import Any, Deque, Dict, Hashable, Iterator, List, Optional, Sequence, Tuple

from .. import _gpumem
from .blocks import Block, BlockPool, KVCacheSpec, KVCacheStats, SharedPrefix
from ..arrays import Array
from ..client import Client
from ..errors import (AlreadyExistsError, Error, FailedPreconditionError, InvalidArgumentError,
                     NotFoundError, ResourceExhaustedError, of_status)
from ..segment import Segment, Ticket
from ..watch import Notice, Watch

__all__ = ["KVCacheSpec", "KVCacheStats", "PagedKVCache", "SharedPrefix"]

_LOOK_S = 0.25  # how often a notice that waits for a step checks if the cache is closed
_RETRY_S = 1.0  # after a denial the daemon is not asked for more


class PagedKVCache:
    """Blocks in revocable segments, which it leases as needed, up to `limit` bytes; `options` are
    those of Client.acquire(). Any thread may use it, one at a time does.

    It leases more memory before it evicts cached blocks. Under pressure of other sessions it gives
    back segments without a block in use. Every call raises FailedPreconditionError after close().
    """

    def __init__(self, client: Client, spec: KVCacheSpec, *, limit: int, **options: Any) -> None:
        self.spec = spec
        self._client = client
        self._options: Dict[str, Any] = {"presses_others": False, **options}
        self._nbytes = spec.block_nbytes * spec.blocks_per_segment
        self._most = limit // self._nbytes
        if self._most < 1:
            raise InvalidArgumentError(f"the limit is below a segment's {self._nbytes} bytes")
        self._pool = BlockPool(spec.blocks_per_segment)
        self._segments: Dict[int, Segment] = {}  # by their number in the pool
        self._opened: Dict[int, str] = {}  # tickets, by the same
        self._preempted: Dict[Hashable, None] = {}
        self._retry_at = -math.inf
        self._lock = threading.RLock()
        self._depth = 0  # of _held() in the thread with the lock
        self._closed = False
        self._ended: Optional[Error] = None  # why there are no more notices
        self._notices: Deque[Notice] = deque()
        this = weakref.ref(self)

        def tell(notice: Notice) -> None:
            cache = this()
            if cache is not None:
                cache._take(notice)  # pylint: disable=protected-access

        self._watch = Watch(client, any=tell)

    # ---- Steps and notices

    @contextlib.contextmanager
    def running(self) -> Iterator[List[Hashable]]:
        """Runs a step: all blocks stay in a `with` block, which must end within the daemon's
        revocation_grace. Returns the sequences that have lost blocks since the last step. They have
        none now: allocate() begins them anew, with the rest of their cached prefix."""
        with self._held():
            preempted, self._preempted = list(self._preempted), {}
            yield preempted

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise FailedPreconditionError("the KV cache is closed")
            if self._depth == 0:
                self._serve()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    def _take(self, notice: Notice) -> None:
        """Serves a notice in the watch's thread, unless the beginning of a step does so first."""
        self._notices.append(notice)
        while self._notices and not self._closed:
            if self._lock.acquire(timeout=_LOOK_S):
                try:
                    self._serve()
                finally:
                    self._lock.release()

    def _serve(self) -> None:
        while self._notices:
            notice = self._notices.popleft()
            if notice.what in ("revocation", "segments_lost"):
                for number, segment in list(self._segments.items()):
                    if segment.lease_id in notice.lease_ids:
                        self._drop(number)
            elif notice.what == "pressure":
                self._give_back(notice.bytes, notice.device)
            elif notice.what == "ended":
                self._ended = of_status(notice.value, notice.message)

    def _drop(self, number: int) -> None:
        self._preempted.update(dict.fromkeys(self._pool.remove(number)))
        self._opened.pop(number, None)
        self._segments.pop(number).close(defer=True)

    def _give_back(self, nbytes: float, device: str = "") -> int:
        given = 0
        for number in self._pool.idle():
            segment = self._segments[number]
            if given < nbytes and device in ("", segment.device):
                given += segment.nbytes
                self._drop(number)
        return given

    def trim(self, nbytes: float = math.inf) -> int:
        """Gives back segments without a block in use until that is `nbytes`: those without contents
        first, then the least recently used. Returns the bytes given back."""
        with self._held():
            return self._give_back(nbytes)

    # ---- Sequences

    def allocate(self, sequence: Hashable, tokens: Sequence[int]) -> int:
        """Gives a new sequence blocks for its tokens: cached ones for its longest known prefix,
        then others, whose contents are undefined. Returns the number of tokens of that prefix. It
        ends before the last token, which a model computes to continue.

        Raises AlreadyExistsError; ResourceExhaustedError: too few blocks are unused, and there is
        no more memory. Then the sequence has none. UnavailableError: the session is over.
        """
        with self._held():
            if sequence in self._pool.tables:
                raise AlreadyExistsError(f"sequence {sequence!r} has blocks: use extend()")
            hits = self._pool.begin(sequence, self.spec.block_hashes(tokens[:-1]))
            try:
                self.extend(sequence, len(tokens))
            except BaseException:
                self._pool.free(sequence)
                raise
            self._preempted.pop(sequence, None)
            return hits * self.spec.block_size

    def extend(self, sequence: Hashable, tokens: int) -> None:
        """Lets a sequence grow to that many tokens. Raises as allocate(), and then changes nothing;
        NotFoundError: the sequence has no blocks, for example since it was preempted."""
        with self._held():
            count = -(-tokens // self.spec.block_size) - len(self._table(sequence))
            while self._pool.empty < count:
                try:
                    self._grow()
                except ResourceExhaustedError:
                    if self._pool.empty + self._pool.evictable >= count:
                        break
                    # Shared blocks are not overwritten: their segments go back instead.
                    sealed = [number for number in self._pool.idle() if number not in self._opened
                              and any(block.sealed for block in self._pool.segments[number])]
                    if not sealed:
                        raise
                    self._drop(sealed[0])
                    self._retry_at = -math.inf
            self._pool.extend(sequence, count)

    def _grow(self) -> None:
        if self._ended is not None:
            raise self._ended  # it would not learn of a revocation
        if len(self._segments) - len(self._opened) >= self._most or (
                time.monotonic() < self._retry_at):
            raise ResourceExhaustedError("the KV cache has too few unused blocks, and is at its "
                                         "limit or was denied memory just now: free a sequence")
        try:
            segment = self._client.acquire(self._nbytes, revocable=True, **self._options)
        except ResourceExhaustedError:
            self._retry_at = time.monotonic() + _RETRY_S
            raise
        self._segments[self._pool.add()] = segment

    def cache_blocks(self, sequence: Hashable, tokens: Sequence[int]) -> None:
        """Lets other sequences use the full blocks of `tokens`, with which the sequence begins, and
        whose keys and values are computed. They must not be written any more."""
        with self._held():
            self._pool.cache(self._table(sequence), self.spec.block_hashes(tokens))

    def free(self, sequence: Hashable) -> None:
        """Ends a sequence, if there is one. Its cached blocks stay until they are evicted."""
        with self._held():
            self._pool.free(sequence)
            self._preempted.pop(sequence, None)

    def _table(self, sequence: Hashable) -> List[Block]:
        if sequence not in self._pool.tables:
            raise NotFoundError(f"sequence {sequence!r} has no blocks: it was freed or preempted")
        return self._pool.tables[sequence]

    # ---- Memory

    def block_table(self, sequence: Hashable) -> List[int]:
        """Returns the ids of a sequence's blocks, in order. Raises NotFoundError as extend()."""
        with self._held():
            return [block.block_id for block in self._table(sequence)]

    def address(self, block_id: int) -> int:
        """Returns the address of a block. Raises NotFoundError if there is none of that id."""
        with self._held():
            segment, offset = self._place(block_id)
            return segment.ptr + offset

    def array(self, block_id: int) -> Array:
        """Returns a block as an array of KVCacheSpec.shape; read-only if it is another cache's. Let
        it end with the step: its memory is not given back before. Raises as address()."""
        with self._held():
            segment, offset = self._place(block_id)
            return segment.array(self.spec.shape, self.spec.dtype, offset=offset)

    def _place(self, block_id: int) -> Tuple[Segment, int]:
        number, index = divmod(block_id, self.spec.blocks_per_segment)
        if number not in self._segments:
            raise NotFoundError(f"the KV cache has no block {block_id}")
        return self._segments[number], index * self.spec.block_nbytes

    def share(self, tokens: Sequence[int]) -> SharedPrefix:
        """Returns the names of the cached blocks of the longest known prefix of the tokens, for
        open() in other processes of the tenant. On a GPU waits for the work of this process. This
        cache then gives such blocks back with their segments, and does not overwrite them."""
        with self._held():
            _gpumem.cuda_synchronize()
            named: Dict[int, List[Tuple[int, bytes]]] = {}
            for block in self._pool.seal(self.spec.block_hashes(tokens)):
                number, index = divmod(block.block_id, self.spec.blocks_per_segment)
                named.setdefault(number, []).append((index, block.block_hash or b""))
            return SharedPrefix(self.spec, tuple((self._segments[number].share(), tuple(blocks))
                                                 for number, blocks in named.items()))

    def open(self, shared: SharedPrefix) -> int:
        """Maps another cache's blocks, read-only, for the sequences of this one. Returns how many
        of them this cache did not have. Blocks that were given back meanwhile are left out.

        Raises InvalidArgumentError: the other cache has another spec.
        """
        with self._held():
            if shared.spec != self.spec:
                raise InvalidArgumentError(f"the blocks are of {shared.spec}, not of {self.spec}")
            before = len(self._pool.cached)
            for ticket, blocks in shared.segments:
                if all(block_hash in self._pool.cached for _, block_hash in blocks):
                    continue
                with contextlib.suppress(NotFoundError, FailedPreconditionError):
                    own = self._pool.segments[self._open(ticket)]
                    for index, block_hash in blocks:
                        self._pool.cache(own[index:index + 1], [block_hash])
            return len(self._pool.cached) - before

    def _open(self, ticket: Ticket) -> int:
        for number, value in self._opened.items():
            if value == ticket.value:
                return number
        segment = self._client.open(ticket, read_only=True, revocable=True)
        if segment.nbytes < self._nbytes:
            raise InvalidArgumentError(f"the ticket is of {segment.nbytes} bytes, not of a segment")
        number = self._pool.add(sealed=True)
        self._segments[number], self._opened[number] = segment, ticket.value
        return number

    def stats(self) -> KVCacheStats:
        """Returns the present numbers."""
        with self._held():
            pool, opened = self._pool, len(self._opened)
            return KVCacheStats(len(self._segments) - opened, opened, pool.used, pool.empty,
                                pool.evictable, len(pool.cached))

    def close(self) -> None:
        """Gives back all memory. Sequences have no blocks any more."""
        self._closed = True
        self._watch.close()
        with self._lock:
            for number in list(self._segments):
                self._drop(number)

    def __enter__(self) -> "PagedKVCache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
