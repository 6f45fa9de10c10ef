# SPDX-License-Identifier: Apache-2.0
"""Frameworks whose memory is suspended when others ask for it, on the host backend."""
import contextlib
import gc
import importlib
import subprocess
import threading

import gpumem
import numpy as np
import pytest
from conftest import CONFIG, MIB, daemon_for_fakes, eventually
from gpumem import _gpumem

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


@pytest.fixture(name="torch")
def _torch(daemon):
    daemon.ctl("quota", "set", "python", "--min-residence", "0s", "--idle-suspend", "0s")
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


def session_of(pool):
    return _gpumem.client_info(_gpumem.pool_client(pool.handle))[3]


def asks(daemon, session, what, *options):
    """True if an operator's command succeeds."""
    try:
        daemon.ctl(what, str(session), *options)
        return True
    except subprocess.CalledProcessError:
        return False


@contextlib.contextmanager
def served(torch, daemon, *sessions, **options):
    """gpumem.torch.serve(), once the daemon knows of it. Nothing is suspended yet."""
    with torch.serve(**options) as turns:
        for session in sessions or [session_of(gpumem.Pool.default(0))]:
            eventually(lambda each=session: asks(daemon, each, "resume"), "it serves requests")
        yield turns


def suspend_when_idle(daemon):
    """Has the daemon ask idle programs to suspend. Not before served(): where an operator's resume
    takes the place of such a request, the daemon makes no other one for a minute."""
    daemon.ctl("quota", "set", "python", "--idle-suspend", "100ms")


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_an_operator_suspends_and_resumes(torch, daemon):
    pool = gpumem.Pool.default(0)
    array = filled(pool, 7)
    began, ended = threading.Event(), threading.Event()

    def step():
        began.set()
        with torch.running():
            assert (array == 7).all()
        ended.set()

    with served(torch, daemon):
        for _ in range(2):
            assert asks(daemon, session_of(pool), "suspend")
            eventually(torch.suspended, "the gate is closed")
            assert pool.suspended
            began.clear()
            ended.clear()
            thread = in_thread(step)
            assert began.wait(30) and not ended.wait(0.1)  # the operator resumes
            assert asks(daemon, session_of(pool), "resume")
            thread.join()
            assert not torch.suspended() and not pool.suspended
    assert not asks(daemon, session_of(pool), "suspend")
    del array


def test_the_next_step_resumes_after_a_request_for_memory(client, torch, daemon):
    pool = gpumem.Pool.default(0)
    array = filled(pool, 7, 40 * MIB)
    for _ in range(2):
        with served(torch, daemon, swappable=True):
            with client.acquire(60 * MIB, wait=60):  # of 64 MiB
                eventually(torch.suspended, "the gate is closed")
                thread = in_thread(lambda: check(torch, array, 7))
            thread.join()
            assert not torch.suspended()
    del array


def check(torch, array, number):
    with torch.running():
        assert (array == number).all()


def test_an_idle_program_is_suspended(torch, daemon):
    array = filled(gpumem.Pool.default(0), 3)
    with served(torch, daemon, swappable=True):
        suspend_when_idle(daemon)
        for _ in range(2):
            eventually(torch.suspended, "it is idle")
            check(torch, array, 3)  # in this thread
    torch.resume()
    del array


def test_a_closed_server_leaves_the_next_step_its_task(torch, daemon):
    array = filled(gpumem.Pool.default(0), 3)
    with served(torch, daemon, swappable=True) as turns:
        suspend_when_idle(daemon)
        eventually(torch.suspended, "it is idle")
    assert turns.closed and torch.suspended()
    check(torch, array, 3)
    assert not torch.suspended()
    del array


def test_an_operator_keeps_what_was_suspended_for_others(torch, daemon):
    pool = gpumem.Pool.default(0)
    array = filled(pool, 3)
    with served(torch, daemon, swappable=True):
        suspend_when_idle(daemon)
        eventually(torch.suspended, "it is idle")
        torch.suspend()  # it is the program's now
        thread = in_thread(lambda: check(torch, array, 3))
        thread.join(0.1)
        assert thread.is_alive() and pool.suspended
        torch.resume()
        thread.join()
    torch.resume()
    del array


def test_a_step_that_does_not_end_in_time(torch, daemon):
    pool = gpumem.Pool.default(0)
    array = filled(pool, 3)
    failures = []
    with served(torch, daemon, failed=failures.append) as turns:
        with torch.running():
            assert not asks(daemon, session_of(pool), "suspend", "--timeout", "200ms")
            eventually(lambda: failures, "it has failed")
            with pytest.raises(gpumem.FailedPreconditionError, match="step"):
                turns.close()
            assert (array == 3).all()
        assert isinstance(failures[0], gpumem.DeadlineExceededError)
        assert not torch.suspended()
        check(torch, array, 3)
    del array


