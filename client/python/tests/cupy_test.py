# SPDX-License-Identifier: Apache-2.0
"""gpumem.cupy over the host backend, with a stand-in for CuPy that makes the same calls."""
import ctypes
import gc
import weakref

import gpumem
import pytest
from conftest import MIB, charged, eventually
from cupy_fixtures import LIMIT, _adapter, _cupy, _daemon, _pool  # pylint: disable=unused-import


def test_use_takes_memory_from_the_default_pool(adapter, cupy):
    used = adapter.use()
    before = used.used_bytes()
    array = cupy.cuda.alloc(3 * MIB)
    assert array.ptr and gpumem.Pool.default(0).find(array.ptr)[1] >= 3 * MIB
    assert used.used_bytes() == before + 3 * MIB
    assert used.total_bytes() == used.used_bytes() + used.free_bytes()
    assert adapter.use() is used
    del array
    assert used.used_bytes() == before


def test_memory_is_written_and_read(adapter, cupy, pool):
    with adapter.using(pool):
        array = cupy.cuda.alloc(4096)
    ctypes.memset(array.ptr, 7, 4096)
    assert ctypes.string_at(array.ptr, 4096) == b"\x07" * 4096


def test_nothing_is_nothing(adapter, cupy, pool):
    with adapter.using(pool) as shaped:
        array = cupy.cuda.alloc(0)
    assert array.ptr == 0 and shaped.used_bytes() == 0


def test_using_ends_with_its_block(adapter, cupy, pool):
    before = cupy.cuda.get_allocator()
    with adapter.using(pool) as shaped:
        array = cupy.cuda.alloc(1000)
    assert cupy.cuda.get_allocator() is before
    assert shaped.used_bytes() == 1024 and pool.stats().used_blocks == 1
    with pytest.raises(gpumem.FailedPreconditionError):
        pool.close()
    del array
    assert pool.stats().used_blocks == 0


def test_the_pool_stays_while_arrays_live(adapter, cupy):
    client = gpumem.connect()
    pool = client.pool()
    with adapter.using(pool):
        array = cupy.cuda.alloc(1000)
    pool.close(defer=True)
    client.close()
    ctypes.memset(array.ptr, 1, 1000)  # crashes if the memory is unmapped
    assert ctypes.string_at(array.ptr, 1000) == b"\x01" * 1000
    del array


def test_a_pool_without_references_ends_with_its_last_array(adapter, cupy):
    with gpumem.connect() as client:
        before = charged(client)
        with adapter.using(client.pool()):
            array = cupy.cuda.alloc(1000)
        gc.collect()
        assert charged(client) > before
        del array
        gc.collect()
        eventually(lambda: charged(client) == before, "the pool gives its memory back")


def test_a_pool_has_one_shape_as_long_as_that_lives(adapter, cupy, pool):
    used = adapter.use(pool)
    with adapter.using(pool) as shaped:
        assert shaped is used


def test_memory_goes_back_on_the_stream_it_was_made_on(adapter, cupy):
    with gpumem.connect() as client, client.pool(reuse=["same_stream"]) as pool:
        one, other = cupy.cuda.Stream(0x1000), cupy.cuda.Stream(0x2000)
        with adapter.using(pool):
            with one:
                first = cupy.cuda.alloc(MIB)
            where = first.ptr
            with other:
                del first  # still that of the first stream
                second = cupy.cuda.alloc(MIB)
            assert second.ptr != where
            with one:
                third = cupy.cuda.alloc(MIB)
            assert third.ptr == where
            del second, third


def test_streams_live_as_long_as_their_memory(adapter, cupy, pool):
    with adapter.using(pool):
        stream = cupy.cuda.Stream(0x3000)
        kept = weakref.ref(stream)
        with stream:
            array = cupy.cuda.alloc(1000)
        del stream
        with cupy.cuda.Stream(0x4000):
            cupy.cuda.alloc(1000)
        assert kept() is not None
        del array
        with cupy.cuda.Stream(0x5000):  # the next that is new: the pool forgets the first
            cupy.cuda.alloc(1000)
        gc.collect()
        assert kept() is None


@pytest.fixture(name="forgotten")
def _forgotten(monkeypatch):
    """The streams that pools forget, with the pools' devices."""
    seen, forget = [], gpumem._gpumem.pool_forget_stream

    def record(pool, stream):
        seen.append((gpumem._gpumem.pool_info(pool)[0], stream))
        forget(pool, stream)
    monkeypatch.setattr(gpumem._gpumem, "pool_forget_stream", record)
    return seen


def test_streams_outlive_the_allocator_of_their_memory(adapter, cupy, pool, forgotten):
    with adapter.using(adapter.MemoryPool(pool)):
        stream = cupy.cuda.Stream(0x8000)
        kept = weakref.ref(stream)
        with stream:
            array = cupy.cuda.alloc(1000)
    del stream
    gc.collect()
    assert kept() is not None and not forgotten
    del array
    assert kept() is None and forgotten == [(pool.device, 0x8000)]
    assert pool.stats().used_blocks == 0


def test_a_stream_is_forgotten_on_its_device(adapter, cupy, monkeypatch, forgotten):
    with adapter.using(adapter.MemoryPool()):
        monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 1)
        with cupy.cuda.Stream(0x9000):
            cupy.cuda.alloc(1000)
        monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
        with cupy.cuda.Stream(0xa000):
            cupy.cuda.alloc(1000)
        assert forgotten == [(gpumem.Pool.default(1).device, 0x9000)]
    assert forgotten[1:] == [(gpumem.Pool.default(0).device, 0xa000)]


