# SPDX-License-Identifier: Apache-2.0
"""References between objects: forks, threads, order of ends, and no leaks."""
import gc
import os
import random
import sys
import threading
import weakref

import gpumem
import numpy as np
import pytest
from conftest import MIB, charged, eventually, run_python


def test_a_child_after_fork_gets_clear_errors(daemon):
    said = run_python("""
import os, sys, gpumem, numpy
client = gpumem.connect()
segment = client.acquire(1 << 20)
array = segment.array((4,), "uint8")
pool = client.pool()
block = pool.allocate(100)
pid = os.fork()
if pid == 0:
    bad = []
    for call in (lambda: client.acquire(1 << 20), gpumem.connect, segment.share,
                 lambda: pool.allocate(1), client.usage, gpumem.default_client,
                 lambda: client.attach("x")):
        try:
            call()
            bad.append("no error")
        except gpumem.FailedPreconditionError as error:
            if "fork" not in str(error):
                bad.append(str(error))
    print("child", bad, flush=True)
    del array, block, pool, segment, client  # their ends are the parent's
    sys.exit(0)
_, status = os.waitpid(pid, 0)
memoryview(array)[:2] = b"ok"
assert client.usage().segments == 2
print("parent", status)
""", runtime_dir=daemon.runtime_dir)
    assert said.splitlines() == ["child []", "parent 0"]


def test_a_fork_before_the_first_connection_is_no_matter(daemon):
    said = run_python("""
import os, gpumem
pid = os.fork()
with gpumem.connect() as client:
    client.acquire(1 << 20).close()
if pid:
    print(os.waitpid(pid, 0)[1])
""", runtime_dir=daemon.runtime_dir)
    assert said == "0\n"


def test_threads(client):
    pool = client.pool()
    errors = []

    def work(seed):
        try:
            chance = random.Random(seed)
            for _ in range(100):
                what = chance.randrange(3)
                if what == 0:
                    with client.acquire(MIB) as segment:
                        memoryview(segment)[0] = seed
                        assert memoryview(segment)[0] == seed
                elif what == 1:
                    array = pool.empty(chance.randrange(1, 5000), "uint8")
                    np.asarray(array)[:] = seed
                    assert (np.from_dlpack(array) == seed).all()
                else:
                    with client.acquire(MIB) as segment:
                        with client.open(segment.share()) as same:
                            assert same.segment_id == segment.segment_id
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert pool.stats().used_blocks == 0


def test_closing_while_another_thread_uses_it(client):
    for _ in range(200):
        segment = client.acquire(MIB)
        outcomes = []

        def share(segment=segment, outcomes=outcomes):
            try:
                outcomes.append(segment.share())
            except gpumem.FailedPreconditionError:
                outcomes.append(None)

        thread = threading.Thread(target=share)
        thread.start()
        segment.close()
        thread.join()
        assert len(outcomes) == 1
    assert charged(client) == 0


def test_ends_may_come_in_any_order(daemon):
    """Client, segment, array, NumPy's array, pool, block, attachment: dropped in every order."""
    chance = random.Random(1)
    for _ in range(60):
        client = gpumem.connect(daemon.runtime_dir)
        segment = client.acquire(MIB)
        array = segment.array((16,), "uint8")
        pool = client.pool()
        block = pool.allocate(64)
        client.publish("order", segment.array((3,), "uint8"), ephemeral=True)
        publication = client.attach("order")
        things = {"client": client, "segment": segment, "array": array, "seen": np.asarray(array),
                  "capsule": array.__dlpack__(), "pool": pool, "block": block,
                  "view": memoryview(block), "publication": publication,
                  "attached": np.asarray(publication.value)}
        del client, segment, array, pool, block, publication
        names = list(things)
        chance.shuffle(names)
        for name in names:
            del things[name]
        gc.collect()
    with gpumem.connect(daemon.runtime_dir) as client:
        eventually(lambda: charged(client) == 0 and client.usage().sessions == 1, "all have ended")