def test_a_step_whose_memory_does_not_come_back_raises(client, torch, daemon):
    array = filled(gpumem.Pool.default(0), 3, 40 * MIB)
    with served(torch, daemon, swappable=True, wait=0.1):
        with client.acquire(60 * MIB, wait=60):
            eventually(torch.suspended, "the gate is closed")
            with pytest.raises(gpumem.ResourceExhaustedError):
                check(torch, array, 3)
            assert torch.suspended()
        check(torch, array, 3)
    del array


def test_pools_and_segments_of_the_programs_clients(client, torch, daemon):
    cupy = importlib.import_module("gpumem.cupy")
    default, other = gpumem.Pool.default(0), gpumem.connect(daemon.runtime_dir)
    with client.pool() as pool, other.pool() as later, client.acquire(MIB) as segment:
        shaped = [cupy.MemoryPool(pool)]
        arrays = [filled(each, 5) for each in (pool, later, default)]
        memoryview(segment)[:4] = b"kept"
        with served(torch, daemon, client.session_id, client=client, segments=lambda: [segment]):
            shaped.append(cupy.MemoryPool(later))
            eventually(lambda: asks(daemon, other.session_id, "resume"), "it serves this one, too")
            for session in (client.session_id, other.session_id, session_of(default)):
                assert asks(daemon, session, "suspend")  # the first suspends all
                eventually(torch.suspended, "the gate is closed")
                assert pool.suspended and later.suspended and default.suspended
                assert segment.suspended
            assert asks(daemon, other.session_id, "resume")
            eventually(lambda: not torch.suspended(), "all is resumed")
            assert not segment.suspended and bytes(memoryview(segment)[:4]) == b"kept"
            assert all((array == 5).all() for array in arrays)
        del arrays, shaped
    other.close()


def test_a_tag_means_no_pool(torch, daemon):
    array = filled(gpumem.Pool.default(0), 3)
    with served(torch, daemon):
        assert not asks(daemon, session_of(gpumem.Pool.default(0)), "suspend", "--tag", "kv")
        assert not torch.suspended()
    del array


def test_one_server_at_a_time(client, torch):
    with torch.serve():
        with pytest.raises(gpumem.FailedPreconditionError, match="already"):
            torch.serve()
    torch.serve().close()
    for wrong in ({"client": client}, {"segments": list}):
        with pytest.raises(gpumem.InvalidArgumentError):
            torch.serve(**wrong)


def test_the_interpreter_ends_while_it_serves(daemon):
    run = importlib.import_module("conftest").run_python
    code = "import gpumem.torch; turns = gpumem.torch.serve(); print('served')"
    assert run(code, runtime_dir=daemon.runtime_dir, fakes=True) == "served\n"


def test_a_part_that_the_program_resumed_leaves_the_rest_to_resume(torch, daemon):
    with gpumem.connect() as client:
        weights, cache = client.acquire(MIB), client.acquire(MIB)
        memoryview(weights)[0], memoryview(cache)[0] = 7, 8
        listed = [weights, cache]
        with torch.serve(client=client, segments=lambda: listed):
            torch.suspend()
            client.resume([weights])
            torch.resume()
            assert not cache.suspended and memoryview(cache)[0] == 8
            # One that comes while others are suspended.
            torch.suspend()
            listed.append(client.acquire(MIB))
            torch.resume()
            assert not weights.suspended and not cache.suspended
            # A part is suspended already.
            client.suspend([cache])
            torch.suspend()
            assert all(each.suspended for each in listed)
            torch.resume()
            assert memoryview(weights)[0] == 7 and memoryview(cache)[0] == 8


def test_a_closed_client_leaves_the_others_to_resume(torch, daemon):
    pool = gpumem.Pool.default(0)
    array = filled(pool, 7)
    client = gpumem.connect()
    segment = client.acquire(MIB)
    with torch.serve(client=client, segments=lambda: [segment]):
        torch.suspend()
        client.close()
        torch.resume()
        assert not torch.suspended() and (array == 7).all()


def test_what_the_programs_function_raises_is_reported(torch, daemon):
    failed = []

    def segments():
        raise ValueError("boom")

    with gpumem.connect() as client, client.acquire(MIB):
        with torch.serve(client=client, segments=segments, failed=failed.append):
            eventually(lambda: not asks(daemon, client.session_id, "suspend", "--timeout", "1s")
                       and failed, "the request has failed")
            assert isinstance(failed[0], ValueError) and not torch.suspended()
