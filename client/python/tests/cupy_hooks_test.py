# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory hooks under gpumem.cupy, with a stand-in for CuPy."""
import gc
import sys
import threading

import gpumem
import pytest
from conftest import MIB
from cupy_fixtures import _adapter, _cupy, _daemon, _pool  # pylint: disable=unused-import


def test_hooks_are_called(adapter, cupy, pool):
    seen = []

    class Hook(cupy.cuda.memory_hook.MemoryHook):
        pass

    for what in ("alloc", "malloc", "free"):
        for when in ("preprocess", "postprocess"):
            name = f"{what}_{when}"
            setattr(Hook, name, lambda self, _name=name, **words: seen.append((_name, words)))
    with adapter.using(pool):
        with Hook():
            array = cupy.cuda.alloc(MIB)
            where = array.ptr
            del array
        cupy.cuda.alloc(MIB)  # no hook any more
    assert [name for name, _ in seen] == [
        "malloc_preprocess", "alloc_preprocess", "alloc_postprocess", "malloc_postprocess",
        "free_preprocess", "free_postprocess"]
    assert seen[3][1]["size"] == MIB and seen[3][1]["mem_ptr"] == where
    assert seen[4][1] == {"device_id": 0, "mem_size": MIB, "mem_ptr": where, "pmem_id": where}


def test_hooks_are_called_in_pairs_if_the_pool_is_closed(adapter, cupy):
    told = []

    class Hook(cupy.cuda.memory_hook.MemoryHook):
        def malloc_preprocess(self, **_):
            told.append("before")

        def malloc_postprocess(self, **words):
            told.append(words["mem_ptr"])

    with gpumem.connect() as client:
        pool = client.pool()
        with adapter.using(pool), Hook():
            pool.close()
            with pytest.raises(gpumem.FailedPreconditionError):
                cupy.cuda.alloc(MIB)
    assert told == ["before", 0]


def test_hooks_are_those_of_the_thread(adapter, cupy, pool):
    hooks = cupy.cuda.memory_hook
    told = []

    class Hook(hooks.MemoryHook):
        def malloc_preprocess(self, **_):
            told.append(threading.get_ident())

        malloc_postprocess = alloc_preprocess = alloc_postprocess = lambda self, **_: None
        free_preprocess = free_postprocess = alloc_preprocess

    in_force, over, of_thread = threading.Event(), threading.Event(), threading.local()

    def other():
        with adapter.using(pool):
            cupy.cuda.alloc(MIB)
            with Hook():
                cupy.cuda.alloc(MIB)
                in_force.set()
                assert over.wait(60)
            of_thread.array = cupy.cuda.alloc(MIB)  # freed when the thread's state ends

    with adapter.using(pool):
        cupy.cuda.alloc(MIB)
        before_threads = len(hooks.made)
        for _ in range(3):  # of the later ones some have the first one's place
            thread = threading.Thread(target=other)
            thread.start()
            assert in_force.wait(60)
            before = hooks.asked
            for _ in range(100):
                cupy.cuda.alloc(MIB)  # no hook is in force in this thread
            assert hooks.asked == before
            ident = thread.ident
            over.set()
            thread.join()
            in_force.clear()
            over.clear()
            assert told == [ident]
            told.clear()
        gc.collect()
        assert len(hooks.made) == before_threads  # nothing of a thread outlives it
        assert pool.stats().used_blocks == 0
        with Hook():
            cupy.cuda.alloc(MIB)
    assert told == [threading.get_ident()]


def test_an_exception_on_its_way_stays(adapter, cupy, pool):
    class Hook(cupy.cuda.memory_hook.MemoryHook):
        def free_preprocess(self, **_):
            raise RuntimeError("of the hook")  # has no caller to reach

        free_postprocess = alloc_preprocess = alloc_postprocess = lambda self, **_: None
        malloc_preprocess = malloc_postprocess = alloc_preprocess

    def fail():
        array = cupy.cuda.alloc(MIB)
        assert array
        raise KeyError("mine")

    with adapter.using(pool), Hook():
        with _quietly(), pytest.raises(KeyError):
            fail()
        gc.collect()
        assert pool.stats().used_blocks == 0


class _quietly:
    """Unraisable exceptions are expected, and not shown."""

    def __enter__(self):
        self._before, sys.unraisablehook = sys.unraisablehook, lambda _: None

    def __exit__(self, *_):
        sys.unraisablehook = self._before