def test_the_interpreters_end_gives_all_back(client, daemon):
    done = run_python("""
import gpumem, numpy
client = gpumem.default_client()
keep = [client.acquire(1 << 20), numpy.asarray(gpumem.empty(3)), client.pool().allocate(3),
        client.watch(any=str), gpumem.empty(3).__dlpack__(), gpumem.CancelToken()]
keep.append(keep)
gpumem.keep = keep
print("end")
""", runtime_dir=daemon.runtime_dir)
    assert done == "end\n"
    eventually(lambda: charged(client) == 0, "it is given back")


def _everything_once(client):
    segment = client.acquire(MIB)
    array = segment.array((8, 8), "float32")
    np.asarray(array)
    np.from_dlpack(array)
    gpumem.from_dlpack(array.__dlpack__(max_version=(1, 0)))
    array.__dlpack__()
    memoryview(array).tolist()
    same = client.open(client.share(array))
    same.reshape(64).view("int32")
    same.__array_interface__  # pylint: disable=pointless-statement
    client.publish("once", {"a": array, "b": b"copied"})
    publication = client.attach("once", wait=1)
    dict(publication.arrays)
    client.publications()
    client.unpublish("once")
    pool = client.pool()
    block = pool.allocate(100)
    client.open(block.share())
    pool.stats()
    pool.mem_info()
    client.devices()
    client.usage()
    with client.create_event("event") as event:
        event.record()
        event.wait()
        event.synchronize()
        assert event.done and len(event.ipc_handle()) == 64 and event.cuda_event == 0
    with client.watch():
        pass
    for wrong in (lambda: client.open_event("none"), lambda: client.acquire(1 << 40), lambda: client.open("gmt_none"),
                  lambda: pool.allocate(100 * MIB), lambda: client.acquire(MIB, device="no"),
                  segment.ipc_handle, segment.close, lambda: gpumem.from_dlpack(3)):
        try:
            wrong()
        except (gpumem.Error, TypeError):
            pass


def test_nothing_is_leaked(client):
    """References, objects, descriptors and mappings are as many after many rounds as after few."""
    def counts():
        gc.collect()
        with open("/proc/self/maps", encoding="ascii") as maps:
            return (sys.getrefcount(gpumem._gpumem.Handle), sys.getrefcount(gpumem._gpumem.Memory),
                    sys.getrefcount(None), sys.getrefcount(True), len(gc.get_objects()),
                    len(os.listdir("/proc/self/fd")), sum(1 for line in maps if "memfd" in line))

    for _ in range(5):
        _everything_once(client)
    before = counts()
    for _ in range(40):
        _everything_once(client)
    after = counts()
    for least, most in zip(before, after):
        assert most <= least + 20, (before, after)


def test_memory_of_the_process_does_not_grow(client):
    def blocks():
        gc.collect()
        return sys.getallocatedblocks()

    for _ in range(10):
        _everything_once(client)
    before = blocks()
    for _ in range(60):
        _everything_once(client)
    assert blocks() - before < 600  # less than ten for each round: nothing of each is kept


# ---- Ends in the midst of something --------------------------------------------------------------


def test_nothing_is_made_of_what_another_thread_ends(client):
    """Once close() has begun no array is made, however long the daemon takes to answer."""
    made_after_the_end = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            segment = client.acquire(MIB)
            handle, go = segment.handle, threading.Event()

            def work(segment=segment, handle=handle, go=go):
                go.wait()
                try:
                    while True:
                        array = segment.array((4,), "uint8")
                        if handle.closed:
                            made_after_the_end.append(array)
                        del array
                except gpumem.FailedPreconditionError:
                    pass

            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            go.set()
            while not segment.closed:
                try:
                    segment.close()
                except gpumem.FailedPreconditionError:
                    pass
            for thread in threads:
                thread.join()
            del work
            assert handle.views == 0 and not made_after_the_end
    finally:
        sys.setswitchinterval(interval)


def test_no_array_is_made_while_the_daemon_is_told(client, daemon):
    segment = client.acquire(MIB)
    handle, pointer, place = segment.handle, segment.ptr, segment.place
    with daemon.paused():
        thread = threading.Thread(target=segment.close)
        thread.start()
        eventually(lambda: segment.closed, "the close begins")
        with pytest.raises(gpumem.FailedPreconditionError, match="closed"):
            gpumem.Array(handle, pointer, (4,), "uint8", place=place)
    thread.join()
    assert handle.views == 0


