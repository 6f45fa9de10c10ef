# SPDX-License-Identifier: Apache-2.0
"""The extension's functions that CuPy calls for each array, without CuPy; threads run meanwhile."""
import ctypes
import subprocess
import threading
import time

import gpumem
import pytest
from conftest import MIB, eventually
from cupy_fixtures import LIMIT, _adapter, _daemon, _pool  # pylint: disable=unused-import


@pytest.mark.parametrize("make", ["a,b".split, lambda separator: "a,b".split(separator)])
def test_what_makes_the_memory_is_called_whatever_it_is(make):
    """As CuPy's own, which is of Cython, and as any other callable."""
    def nothing(*_):
        return None
    state, *_ = gpumem._gpumem.cupy_state(None, 0, nothing, None, nothing, nothing, nothing,
                                          nothing)
    assert gpumem._gpumem.cupy_allocator(state, make)(",") == ["a", "b"]
    with pytest.raises(TypeError):
        gpumem._gpumem.cupy_allocator(state, make)(5)
    with pytest.raises(gpumem.InvalidArgumentError):
        gpumem._gpumem.cupy_allocator(object(), make)
    with pytest.raises(TypeError):
        type(state)()


class _Raw:
    """The functions that CuPy's CFunctionAllocator calls, without CuPy."""

    def __init__(self, pool, current_stream=lambda: 0, on_new_stream=lambda *_: []):
        def nothing(*_):
            return None
        self._state, self._param, malloc, free = gpumem._gpumem.cupy_state(
            pool.handle, 0, current_stream, None, nothing, on_new_stream, nothing, nothing)
        self._malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                         ctypes.c_int)(malloc)
        self._free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(free)

    def malloc(self, size):
        return self._malloc(self._param, size, 0)

    def free(self, pointer):
        self._free(self._param, pointer, 0)


def test_a_pool_does_not_end_while_an_allocation_waits_in_it(adapter):
    del adapter
    with gpumem.connect() as client:
        held = client.acquire(LIMIT - 8 * MIB, device=0)
        for defer in (False, True):
            pool = client.pool(device=0, wait=300)
            raw = _Raw(pool)
            made = []
            thread = threading.Thread(target=lambda raw=raw, made=made: made.append(
                raw.malloc(20 * MIB)))
            thread.start()
            eventually(lambda: client.usage().waiting == 1, "it waits")
            if not defer:
                with pytest.raises(gpumem.FailedPreconditionError, match="in use by 1"):
                    pool.close()
            else:
                pool.close(defer=True)
                assert raw.malloc(100) is None  # no more of a pool that ends
            held.close()
            thread.join()
            ctypes.memset(made[0], 1, 20 * MIB)
            raw.free(made[0])
            pool.close()
            assert raw.malloc(100) is None and pool.handle.views == 0
            held = client.acquire(LIMIT - 8 * MIB, device=0, wait=30)
        held.close()


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "for CuPy's own pool"])
def test_other_threads_run_while_a_pool_grows(daemon, pool, in_order):
    inside, made = threading.Event(), []

    def current_stream():
        inside.set()
        return 0

    raw = _Raw(pool, current_stream if in_order else None)

    def grow():
        if not in_order:
            inside.set()
        made.append(raw.malloc(MIB))

    thread = threading.Thread(target=grow)
    # This thread does not run here, so another process must wake the daemon.
    wakes = f"timeout 10 cat || kill -CONT {daemon.pid()}"
    with daemon.paused(), subprocess.Popen(["sh", "-c", wakes],
                                           stdin=subprocess.PIPE) as watchdog:
        thread.start()
        assert inside.wait(30)
        for _ in range(50):  # the interpreter's lock is had again and again
            time.sleep(0.001)
        grown = list(made)
        watchdog.communicate()
    thread.join()
    assert not grown and made[0]
    raw.free(made[0])


def test_a_stream_that_comes_back_while_it_is_forgotten(pool, adapter):
    del adapter
    current, inside, go = threading.local(), threading.Event(), threading.Event()
    met = []

    def on_new_stream(pointer, idle):
        met.append((pointer, list(idle)))
        if pointer != 2:
            return []
        inside.set()
        go.wait(30)
        return idle

    raw = _Raw(pool, lambda: current.stream, on_new_stream)

    def other():
        current.stream = 2
        raw.free(raw.malloc(100))

    current.stream = 1
    raw.free(raw.malloc(100))  # it is known now, and idle
    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(30)
    block = raw.malloc(100)
    go.set()
    thread.join()
    # It was met anew, and has a block: so it is not idle when the next comes.
    current.stream = 3
    raw.free(raw.malloc(100))
    assert met == [(1, []), (2, [1]), (1, []), (3, [2])]
    raw.free(block)
    current.stream = 4
    raw.free(raw.malloc(100))
    assert met[-1][0] == 4 and sorted(met[-1][1]) == [1, 2, 3]
    assert pool.stats().used_blocks == 0
