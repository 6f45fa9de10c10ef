# SPDX-License-Identifier: Apache-2.0
"""Pools and frameworks that are suspended and resumed, on the host backend."""
import gc
import importlib
import threading

import gpumem
import numpy as np
import pytest
from conftest import CONFIG, MIB, daemon_for_fakes, eventually

TIER = """
[tier]
capacity = "256MiB"
huge_pages = false
prefault = false
"""


@pytest.fixture(scope="module", name="daemon")
def _daemon():
    with daemon_for_fakes(TIER + CONFIG) as daemon:
        yield daemon


@pytest.fixture(name="pool")
def _pool(client):
    with client.pool() as pool:
        yield pool


@pytest.fixture(name="torch")
def _torch(daemon):
    del daemon
    adapter = importlib.import_module("gpumem.torch")
    adapter.use()
    yield adapter
    adapter.resume()
    gc.collect()
    for pool in gpumem.Pool.defaults().values():
        pool.free_all_blocks()


def filled(pool, number, count=MIB):
    array = np.asarray(pool.empty((count,), "uint8"))
    array[:] = number
    return array


def test_contents_come_back(client, pool):
    one, other = filled(pool, 1, 24 * MIB), filled(pool, 2, 100)
    before = one.ctypes.data
    for _ in range(3):
        pool.suspend()
        assert pool.suspended
        with client.acquire(60 * MIB):  # the device is free
            pass
        pool.resume(wait=60)
        assert not pool.suspended and one.ctypes.data == before
        assert (one == 1).all() and (other == 2).all()
    del one, other


def test_what_is_refused_meanwhile(pool):
    array = filled(pool, 1)
    with pytest.raises(gpumem.FailedPreconditionError):
        pool.resume()
    pool.suspend()
    for call in (pool.suspend, lambda: pool.allocate(1), lambda: pool.empty(3)):
        with pytest.raises(gpumem.FailedPreconditionError):
            call()
    freed = pool.stats().used_blocks
    pool.resume()
    assert pool.stats().used_blocks == freed == 1 and (array == 1).all()
    del array


def test_freed_meanwhile(pool):
    goes, stays = pool.allocate(12 * MIB), filled(pool, 7, 12 * MIB)
    pool.suspend()
    reserved = pool.stats().reserved_bytes
    goes.free()
    pool.resume()
    assert pool.stats().reserved_bytes < reserved
    assert (stays == 7).all()
    del stays


def test_quiesce(pool):
    array = filled(pool, 5)

    def refuse():
        raise KeyError("not now")

    with pytest.raises(KeyError):
        pool.suspend(quiesce=refuse)
    assert not pool.suspended and (array == 5).all()
    seen = []
    pool.suspend(quiesce=lambda: seen.append(int(array[0])))
    assert seen == [5]
    pool.resume()
    del array


def test_it_waits_in_the_daemons_queue(client, pool):
    array = filled(pool, 3, 40 * MIB)
    pool.suspend()
    held = client.acquire(48 * MIB)
    with pytest.raises(gpumem.ResourceExhaustedError) as refused:
        pool.resume()
    assert refused.value.denial is not None and pool.suspended
    timer = threading.Timer(0.2, held.close)
    timer.start()
    pool.resume(wait=60)
    timer.join()
    assert (array == 3).all()
    del array


def test_only_kind_vmm(client):
    with client.pool(kind="ipc") as pool:
        block = pool.allocate(MIB)
        with pytest.raises(gpumem.UnimplementedError, match="ipc"):
            pool.suspend()
        block.free()


def test_a_suspended_pool_is_closed(client):
    pool = client.pool()
    block = pool.allocate(MIB)
    pool.suspend()
    block.free()
    pool.close()
    assert pool.closed


# ---- Frameworks ----------------------------------------------------------------------------------


def test_frameworks_have_one_gate(torch):
    assert torch.suspend is importlib.import_module("gpumem.cupy").suspend
    assert torch.suspend is importlib.import_module("gpumem.numba").suspend
    assert 0 in gpumem.Pool.defaults()


def test_the_default_pools_are_suspended(torch):
    array = filled(gpumem.Pool.default(0), 9)
    torch.suspend()
    assert torch.suspended() and gpumem.Pool.default(0).suspended
    torch.suspend()  # does nothing
    torch.resume(wait=60)
    assert not torch.suspended() and (array == 9).all()
    torch.resume()  # does nothing
    del array


