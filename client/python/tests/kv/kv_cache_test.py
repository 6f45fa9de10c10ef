# SPDX-License-Identifier: Apache-2.0
"""The KV cache on revocable leases: sequences, eviction, pressure and revocation."""
import contextlib
import gc

import gpumem
import numpy
import pytest
from conftest import MIB, PATIENCE_S, Daemon, charged, eventually, run_python
from gpumem.kv_cache import KVCacheSpec, PagedKVCache
from kv_fixtures import (CONFIG, PROMPT, SEGMENT, SPEC, Other, check, fill, is_told,
                         kv_cache, kv_daemon, serve, take)  # pylint: disable=unused-import


def test_sequences_with_a_common_prefix_share_its_blocks(cache):
    assert serve(cache, "a", PROMPT) == 0
    assert serve(cache, "b", PROMPT) == 32
    assert serve(cache, "c", PROMPT[:32]) == 16, "the last token has to be computed"
    a, b, c = map(cache.block_table, "abc")
    assert a[:2] == b[:2] and a[2] != b[2] and c[0] == a[0] and c[1] != a[1]
    stats = cache.stats()
    assert (stats.segments, stats.used, stats.empty, stats.cached) == (2, 5, 3, 2)
    cache.extend("a", 49)
    assert cache.block_table("a")[:3] == a and len(cache.block_table("a")) == 4
    check(cache, "a", PROMPT)
    for name in "abc":
        cache.free(name)
    cache.free("c")
    with pytest.raises(gpumem.NotFoundError, match="was freed or preempted"):
        cache.block_table("a")
    assert serve(cache, "d", PROMPT) == 32


def test_addresses(cache):
    cache.allocate("a", range(16 * 9))
    places = sorted(map(cache.address, cache.block_table("a")))
    assert all(after - before >= MIB for before, after in zip(places, places[1:]))
    assert cache.array(8).ptr == cache.address(8) and cache.array(8).shape == SPEC.shape
    for block_id in (-1, 12):
        with pytest.raises(gpumem.NotFoundError):
            cache.address(block_id)


def test_the_limit(cache, client):
    assert serve(cache, "old", PROMPT) == 0
    cache.free("old")
    cache.allocate("a", range(16 * 14))  # without eviction
    assert charged(client) == 16 * MIB and cache.stats().evictable == 2
    with pytest.raises(gpumem.ResourceExhaustedError):
        cache.allocate("b", range(1000, 1000 + 16 * 3))
    with pytest.raises(gpumem.AlreadyExistsError):
        cache.allocate("a", [1])
    assert cache.stats().evictable == 2, "it was all or nothing"
    cache.allocate("b", range(1000, 1000 + 16 * 2))  # evicts
    assert cache.stats().cached == 0
    with pytest.raises(gpumem.ResourceExhaustedError):
        cache.extend("b", 33)
    assert len(cache.block_table("b")) == 2
    with pytest.raises(gpumem.InvalidArgumentError):
        PagedKVCache(client, SPEC, limit=SEGMENT - 1)


def test_trim_gives_unused_segments_back(cache, client):
    serve(cache, "a", PROMPT)
    serve(cache, "b", list(range(500, 564)))
    cache.allocate("c", range(16 * 6))
    cache.free("c")
    assert charged(client) == 16 * MIB
    assert cache.trim(1) == SEGMENT
    assert cache.trim() == SEGMENT
    cache.free("b")
    assert cache.trim() == SEGMENT
    check(cache, "a", PROMPT)
    cache.free("a")
    assert cache.trim() == SEGMENT and cache.stats().cached == 0
    eventually(lambda: charged(client) == 0, "all is back")


def test_pressure_takes_unused_segments(daemon, client, cache):
    serve(cache, "a", PROMPT)
    cache.allocate("b", range(16 * 12))
    cache.free("b")
    with Other(daemon) as other:  # its tenant's limit is 64 MiB
        other.run("s = c.acquire(60 << 20, wait=60, revocable=True)")
        eventually(lambda: charged(client) == 64 * MIB, "the rest is the cache's")
        with cache.running() as preempted:
            assert not preempted
            check(cache, "a", PROMPT)
        with pytest.raises(gpumem.ResourceExhaustedError):
            cache.allocate("b", range(32))
        assert cache.allocate("b", PROMPT[:16] + [1]) == 16


def test_a_revocation_takes_the_newest_segments_and_preempts_their_sequences(daemon, client, cache):
    prompts = {"a": PROMPT, "b": PROMPT[:16] + list(range(900, 960)),
               "c": list(range(64)), "d": [7]}
    with Other(daemon, "owner") as owner:
        for sequence, prompt in prompts.items():
            serve(cache, sequence, prompt)
        assert [cache.block_table(sequence) for sequence in "abcd"] == [
            [0, 1, 2], [0, 3, 4, 5, 6], [7, 8, 9, 10], [11]]
        with cache.running() as preempted:
            take(owner, 248)  # of 256 MiB
            eventually(lambda: is_told(cache), "a revocation is told")
            for sequence, prompt in prompts.items():
                check(cache, sequence, prompt)
            assert not preempted and charged(client) == 12 * MIB
        owner.end()  # no step follows: the watch's thread gives back
        with cache.running() as preempted:
            assert preempted == ["c", "d"]
            for sequence in "ab":
                check(cache, sequence, prompts[sequence])
            with pytest.raises(gpumem.NotFoundError):
                cache.extend("c", 100)
            with pytest.raises(gpumem.ResourceExhaustedError):
                cache.allocate("c", prompts["c"])
        with cache.running() as preempted:
            assert preempted == [], "it is told once"
        take(owner, 4)
        owner.end()
        assert serve(cache, "b", PROMPT[:16] + [1]) == 16, "the rest of the prefix is found"
        with cache.running() as preempted:
            assert preempted == [], "it has begun anew"
            check(cache, "a", PROMPT)
        take(owner, 4)
        owner.end()
        cache.free("b")  # it has ended anyway
        with cache.running() as preempted:
            assert preempted == ["a"]
        assert cache.stats().segments == 0
        owner.run("s.pop().close(); s.pop().close()")
        eventually(lambda: cache_again(cache), "there is memory again")
        check(cache, "a", PROMPT)


