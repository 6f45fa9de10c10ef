# SPDX-License-Identifier: Apache-2.0
"""CuPy's default pools and its memory limit under gpumem.cupy, with a stand-in for CuPy."""
import warnings

import gpumem
import pytest
from conftest import MIB, run_python
from cupy_fixtures import LIMIT, _adapter, _cupy, _daemon, _pool  # pylint: disable=unused-import


def test_the_default_pool_tells_the_truth(adapter, cupy):
    own = cupy.get_default_memory_pool()
    used = adapter.use()
    assert cupy.get_default_memory_pool() is used and used is not own
    before = cupy.get_default_memory_pool().used_bytes()
    array = cupy.cuda.alloc(3 * MIB)
    assert cupy.get_default_memory_pool().used_bytes() == before + 3 * MIB
    del array
    cupy.get_default_memory_pool().free_all_blocks()
    assert gpumem.Pool.default(0).stats().reserved_bytes == 0
    adapter.unuse()
    assert cupy.get_default_memory_pool() is own
    assert cupy.cuda.get_allocator() == own.malloc


def test_a_limit_of_the_default_pool_holds(adapter, cupy, pool):
    adapter.use(pool)
    cupy.get_default_memory_pool().set_limit(size=8 * MIB)
    assert pool.limit == 8 * MIB
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.cuda.alloc(9 * MIB)


def test_cupys_own_pool_on_top_is_the_default_pool(adapter, cupy):
    top = adapter.use(cupy_pool=True)
    assert cupy.get_default_memory_pool() is top


def test_the_default_pinned_pool_tells_the_truth(adapter, cupy):
    own = cupy.get_default_pinned_memory_pool()
    adapter.use()
    assert cupy.get_default_pinned_memory_pool() is own
    adapter.use(pinned=True)
    pinned = cupy.get_default_pinned_memory_pool()
    held = cupy.cuda.alloc_pinned_memory(5000)
    assert isinstance(pinned, adapter.PinnedMemoryPool) and pinned.used_bytes() >= 5000
    del held
    pinned.free_all_blocks()
    adapter.unuse()
    assert cupy.get_default_pinned_memory_pool() is own


def test_another_cupy_is_warned_of_once(adapter, cupy, monkeypatch):
    monkeypatch.delattr(cupy, "_default_memory_pool")
    with pytest.warns(RuntimeWarning, match="do not count brokered memory"):
        adapter.use()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter.use()


def test_a_part_of_a_program_changes_no_default(adapter, cupy, pool):
    own = cupy.get_default_memory_pool()
    with adapter.using(pool):
        assert cupy.get_default_memory_pool() is own


def test_use_inside_using_changes_nothing(adapter, cupy, pool):
    """CuPy refuses it."""
    own, own_pinned = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()
    for change in (lambda: adapter.use(pinned=True), adapter.unuse):
        with adapter.using(pool), pytest.raises(ValueError):
            change()
        assert cupy.get_default_memory_pool() is own
        assert cupy.get_default_pinned_memory_pool() is own_pinned


def test_memory_info_is_the_quotas(adapter):
    free, total = adapter.mem_info()
    assert 0 < free <= total == LIMIT
    assert adapter.mem_info(1)[1] == LIMIT


@pytest.mark.parametrize("text, limit", [
    (str(20 * MIB), 20 * MIB), ("25%", LIMIT // 4), ("12.5%", LIMIT // 8), ("0", None),
    ("0%", None), ("", None)])
def test_cupys_limit_is_honoured(adapter, monkeypatch, text, limit):
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
    with gpumem.connect() as client, client.pool() as pool:
        shaped = adapter.MemoryPool(pool)
        assert pool.limit == limit
        shaped.set_limit(size=MIB)  # supersedes it
        assert pool.limit == MIB
    with gpumem.connect() as client, client.pool(limit=5 * MIB) as pool:
        adapter.MemoryPool(pool)
        assert pool.limit == 5 * MIB


def test_a_limit_that_was_lifted_does_not_come_back(adapter, monkeypatch):
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", str(20 * MIB))
    with gpumem.connect() as client, client.pool() as pool:
        with adapter.using(pool) as shaped:
            assert shaped.get_limit() == 20 * MIB
            shaped.set_limit()
        del shaped
        with adapter.using(pool) as shaped:
            assert shaped.get_limit() == 0


@pytest.mark.parametrize("text", ["1GiB", "-1", "101%", "-5%"])
def test_a_limit_that_is_none_is_refused(adapter, pool, monkeypatch, text):
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
    with pytest.raises(ValueError):
        adapter.MemoryPool(pool)


@pytest.mark.parametrize("text, limit", [
    (str(20 * MIB), 20 * MIB), ("+20_971_520", 20 * MIB), ("12.5%", LIMIT // 8),
    (" 1.25e1 % ", LIMIT // 8)])
def test_cupys_limit_holds_for_the_default_pools(daemon, monkeypatch, text, limit):
    """A new process has no default pools yet; those of other devices come later."""
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
    monkeypatch.setenv("GPUMEM_POOL_LIMIT", "")
    said = run_python(f"""
import cupy, gpumem.cupy
used = gpumem.cupy.use()
print(used.get_limit(), gpumem.Pool.default(1).limit, gpumem.cupy.mem_info()[1])
try:
    cupy.cuda.alloc({limit} + 1)
except cupy.cuda.memory.OutOfMemoryError:
    print("refused")
""", runtime_dir=daemon.runtime_dir, fakes=True)
    assert said.split() == [str(limit)] * 3 + ["refused"]


def test_gpumems_own_limit_stays(daemon, monkeypatch):
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", str(20 * MIB))
    monkeypatch.setenv("GPUMEM_POOL_LIMIT", "10MiB")
    said = run_python("""
import gpumem.cupy
print(gpumem.cupy.use().get_limit())
""", runtime_dir=daemon.runtime_dir, fakes=True)
    assert int(said) == 10 * MIB


def test_without_cupys_limit_nothing_is_connected():
    said = run_python("""
import os
os.environ.pop("CUPY_GPU_MEMORY_LIMIT", None)
import gpumem.cupy
gpumem.cupy.use()
print("used")
""", runtime_dir="/nonexistent", fakes=True)
    assert said.strip() == "used"
