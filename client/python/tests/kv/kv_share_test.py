# SPDX-License-Identifier: Apache-2.0
"""Prefix blocks of the KV cache that two servers of a tenant share, and their revocation."""
import pickle
import random
import signal

import gpumem.kv_cache
import numpy
import pytest
from conftest import MIB, PATIENCE_S, Daemon, charged, eventually
from gpumem.kv_cache import KVCacheSpec, PagedKVCache
from kv_fixtures import (CONFIG, PROMPT, SEGMENT, SPEC, Other, check, fill, kv_cache, kv_daemon,
                         reader_of, sent, serve, take)  # pylint: disable=unused-import


def test_two_servers_share_a_prefix(daemon, client, cache):
    serve(cache, "a", PROMPT)
    shared = cache.share(PROMPT)
    assert len(shared.segments) == 1
    assert shared.segments[0][0].value not in repr(shared), "it is a secret"
    with reader_of(daemon) as reader:
        assert reader.run(f"print({sent(shared)})") == "2\n"
        assert reader.run(f"print({sent(shared)})") == "0\n", "it has them already"
        assert reader.run(f"print(cache.allocate('x', {PROMPT}), cache.stats().opened)") == "32 1\n"
        assert reader.run("print(values('x')[:2])") == "[100.0, 116.0]\n"
        assert reader.run("print(cache.array(cache.block_table('x')[0]).readonly)") == "True\n"
        assert charged(client) == 2 * SEGMENT, "one is the reader's own"
        # The publisher needs the room: shared blocks are not overwritten, and their segment stays
        # until the reader has given it back, too.
        cache.free("a")
        cache.allocate("b", range(16 * 16))
        fill(cache, "b", list(range(16 * 16)))
        assert cache.stats().segments == 4 and charged(client) == 6 * SEGMENT
        assert reader.run("print(values('x')[:2])") == "[100.0, 116.0]\n"
        assert reader.run(f"print({sent(shared)})") == "0\n"
        # A reader that has given it back finds no more.
        reader.run("cache.free('x'); cache.trim()")
        eventually(lambda: charged(client) == 4 * SEGMENT, "all have given it back")
        assert reader.run(f"print({sent(shared)})") == "0\n"
        assert reader.run(f"print(cache.allocate('x', {PROMPT}))") == "0\n"


def test_a_reader_outlives_its_publisher(daemon, client, cache):
    with reader_of(daemon) as publisher:
        publisher.run(f"cache.allocate('a', {PROMPT}); cache.cache_blocks('a', {PROMPT})")
        publisher.run("[numpy.asarray(cache.array(i)).fill(i + 7) for i in range(2)]")
        text = publisher.run(f"print(pickle.dumps(cache.share({PROMPT})).hex())")
        shared = pickle.loads(bytes.fromhex(text))
        assert cache.open(shared) == 2
    assert cache.allocate("x", PROMPT) == 32
    for i, block_id in enumerate(cache.block_table("x")[:2]):
        assert (numpy.asarray(cache.array(block_id)) == i + 7).all()
    assert charged(client) >= SEGMENT
    cache.free("x")
    with pytest.raises(gpumem.ResourceExhaustedError):
        cache.allocate("y", range(1000, 1000 + 17 * 16))
    assert cache.allocate("x", PROMPT) == 32, "to give them back would not have helped"
    # It can pass the blocks on.
    third = cache.share(PROMPT)
    with reader_of(daemon) as reader:
        assert reader.run(f"print({sent(shared)}, {sent(third)})") == "0 2\n"


def test_a_revocation_while_both_hold_a_shared_segment(daemon, client, cache):
    serve(cache, "a", PROMPT)
    shared = cache.share(PROMPT)
    with reader_of(daemon) as reader, Other(daemon, "owner") as owner:
        reader.run(sent(shared))
        reader.run(f"cache.allocate('x', {PROMPT[:33]}); step = cache.running()")
        reader.run("step.__enter__()")
        take(owner, 256)
        # This server gives it back at once, but the memory stays until the other has, too.
        eventually(lambda: cache.stats().segments == 0, "this one has given it back")
        with cache.running() as preempted:
            assert preempted == ["a"]
        assert charged(client) > 0
        assert reader.run("print(values('x')[:2])") == "[100.0, 116.0]\n", "its step goes on"
        # A segment that is being taken back cannot be opened any more.
        assert cache.open(shared) == 0
        reader.run("step.__exit__(None, None, None)")
        owner.end()
        assert reader.run("print(preempted(), cache.stats().opened)") == "['x'] 0\n"
        owner.run("s.clear()")
        assert client.usage().sessions == 2, "both live"


def test_a_server_whose_step_does_not_end_is_ended_alone():
    daemon = Daemon(config=CONFIG.replace("60s", "5s"))
    try:
        with reader_of(daemon) as publisher, reader_of(daemon) as reader:
            publisher.run(f"cache.allocate('a', {PROMPT}); cache.cache_blocks('a', {PROMPT})")
            text = publisher.run(f"print(pickle.dumps(cache.share({PROMPT})).hex())")
            reader.run(sent(pickle.loads(bytes.fromhex(text))))
            reader.run(f"cache.allocate('x', {PROMPT}); step = cache.running(); step.__enter__()")
            with Other(daemon, "owner") as owner:
                take(owner, 256)
                owner.end()
            assert reader.process.wait(PATIENCE_S) == -signal.SIGTERM
            assert publisher.run("print(preempted())") == "['a']\n"
    finally:
        daemon.stop()