def cache_again(cache):
    with contextlib.suppress(gpumem.ResourceExhaustedError):
        return serve(cache, "a", PROMPT) == 0


def test_without_a_step_the_memory_goes_back_at_once(daemon, client, cache):
    cache.allocate("a", range(16 * 16))
    with Other(daemon, "owner") as owner:
        take(owner, 256)
        owner.end()
        assert charged(client) == 0
        with cache.running() as preempted:
            assert preempted == ["a"]


def test_the_next_step_knows_of_a_revocation_before_it(cache):
    """Also if it begins before the watch's thread has the lock."""
    serve(cache, "a", PROMPT)
    cache._notices.append(gpumem.Notice("revocation", lease_ids=(cache._segments[0].lease_id,)))
    with cache.running() as preempted:
        assert preempted == ["a"]


def test_lost_segments_are_given_back(client, cache):
    """A daemon that did not inherit them does not charge them."""
    serve(cache, "a", PROMPT)
    cache.allocate("b", [1])
    lost = cache._segments[0].lease_id
    cache._take(gpumem.Notice("segments_lost", lease_ids=(lost, lost + 1000)))
    with cache.running() as preempted:
        assert preempted == ["a", "b"]
    assert cache.stats().segments == 0
    eventually(lambda: charged(client) == 0, "it is given back")


def test_an_array_keeps_revoked_memory(daemon, client, cache):
    """It is the program's duty to end it: the daemon would end the process."""
    cache.allocate("a", [1])
    array = numpy.asarray(cache.array(0))
    with Other(daemon, "owner") as owner:
        take(owner, 256)
        with contextlib.closing(client.watch()) as watch:
            while watch.get(PATIENCE_S).what != "revocation":
                pass
        eventually(lambda: cache.stats().segments == 0, "the sequence is preempted")
        array[:] = 1
        assert charged(client) == SEGMENT
        del array
        owner.end()


def test_a_process_with_firm_memory_cannot_have_it(daemon):
    assert run_python("""
import gpumem
from gpumem.kv_cache import *
client = gpumem.connect()
firm = client.acquire(1 << 20)
with PagedKVCache(client, KVCacheSpec("m", 1, 1, 64), limit=1 << 30) as cache:
    try:
        cache.allocate("a", [1])
    except gpumem.FailedPreconditionError as error:
        print("not revocable" in str(error))
    firm.close()
    print(cache.allocate("a", [1]))
""", runtime_dir=daemon.runtime_dir) == "True\n0\n"


def test_weights_are_attached_with_revocable_leases(daemon):
    run_python("import gpumem, numpy; gpumem.publish('weights', numpy.arange(8))",
               runtime_dir=daemon.runtime_dir)
    assert run_python("""
import gpumem, numpy
from gpumem.kv_cache import *
client = gpumem.connect()
with PagedKVCache(client, KVCacheSpec("m", 1, 1, 64), limit=1 << 30) as cache:
    cache.allocate("a", [1])
    print(numpy.asarray(client.attach("weights", revocable=True).value).sum())
client.unpublish("weights")
""", runtime_dir=daemon.runtime_dir) == "28\n"


def test_the_end(client):
    cache = PagedKVCache(client, SPEC, limit=16 * MIB)
    cache.allocate("a", [1])
    with cache.running():
        cache.close()  # also in a step
    cache.close()
    for call in (cache.stats, cache.trim, lambda: cache.allocate("b", [1])):
        with pytest.raises(gpumem.FailedPreconditionError, match="is closed"):
            call()
    cache = PagedKVCache(client, SPEC, limit=16 * MIB)
    cache.allocate("a", [1])
    del cache
    gc.collect()
    eventually(lambda: charged(client) == 0, "its end gives all back")


def test_without_notices_it_gets_no_more_memory(cache):
    """It would not learn of revocations, and be ended."""
    serve(cache, "a", PROMPT)
    cache._take(gpumem.Notice("ended", value=14, message="too many watches"))
    check(cache, "a", PROMPT)
    assert cache.allocate("b", PROMPT) == 32, "one block is left"
    with pytest.raises(gpumem.UnavailableError, match="too many watches"):
        cache.allocate("c", PROMPT)


def test_a_daemon_that_is_killed():
    daemon = Daemon(kept=True, config=CONFIG)
    client = gpumem.connect(daemon.runtime_dir)
    with PagedKVCache(client, SPEC, limit=16 * MIB) as cache, Other(daemon, "owner") as owner:
        serve(cache, "a", PROMPT)
        daemon.kill()
        assert serve(cache, "b", PROMPT + list(range(64))) == 32
        check(cache, "a", PROMPT)
        take(owner, 252)
        owner.end()
        with cache.running() as preempted:
            assert preempted == ["b"]
            check(cache, "a", PROMPT)
    client.close()
    daemon.stop()
