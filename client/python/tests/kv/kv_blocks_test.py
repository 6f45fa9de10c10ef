# SPDX-License-Identifier: Apache-2.0
"""The bookkeeping of the KV cache, without a daemon: hashes, eviction, and random steps beside a
model."""
import random

import gpumem
import pytest
from gpumem.kv_cache.blocks import BlockPool, KVCacheSpec

SPEC = KVCacheSpec("model", layers=2, heads=2, head_size=8, block_size=4, blocks_per_segment=3)


def test_a_spec():
    assert SPEC.shape == (2, 2, 4, 2, 8) and SPEC.block_nbytes == 2 * 2 * 4 * 2 * 8 * 2
    with pytest.raises(gpumem.InvalidArgumentError):
        KVCacheSpec("model", layers=0, heads=2, head_size=8)


def test_hashes_depend_on_all_tokens_before_and_on_the_spec():
    one = SPEC.block_hashes(range(12))
    assert len(one) == len(set(one)) == 3
    assert SPEC.block_hashes(list(range(15))) == one  # full blocks only
    other = SPEC.block_hashes([9] + list(range(1, 12)))
    assert not set(one) & set(other)  # the last two blocks have the same tokens
    assert SPEC.block_hashes([0, 1, 2, 3, 0, 1, 2, 3])[0] != SPEC.block_hashes([0, 1, 2, 3] * 2)[1]
    renamed = KVCacheSpec("model2", layers=2, heads=2, head_size=8, block_size=4,
                          blocks_per_segment=3)
    assert not set(one) & set(renamed.block_hashes(range(12)))
    # Other processes and later versions have to find the same.
    assert one[0].hex().startswith("59c9eca1de8fbb74"), one[0].hex()


def ids(pool, sequence):
    return [block.block_id for block in pool.tables[sequence]]


def test_the_oldest_segment_is_filled_first_and_the_newest_is_idle():
    pool = BlockPool(3)
    assert [pool.add(), pool.add(), pool.add()] == [0, 1, 2]
    pool.begin("a", [])
    pool.extend("a", 4)
    assert ids(pool, "a") == [0, 1, 2, 3]
    assert pool.idle() == [2]
    pool.remove(0)
    assert "a" not in pool.tables and pool.empty == 6
    assert pool.add() == 0
    pool.begin("b", [])
    pool.extend("b", 1)
    assert ids(pool, "b")[0] // 3 == 1, "segment 1 is older than the new segment 0"


def test_the_least_recently_used_is_evicted_from_its_end():
    pool = BlockPool(4)
    pool.add()
    hashes = {name: SPEC.block_hashes([number] * 8) for number, name in enumerate("abc")}
    for name in "ab":
        pool.begin(name, hashes[name])
        pool.extend(name, 2)
        pool.cache(pool.tables[name], hashes[name])
    pool.free("b")
    pool.free("a")
    assert pool.begin("b2", hashes["b"]) == 2  # used again
    pool.free("b2")
    pool.begin("c", hashes["c"])
    pool.extend("c", 1)
    assert len(pool.lookup(hashes["a"])) == 1 and len(pool.lookup(hashes["b"])) == 2


def test_idle_segments_without_contents_go_first():
    pool = BlockPool(2)
    hashes = {name: SPEC.block_hashes([number] * 8) for number, name in enumerate("abc")}
    for name in "abc":
        pool.add()
        pool.begin(name, [])
        pool.extend(name, 2)
    for name in "ba":
        pool.cache(pool.tables[name], hashes[name])
        pool.free(name)
    assert pool.idle() == [1, 0]
    pool.free("c")
    assert pool.idle() == [2, 1, 0]


def test_sealed_blocks_are_not_overwritten():
    pool = BlockPool(2)
    pool.add()
    hashes = SPEC.block_hashes(range(4))
    pool.begin("a", hashes)
    pool.extend("a", 2)
    pool.cache(pool.tables["a"], hashes)
    assert [block.block_id for block in pool.seal(hashes)] == [0]
    pool.free("a")
    assert (pool.empty, pool.evictable) == (1, 0)
    assert pool.begin("b", hashes) == 1 and ids(pool, "b") == [0]
    assert pool.remove(0) == ["b"]
    assert not pool.cached and not pool.segments