def test_a_prefix_of_another_kind(client, cache):
    serve(cache, "a", PROMPT)
    shared = cache.share(PROMPT)
    assert pickle.loads(pickle.dumps(shared)) == shared
    assert not cache.share([1, 2, 3]).segments
    other = KVCacheSpec("model", layers=4, heads=16, head_size=128, dtype="float32", block_size=16,
                        blocks_per_segment=2)
    with PagedKVCache(client, other, limit=16 * MIB) as another:
        with pytest.raises(gpumem.InvalidArgumentError, match="not of"):
            another.open(shared)
    small = client.acquire(MIB, revocable=True)
    forged = type(shared)(SPEC, ((small.share(), ((0, b"x"),)),))
    with PagedKVCache(client, SPEC, limit=16 * MIB) as another:
        with pytest.raises(gpumem.InvalidArgumentError, match="not of a segment"):
            another.open(forged)
        forged = type(shared)(SPEC, ((shared.segments[0][0], ((9, b"x"), (-9, b"y"))),))
        assert another.open(forged) == 0


class Model:
    """What each cache's sequences are, and the tokens that they were given."""

    def __init__(self, caches):
        self.caches = caches
        self.live = [{} for _ in caches]
        self.preempted = 0

    def check(self):
        for cache, live in zip(self.caches, self.live):
            with cache.running() as preempted:
                self.preempted += len(preempted)
                for sequence in preempted:
                    del live[sequence]  # told of once, and only if it lives
                owners = {}
                for sequence, tokens in live.items():
                    check(cache, sequence, tokens)
                    for i, block_id in enumerate(cache.block_table(sequence)):
                        prefix = owners.setdefault(block_id, tokens[:(i + 1) * 16])
                        assert prefix == tokens[:(i + 1) * 16], "owned twice"
                stats = cache.stats()
                assert stats.used == len(owners)
                blocks = 4 * (stats.segments + stats.opened)
                sealed = sum(block.sealed and block.ref_cnt == 0 for segment in
                             cache._pool.segments.values() for block in segment)
                unused = stats.empty + stats.evictable + sealed
                assert stats.used + unused == blocks, "a block is lost"


def test_random_steps_with_revocations(daemon, client, monkeypatch):
    monkeypatch.setattr(gpumem.kv_cache, "_RETRY_S", 0)
    rng = random.Random(3)
    second = gpumem.connect(daemon.runtime_dir)
    caches = [PagedKVCache(each, SPEC, limit=28 * MIB) for each in (client, second)]
    model = Model(caches)
    names = iter(range(1 << 30))
    done = dict.fromkeys(("hit", "full", "opened", "trimmed"), 0)

    def step(cache, live):
        tokens = sum([[rng.randrange(3)] * 16 for _ in range(rng.randrange(1, 7))], [7])
        name = next(names)
        with cache.running():
            try:
                hits = cache.allocate(name, tokens)
            except gpumem.ResourceExhaustedError:
                done["full"] += 1
                return
            done["hit"] += hits > 0
            live[name] = tokens
            fill(cache, name, tokens, hits)
            if rng.random() < 0.8:
                cache.cache_blocks(name, tokens)

    def free(cache, live):
        if live:
            name = rng.choice(list(live))
            cache.free(name)
            del live[name]

    def grow(cache, live):
        with cache.running():
            if live:
                name = rng.choice(list(live))
                before, more = live[name], [rng.randrange(3)] * rng.randrange(1, 20)
                try:
                    cache.extend(name, len(before) + len(more))
                except gpumem.ResourceExhaustedError:
                    return
                live[name] = before + more
                fill(cache, name, live[name], len(before))

    def share(cache, _):
        other = caches[1 - caches.index(cache)]
        tokens = sum([[rng.randrange(3)] * 16 for _ in range(4)], [7])
        done["opened"] += other.open(cache.share(tokens))

    def trim(cache, _):
        done["trimmed"] += cache.trim(rng.choice([1, 8 * MIB]))

    with Other(daemon, "owner") as owner:
        held = 0

        def revoke(*_):
            nonlocal held
            more = min(rng.choice([120, 60, 16]), 256 - held)
            if more > 0:
                held += more
                take(owner, more)
                owner.end()  # both caches have given back enough
            else:
                held = 0
                owner.run("s.clear()")

        steps = [step] * 10 + [free] * 5 + [grow] * 4 + [share] * 2 + [trim, revoke]
        for _ in range(800):
            at = rng.randrange(2)
            rng.choice(steps)(caches[at], model.live[at])
            model.check()
    assert all(done.values()) and model.preempted, (done, model.preempted)
    for cache in caches:
        cache.close()
    second.close()