def test_a_borrowed_stream_may_be_destroyed(adapter, cupy, pool, forgotten):
    with adapter.using(pool):
        with cupy.cuda.ExternalStream(0xd000):
            cupy.cuda.alloc(1000)
        pool.forget_stream(0xd000)  # its owner destroys it next
        del forgotten[:]
        with cupy.cuda.Stream(0xe000):
            cupy.cuda.alloc(1000)
    assert forgotten == [(pool.device, 0xe000)]


def test_a_refusal_is_cupys_own_exception(adapter, cupy, pool):
    with adapter.using(pool) as shaped:
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as refused:
            cupy.cuda.alloc(65 * MIB)
        assert isinstance(refused.value.__cause__, gpumem.ResourceExhaustedError)
        assert shaped.used_bytes() == 0
        assert cupy.cuda.alloc(MIB).ptr


def test_a_refusal_of_the_daemons_carries_its_denial(adapter, cupy):
    with adapter.using():
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as refused:
            cupy.cuda.alloc(200 * MIB)
    assert refused.value.denial.limit == LIMIT


def test_more_than_the_device_has_is_out_of_memory(adapter, cupy):
    with adapter.using(), pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.cuda.alloc(1 << 42)


def test_a_refusal_collects_garbage_first(adapter, cupy, pool):
    with adapter.using(pool):
        gc.disable()
        try:
            cycle = [cupy.cuda.alloc(40 * MIB)]
            cycle.append(cycle)
            del cycle
            assert cupy.cuda.alloc(40 * MIB).ptr
        finally:
            gc.enable()


def test_limits(adapter, cupy, pool):
    shaped = adapter.MemoryPool(pool)
    assert shaped.get_limit() == 64 * MIB
    shaped.set_limit(size=8 * MIB)
    assert shaped.get_limit() == 8 * MIB
    with pytest.raises(MemoryError):
        shaped.malloc(9 * MIB)
    shaped.set_limit()
    assert shaped.get_limit() == 0
    shaped.set_limit(fraction=0.5)
    assert shaped.get_limit() == LIMIT // 2
    for none in ({"fraction": 0}, {"fraction": 0.0}, {"size": 0}):
        shaped.set_limit(size=MIB)
        shaped.set_limit(**none)
        assert shaped.get_limit() == 0
    shaped.set_limit(size=0.25 * LIMIT)  # as CuPy takes it, too
    assert shaped.get_limit() == LIMIT // 4
    for wrong in ({"size": 1, "fraction": 0.5}, {"fraction": 1.5}, {"size": -1}):
        with pytest.raises(ValueError):
            shaped.set_limit(**wrong)


def test_free_all_blocks(adapter, cupy, pool):
    with adapter.using(pool) as shaped:
        cupy.cuda.alloc(20 * MIB)
        assert shaped.free_bytes() >= 20 * MIB and shaped.n_free_blocks() >= 1
        shaped.free_all_blocks()
        assert shaped.total_bytes() == 0 and shaped.n_free_blocks() == 0


def test_free_all_blocks_of_a_stream(adapter, cupy, pool):
    one, other = cupy.cuda.Stream(0xb000), cupy.cuda.Stream(0xc000)
    with adapter.using(pool) as shaped:
        with one:
            held = cupy.cuda.alloc(20 * MIB)
        with other:
            cupy.cuda.alloc(20 * MIB)
        before = shaped.total_bytes()
        shaped.free_all_blocks(stream=other)
        assert shaped.total_bytes() <= before - 16 * MIB and shaped.used_bytes() == 20 * MIB
        del held


def test_cupys_own_pool_on_top(adapter, cupy):
    top = adapter.use(cupy_pool=True)
    assert isinstance(top, cupy.cuda.MemoryPool)
    array = cupy.cuda.alloc(MIB)
    assert gpumem.Pool.default(0).find(array.ptr)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as refused:
        cupy.cuda.alloc(1 << 40)
    assert refused.value.status == 2
    assert isinstance(refused.value.__cause__, gpumem.Error)


@pytest.mark.parametrize("shaped", [False, True])
def test_what_cupys_own_pool_has_keeps_the_pool(adapter, cupy, pool, shaped):
    adapter.use(adapter.MemoryPool(pool) if shaped else pool, cupy_pool=True)
    array = cupy.cuda.alloc(MIB)
    assert pool.find(array.ptr)
    with pytest.raises(gpumem.FailedPreconditionError, match="in use"):
        pool.close()
    del array
    assert pool.stats().used_blocks == 0
    pool.close()
    with pytest.raises(gpumem.FailedPreconditionError, match="the pool is closed"):
        cupy.cuda.alloc(MIB)


def test_pinned_memory(adapter, cupy):
    adapter.use(pinned=True)
    memory = cupy.cuda.alloc_pinned_memory(1000)
    assert memory.ptr and memory.mem.size == 1000 and int(memory.mem) == memory.ptr
    assert cupy.cuda.alloc_pinned_memory(0).ptr == 0
    pool = adapter.PinnedMemoryPool()
    held = pool.malloc(5000)
    assert pool.used_bytes() >= 5000
    del held
    assert pool.used_bytes() == 0
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_no_reference_is_lost(adapter, cupy, pool):
    def go(rounds):
        for _ in range(rounds):
            cupy.cuda.alloc(1000)
        for _ in range(rounds // 100):
            with pytest.raises(MemoryError):
                cupy.cuda.alloc(1 << 40)
        gc.collect()
        return len(gc.get_objects())

    with adapter.using(pool):
        before = go(500)
        assert go(2000) - before < 100