def test_a_watch_goes_with_what_listens(client):
    """An object whose watch calls one of its methods is a cycle, and is collected."""
    class Listener:
        def __init__(self):
            self.told = threading.Event()
            self.watch = client.watch(any=self.tell)

        def tell(self, _):
            self.told.set()

    threads = len(os.listdir("/proc/self/task"))
    references = []
    for _ in range(10):
        listener = Listener()
        assert listener.told.wait(30)
        references.append(weakref.ref(listener))
        del listener

    def all_are_gone():  # one that is just being told lives a moment longer
        gc.collect()
        return not any(reference() for reference in references)

    eventually(all_are_gone, "they are collected")
    assert len(os.listdir("/proc/self/task")) <= threads


def test_a_function_may_drop_its_own_watch(client, daemon):
    del client
    said = run_python("""
import sys, threading, gpumem
client, held, dropped = gpumem.connect(), {}, threading.Event()
made = threading.Event()
def begin():
    def handler(notice):
        made.wait()
        held.clear()
        junk = [bytes(200) for _ in range(1000)]
        dropped.set()
        raise ValueError("after that")
    held["watch"] = client.watch(any=handler)
begin()
failed = threading.Event()
sys.unraisablehook = lambda said: failed.set()
made.set()
print(dropped.wait(30), failed.wait(30))
""", runtime_dir=daemon.runtime_dir)
    assert said == "True True\n"


def test_a_child_after_fork_finds_no_lock_held(daemon):
    said = run_python("""
import faulthandler, os, sys, gpumem
client = gpumem.connect()
segment, watch = client.acquire(1 << 20), client.watch(any=str)
segment._lock.acquire()  # as if another thread were in share()
pid = os.fork()
if pid == 0:
    faulthandler.dump_traceback_later(20, exit=True)
    try:
        segment.share()
    except gpumem.FailedPreconditionError as error:
        print("fork" in str(error), flush=True)
    sys.exit(0)
print(os.waitpid(pid, 0)[1])
os._exit(0)  # which does not flush
""".replace("print(os.waitpid(pid, 0)[1])", "print(os.waitpid(pid, 0)[1], flush=True)"), runtime_dir=daemon.runtime_dir)
    assert said == "True\n0\n"


# ---- Against a model -----------------------------------------------------------------------------


def test_random_operations_against_a_model(client):
    """A thousand steps: every view reads the written data, and the charge equals the model's."""
    chance = random.Random(7)
    segments = []  # [segment, what it holds, its views]
    for step in range(1000):
        what = chance.randrange(8)
        if what == 0 and len(segments) < 12:
            segments.append([client.acquire(MIB, device=chance.randrange(2)), 0, []])
        elif not segments:
            continue
        else:
            entry = chance.choice(segments)
            segment, held, views = entry
            if what == 1:
                view = chance.choice((np.asarray, np.from_dlpack, memoryview))
                views.append(view(segment.array((64,), "uint8", offset=64 * chance.randrange(4))))
            elif what == 2:
                views.append(memoryview(client.open(segment.share())))
            elif what == 3:
                entry[1] = step % 251
                np.asarray(segment.array())[:256] = entry[1]
            elif what == 4 and views:
                views.pop(chance.randrange(len(views)))
            elif what == 5:
                for view in views:
                    assert view[chance.randrange(64)] == held
            elif what == 6:
                # By identity: entries hold arrays, which == compares by element.
                segments = [other for other in segments if other is not entry]
            elif what == 7:
                # Views of other leases do not count here.
                if segment.views:
                    with pytest.raises(gpumem.FailedPreconditionError):
                        segment.close()
                else:
                    views.clear()
                    segment.close()
                    segments = [other for other in segments if other is not entry]
            del entry, segment, views
        if step % 50 == 0:
            gc.collect()
            assert charged(client) == 2 * MIB * len(segments)