def test_a_step_is_waited_for(torch):
    array = filled(gpumem.Pool.default(0), 9)
    inside, go_on = threading.Event(), threading.Event()
    sums = []

    def step():
        with torch.running(), torch.running():
            inside.set()
            go_on.wait(30)
            sums.append(int(array.sum()))

    thread = threading.Thread(target=step)
    thread.start()
    assert inside.wait(30)
    with pytest.raises(gpumem.DeadlineExceededError):
        torch.suspend(wait=0.05)
    assert not torch.suspended()
    go_on.set()
    torch.suspend()
    assert sums == [9 * MIB]  # it ended first
    thread.join()
    late = threading.Thread(target=step)
    inside.clear()
    late.start()
    assert not inside.wait(0.1)  # it blocks
    torch.resume(wait=60)
    late.join()
    assert sums == [9 * MIB] * 2
    del array


def test_a_step_cannot_suspend(torch):
    with torch.running():
        for call in (torch.suspend, torch.resume):
            with pytest.raises(gpumem.FailedPreconditionError, match="itself"):
                call()
    torch.suspend()
    torch.resume()


def test_pools_of_the_program(client, torch):
    cupy = importlib.import_module("gpumem.cupy")
    with client.pool() as pool, client.pool(kind="pinned") as pinned:
        shaped = cupy.MemoryPool(pool), cupy.MemoryPool(pinned)
        array, other = filled(pool, 4), filled(gpumem.Pool.default(0), 6)
        cupy.suspend()
        assert pool.suspended and gpumem.Pool.default(0).suspended and not pinned.suspended
        torch.resume()
        assert not pool.suspended and (array == 4).all() and (other == 6).all()
        del array, other, shaped


def test_all_or_nothing(daemon, client, torch):
    daemon.ctl("quota", "set", "python", "--tier-limit", "64MiB")
    cupy = importlib.import_module("gpumem.cupy")
    with client.pool(device=1) as pool:
        shaped = cupy.MemoryPool(pool)
        array, other = filled(pool, 4, 40 * MIB), filled(gpumem.Pool.default(0), 6, 40 * MIB)
        with pytest.raises(gpumem.ResourceExhaustedError):  # of the tier
            torch.suspend()
        assert not torch.suspended() and not pool.suspended
        assert not gpumem.Pool.default(0).suspended
        with torch.running():
            assert (array == 4).all() and (other == 6).all()
        del array, other, shaped
    daemon.ctl("quota", "set", "python", "--tier-limit", "256MiB")


def test_a_part_is_not_held_for_long(client, torch):
    """Two processes that each hold a part of what the other waits for go on."""
    cupy = importlib.import_module("gpumem.cupy")
    with client.pool() as pool:
        shaped = cupy.MemoryPool(pool)
        array, other = filled(pool, 4, 24 * MIB), filled(gpumem.Pool.default(0), 6, 24 * MIB)
        torch.suspend()
        with client.acquire(36 * MIB):  # of 64: one of the two pools fits
            thread = threading.Thread(target=torch.resume, kwargs={"wait": 60})
            thread.start()
            eventually(lambda: not (gpumem.Pool.default(0).suspended and pool.suspended), "a part")
            client.acquire(20 * MIB, wait=30).close()  # takes what the resume holds
        thread.join()
        assert (array == 4).all() and (other == 6).all()
        del array, other, shaped


def test_an_interrupted_suspend_opens_the_gate(torch, monkeypatch):
    turns = importlib.import_module("gpumem._turns")
    array = filled(gpumem.Pool.default(0), 1)

    def interrupted(predicate, timeout=None):
        raise KeyboardInterrupt

    gate = turns._gate  # pylint: disable=protected-access
    with monkeypatch.context() as patch:
        patch.setattr(gate._changed, "wait_for", interrupted)  # pylint: disable=protected-access
        with pytest.raises(KeyboardInterrupt):
            torch.suspend()
    assert not torch.suspended()
    with torch.running():
        assert (array == 1).all()
    torch.suspend(wait=1e10)  # more than a lock can wait for
    torch.resume()
    del array


def test_steps_and_turns(torch):
    """Two threads work in steps while this one suspends and resumes."""
    array = np.asarray(gpumem.Pool.default(0).empty((2, 100), "int64"))
    array[:] = 0
    ends = threading.Event()
    counts = [0, 0]

    def work(number):
        while not ends.is_set():
            with torch.running():
                array[number] += 1
                counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        seen = list(counts)
        eventually(lambda: all(now > before for now, before in zip(counts, seen)), "steps")
        torch.suspend()  # a step that ran on would fault
        torch.resume(wait=60)
    ends.set()
    for thread in threads:
        thread.join()
    assert (array == np.array(counts)[:, None]).all()
    del array