class Model:
    """The contents of memory, and the tokens of each sequence."""

    def __init__(self, pool):
        self.pool = pool
        self.tokens = {}
        self.computed = {}  # tokens of each sequence whose contents are written
        self.memory = {}  # tokens up to the end of each block, by id
        self.sealed = {}  # the same of sealed blocks
        self.foreign = set()  # segments

    def check(self):
        pool = self.pool
        assert pool.tables.keys() == self.tokens.keys()
        uses = {}
        for sequence, table in pool.tables.items():
            chain = self.tokens[sequence]
            assert len(table) == -(-len(chain) // SPEC.block_size)
            assert len({id(block) for block in table}) == len(table), "one block twice"
            for i, block in enumerate(table):
                uses[block.block_id] = uses.get(block.block_id, 0) + 1
                end = (i + 1) * SPEC.block_size
                if end <= self.computed[sequence]:
                    assert self.memory[block.block_id] == chain[:end], "overwritten"
        empty = evictable = 0
        known = set()
        for number, blocks in pool.segments.items():
            for block in blocks:
                known.add(block.block_id)
                assert block.block_id // pool.per_segment == number
                assert block.ref_cnt == uses.get(block.block_id, 0)
                if block.ref_cnt > 1:
                    assert block.block_hash is not None, "owned twice, and no shared prefix"
                if block.block_hash is not None:
                    assert pool.cached[block.block_hash] is block
                    assert SPEC.block_hashes(self.memory[block.block_id])[-1] == block.block_hash
                if block.ref_cnt == 0 and not block.sealed:
                    empty += block.block_hash is None
                    evictable += block.block_hash is not None
        assert uses.keys() <= known, "a block of no segment"
        assert (pool.empty, pool.evictable) == (empty, evictable), "a block is lost"
        assert all(block.block_id in known for block in pool.cached.values())
        for block_id, contents in self.sealed.items():
            assert self.memory[block_id] == contents, "a sealed block was written"

    def write(self, sequence, begin):
        """The engine computes a sequence's tokens from there on."""
        chain, table = self.tokens[sequence], self.pool.tables[sequence]
        for i in range(begin // SPEC.block_size, len(table)):
            self.memory[table[i].block_id] = chain[:(i + 1) * SPEC.block_size]
        self.computed[sequence] = len(chain)

    def forget(self, sequences):
        for sequence in sequences:
            del self.tokens[sequence], self.computed[sequence]


@pytest.mark.parametrize("seed", range(20))
def test_random_steps(seed):
    rng = random.Random(seed)
    pool = BlockPool(SPEC.blocks_per_segment)
    model = Model(pool)
    names = iter(range(1 << 30))
    done = dict.fromkeys(("hit", "short", "evicted", "preempted", "sealed", "foreign"), 0)

    def prompt():  # few different blocks, so that common prefixes are
        blocks = [[rng.randrange(2)] * SPEC.block_size for _ in range(rng.randrange(1, 6))]
        return sum(blocks, []) + [7] * rng.randrange(1, 5)

    def extend(sequence, count):
        if pool.empty + pool.evictable < count:
            return False
        done["evicted"] += count > pool.empty
        pool.extend(sequence, count)
        return True

    def allocate():
        tokens, sequence = prompt(), next(names)
        hits = pool.begin(sequence, SPEC.block_hashes(tokens[:-1]))
        if not extend(sequence, -(-len(tokens) // SPEC.block_size) - hits):
            done["short"] += 1
            pool.free(sequence)
            return
        done["hit"] += hits > 0
        model.tokens[sequence], model.computed[sequence] = tokens, hits * SPEC.block_size
        model.check()
        model.write(sequence, hits * SPEC.block_size)

    def grow():
        if model.tokens:
            sequence = rng.choice(list(model.tokens))
            before, more = model.tokens[sequence], rng.randrange(1, 9)
            table = len(pool.tables[sequence])
            if extend(sequence, -(-(len(before) + more) // SPEC.block_size) - table):
                model.tokens[sequence] = before + [rng.randrange(2)] * more
                model.write(sequence, len(before))

    def cache():
        if model.tokens:
            sequence = rng.choice(list(model.tokens))
            pool.cache(pool.tables[sequence], SPEC.block_hashes(model.tokens[sequence]))

    def free():
        if model.tokens:
            sequence = rng.choice(list(model.tokens))
            pool.free(sequence)
            model.forget([sequence])

    def revoke():
        if pool.segments:
            number = rng.choice(list(pool.segments))
            lost = pool.remove(number)
            done["preempted"] += len(lost)
            model.forget(lost)
            for block_id in range(number * pool.per_segment, (number + 1) * pool.per_segment):
                model.memory.pop(block_id, None)
                model.sealed.pop(block_id, None)

    def lease():
        if len(pool.segments) < 6:
            pool.add()

    def seal():
        for block in pool.seal(SPEC.block_hashes(prompt())):
            done["sealed"] += 1
            model.sealed[block.block_id] = model.memory[block.block_id]

    def open_foreign():
        if len(pool.segments) < 6:
            tokens = prompt()
            blocks = pool.segments[pool.add(sealed=True)]
            for i, (block, block_hash) in enumerate(zip(blocks, SPEC.block_hashes(tokens))):
                if block_hash not in pool.cached:
                    done["foreign"] += 1
                    chain = tokens[:(i + 1) * SPEC.block_size]
                    model.memory[block.block_id] = model.sealed[block.block_id] = chain
                    pool.cache([block], [block_hash])

    steps = [allocate] * 8 + [grow] * 4 + [cache] * 6 + [free] * 6 + [lease] * 3 + [
        revoke, seal, open_foreign]
    for _ in range(1500):
        rng.choice(steps)()
        model.check()
    assert all(done.values()), done
