# SPDX-License-Identifier: Apache-2.0
"""The bookkeeping of gpumem.kv_cache: block tables and the prefix index, without any memory."""
from __future__ import annotations

import array
import hashlib
import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Dict, Hashable, List, Optional, Sequence, Tuple

from .._dtypes import parse
from ..errors import InvalidArgumentError
from ..segment import Ticket


@dataclass(frozen=True)
class KVCacheSpec:
    """The geometry of blocks. Caches with equal specs can share blocks."""

    model: str  # names all that the contents depend on: weights, revision, adapter, layout
    layers: int
    heads: int  # of keys and values, on this device
    head_size: int
    dtype: str = "float16"
    block_size: int = 16  # tokens
    blocks_per_segment: int = 64

    def __post_init__(self) -> None:
        if min(*self.shape, self.blocks_per_segment) <= 0:
            raise InvalidArgumentError(f"all numbers of {self} must be above 0")

    @property
    def shape(self) -> Tuple[int, ...]:
        """Returns a block's dimensions: layers, keys and values, tokens, heads, head size."""
        return (self.layers, 2, self.block_size, self.heads, self.head_size)

    @property
    def block_nbytes(self) -> int:
        """Returns the size of a block in bytes."""
        return math.prod(self.shape) * parse(self.dtype).itemsize

    def block_hashes(self, tokens: Sequence[int]) -> List[bytes]:
        """Returns the hash of each full block: SHA-256, chained over all token ids up to its end.
        The same in all processes."""
        hashes = [hashlib.sha256(repr(self).encode()).digest()]
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            ids = array.array("q", tokens[end - self.block_size:end]).tobytes()
            hashes.append(hashlib.sha256(hashes[-1] + ids).digest())
        return hashes[1:]


@dataclass(frozen=True)
class SharedPrefix:
    """Names cached blocks to other processes of the tenant. Pickle it, and keep it as secret as a
    ticket. It opens as long as the cache that made it has the segments."""

    spec: KVCacheSpec
    # Of each segment: its ticket, and the index and hash of each block.
    segments: Tuple[Tuple[Ticket, Tuple[Tuple[int, bytes], ...]], ...]


@dataclass(frozen=True)
class KVCacheStats:
    """Segments, and blocks by state."""

    segments: int  # leased for this cache
    opened: int  # segments of other caches
    used: int  # blocks of sequences
    empty: int  # unused blocks without contents
    evictable: int  # unused cached blocks that can be overwritten
    cached: int  # blocks that a prefix can be found in: used, evictable, or shared


@dataclass(eq=False)
class Block:
    """A block of a segment."""

    block_id: int
    ref_cnt: int = 0  # sequences that use it
    block_hash: Optional[bytes] = None  # if lookup() finds it
    sealed: bool = False  # other processes may read it: never written again
    last_used: int = 0


class BlockPool:
    """Which sequence uses which block. Block `i` of segment `s` has the id `s * per_segment + i`.

    An unused block is empty, evictable (its contents are cached), or sealed. New blocks come from
    the empty ones of the oldest segment, since the daemon revokes the newest segments first; then
    from the evictable ones, the least recently used first.
    """

    def __init__(self, per_segment: int) -> None:
        self.per_segment = per_segment
        self.tables: Dict[Hashable, List[Block]] = {}  # by sequence
        self.segments: Dict[int, List[Block]] = {}  # the oldest first
        self.cached: Dict[bytes, Block] = {}  # by hash
        self._empty: Dict[int, List[Block]] = {}  # by segment
        self._evictable: "OrderedDict[int, Block]" = OrderedDict()  # the least recently used first
        self._clock = itertools.count(1)

    @property
    def used(self) -> int:
        """Returns the number of blocks that sequences use."""
        return sum(block.ref_cnt > 0 for blocks in self.segments.values() for block in blocks)

    @property
    def empty(self) -> int:
        """Returns the number of empty blocks."""
        return sum(map(len, self._empty.values()))

    @property
    def evictable(self) -> int:
        """Returns the number of evictable blocks."""
        return len(self._evictable)

    def add(self, sealed: bool = False) -> int:
        """Adds a segment, and returns its number. A sealed one is another process's."""
        number = next(i for i in itertools.count() if i not in self.segments)
        first = number * self.per_segment
        blocks = [Block(first + i, sealed=sealed) for i in range(self.per_segment)]
        self.segments[number] = blocks
        self._empty[number] = [] if sealed else blocks[::-1]
        return number

    def remove(self, number: int) -> List[Hashable]:
        """Removes a segment. Returns the sequences that used it, which are freed."""
        preempted = [sequence for sequence, table in self.tables.items()
                     if any(block.block_id // self.per_segment == number for block in table)]
        for sequence in preempted:
            self.free(sequence)
        for block in self.segments.pop(number):
            self._uncache(block)
            self._evictable.pop(block.block_id, None)
        del self._empty[number]
        return preempted

    def idle(self) -> List[int]:
        """Returns the segments without a block in use: those without contents first, then the least
        recently used."""
        def last_use(number: int) -> int:
            return max((block.last_used for block in self.segments[number]
                        if block.block_hash is not None), default=0)

        return sorted((number for number in reversed(list(self.segments))
                       if not any(block.ref_cnt for block in self.segments[number])), key=last_use)

    def lookup(self, hashes: Sequence[bytes]) -> List[Block]:
        """Returns the cached blocks of the longest prefix."""
        found: List[Block] = []
        for block_hash in hashes:
            if block_hash not in self.cached:
                break
            found.append(self.cached[block_hash])
        return found

    def begin(self, sequence: Hashable, hashes: Sequence[bytes]) -> int:
        """Begins a sequence with the cached blocks of its longest prefix; returns their number."""
        table = self.tables[sequence] = self.lookup(hashes)
        for block in table:
            self._evictable.pop(block.block_id, None)
            block.ref_cnt += 1
        return len(table)

    def extend(self, sequence: Hashable, count: int) -> None:
        """Appends blocks to a sequence. Requires that as many are empty or evictable."""
        for _ in range(count):
            empty = next((blocks for blocks in self._empty.values() if blocks), None)
            block = empty.pop() if empty else self._evictable.popitem(last=False)[1]
            self._uncache(block)
            block.ref_cnt = 1
            self.tables[sequence].append(block)

    def free(self, sequence: Hashable) -> None:
        """Ends a sequence, if there is one. Its last blocks are evicted before its first."""
        for block in reversed(self.tables.pop(sequence, [])):
            block.ref_cnt -= 1
            block.last_used = next(self._clock)
            if block.ref_cnt > 0 or block.sealed:
                continue
            if block.block_hash is None:
                self._empty[block.block_id // self.per_segment].append(block)
            else:
                self._evictable[block.block_id] = block

    def cache(self, blocks: Sequence[Block], hashes: Sequence[bytes]) -> None:
        """Lets lookup() find the blocks, unless it finds another one of the same hash."""
        for block, block_hash in zip(blocks, hashes):
            if block.block_hash is None and block_hash not in self.cached:
                block.block_hash = block_hash
                self.cached[block_hash] = block

    def seal(self, hashes: Sequence[bytes]) -> List[Block]:
        """Seals the cached blocks of the longest prefix, and returns them."""
        blocks = self.lookup(hashes)
        for block in blocks:
            block.sealed = True
            self._evictable.pop(block.block_id, None)
        return blocks

    def _uncache(self, block: Block) -> None:
        if block.block_hash is not None:
            del self.cached[block.block_hash]
            block.block_hash = None
