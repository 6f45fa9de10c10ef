# SPDX-License-Identifier: Apache-2.0
"""Calls that wait: by threads, by asyncio, until they are cancelled, interrupted, or at an end."""
import _thread
import asyncio
import contextlib
import dis
import gc
import math
import os
import signal
import subprocess
import sys
import threading

import gpumem
import pytest
from conftest import MIB, PATIENCE_S, charged, eventually, run_python


def waiting(client):
    return client.usage().waiting


def test_a_wait_is_served(client):
    held = client.acquire(60 * MIB, device=0)
    granted = []
    thread = threading.Thread(
        target=lambda: granted.append(client.acquire(20 * MIB, device=0, wait=math.inf)))
    thread.start()
    eventually(lambda: waiting(client) == 1, "it waits")
    held.close()
    thread.join()
    assert granted[0].nbytes == 20 * MIB and waiting(client) == 0


def test_a_wait_that_is_over_is_denied(client):
    held = client.acquire(60 * MIB, device=0)
    with pytest.raises(gpumem.ResourceExhaustedError) as caught:
        client.acquire(20 * MIB, device=0, wait=0.02)
    assert caught.value.denial.used == held.nbytes and waiting(client) == 0


def test_a_wait_is_cancelled(client):
    held = client.acquire(60 * MIB, device=0)
    token = gpumem.CancelToken()
    errors = []

    def wait():
        try:
            client.acquire(20 * MIB, device=0, wait=math.inf, cancel=token)
        except gpumem.CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: waiting(client) == 1, "it waits")
    assert not token.cancelled
    token.cancel()
    thread.join()
    assert token.cancelled and len(errors) == 1
    eventually(lambda: waiting(client) == 0 and charged(client) == held.nbytes, "nothing is held")
    with pytest.raises(gpumem.CancelledError):
        client.attach("none", wait=10, cancel=token)


def test_control_c_ends_a_wait(client, daemon):
    held = client.acquire(60 * MIB, device=0)
    with subprocess.Popen([sys.executable, "-c", """
import math, sys, gpumem
client = gpumem.connect()
try:
    client.acquire(20 << 20, device=0, wait=math.inf)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.read()
"""], env={**os.environ, "GPUMEM_RUNTIME_DIR": daemon.runtime_dir}, stdout=subprocess.PIPE,
                          stdin=subprocess.PIPE) as child:
        try:
            eventually(lambda: waiting(client) == 1, "it waits")
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == b"interrupted\n"
            # The daemon hears of it a moment later.
            eventually(lambda: waiting(client) == 0, "the process lives, and waits no more")
            child.communicate(timeout=60)
        finally:
            child.kill()
    eventually(lambda: charged(client) == held.nbytes, "nothing is held by it")


def test_a_program_ends_although_it_waits(client, daemon):
    held = client.acquire(60 * MIB, device=0)
    done = subprocess.run([sys.executable, "-c", """
import asyncio, math, sys, threading, gpumem
client = gpumem.connect()
watch = client.watch(any=str)
threading.Thread(target=lambda: client.acquire(20 << 20, device=0, wait=math.inf),
                 daemon=True).start()
async def main():
    task = asyncio.ensure_future(gpumem.aio.Client(client).attach("none", wait=math.inf))
    while client.usage().waiting < 2:
        await asyncio.sleep(0.005)
    print("ends")
    sys.stdout.flush()
    sys.exit(3)
asyncio.run(main())
"""], check=False, env={**os.environ, "GPUMEM_RUNTIME_DIR": daemon.runtime_dir}, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (3, b"ends\n"), done.stderr.decode()
    assert held.nbytes == 60 * MIB


INTERRUPTED = """
import math, os, signal, sys, threading, gpumem
client = gpumem.connect()
before = client.usage().waiting
def interrupt():
    while client.usage().waiting == before:
        pass
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    {}
except KeyboardInterrupt:
    print("interrupted", flush=True)
{}
"""


def test_control_c_ends_a_wait_that_has_a_token(client, daemon):
    held = client.acquire(60 * MIB, device=0)
    said = run_python(INTERRUPTED.format(
        "client.acquire(20 << 20, device=0, wait=math.inf, cancel=gpumem.CancelToken())",
        "while client.usage().waiting: pass"), runtime_dir=daemon.runtime_dir)
    assert said == "interrupted\n" and held.nbytes == 60 * MIB


def test_control_c_ends_the_wait_of_a_pool(client, daemon):
    held = client.acquire(60 * MIB, device=0)
    said = run_python(INTERRUPTED.format(
        "client.pool(device=0, wait=math.inf).allocate(20 << 20)", "sys.stdout.flush(); os._exit(0)"),
                      runtime_dir=daemon.runtime_dir)
    assert said == "interrupted\n" and held.nbytes == 60 * MIB


def test_the_main_thread_waits_with_a_token(client):
    held = client.acquire(60 * MIB, device=0)
    token = gpumem.CancelToken()

    def cancel():
        eventually(lambda: waiting(client) == 1, "it waits")
        token.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(gpumem.CancelledError):
        client.acquire(20 * MIB, device=0, wait=math.inf, cancel=token)
    thread.join()
    with pytest.raises(gpumem.CancelledError):  # and one that was cancelled before
        client.acquire(20 * MIB, device=0, wait=math.inf, cancel=token)
    assert held.nbytes == 60 * MIB
    eventually(lambda: waiting(client) == 0, "nothing waits")


def interrupted_at(number, work):
    """Runs work(), with a Ctrl-C at moment `number` of those when Python checks for signals: when a
    function begins, and behind calls and loops. Returns its result; None if interrupted."""
    moments, before = 0, {}

    def trace(frame, event, _):
        nonlocal moments
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if (before.get(id(frame), "").startswith(("CALL", "JUMP_BACKWARD", "RESUME"))
                    and operation != "PUSH_EXC_INFO"):  # where the call has raised
                moments += 1
                if moments == number:
                    raise KeyboardInterrupt
            before[id(frame)] = operation
        return trace

    tracing = sys.gettrace()
    try:
        sys.settrace(trace)
        return work()
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(tracing)


@pytest.mark.parametrize("how", ["granted", "token", "denied", "pool"])
def test_control_c_at_every_moment_of_a_wait(client, how):
    """It raises only KeyboardInterrupt, no thread keeps waiting, and nothing is held."""
    held = client.acquire(60 * MIB, device=0) if how == "denied" else None
    token = gpumem.CancelToken()

    def denied():
        with pytest.raises(gpumem.ResourceExhaustedError):
            client.acquire(20 * MIB, device=0, wait=0.001)
        return True

    work = {
        "granted": lambda: client.acquire(MIB, device=0, wait=math.inf),
        "token": lambda: client.acquire(MIB, device=0, wait=math.inf, cancel=token),
        "denied": denied,
        "pool": lambda: client.pool(device=0, wait=math.inf).allocate(MIB),
    }[how]
    number = 1
    while not interrupted_at(number, work):
        number += 1
    assert number > 20
    eventually(lambda: waiting(client) == 0, "nothing waits for nobody")
    gc.collect()
    eventually(lambda: charged(client) == (60 * MIB if held else 0), "nothing is held")
    assert not token._after  # pylint: disable=protected-access


def test_a_wait_for_which_there_is_no_thread(client, monkeypatch):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refused)
    with pytest.raises(RuntimeError, match="new thread"):
        client.acquire(MIB, device=0, wait=math.inf)
    assert waiting(client) == 0 and charged(client) == 0


async def settle(condition):
    """Waits until it is true."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


# ---- asyncio -------------------------------------------------------------------------------------


def test_asyncio_waits_for_memory(client, daemon):
    async def main():
        async with await gpumem.aio.connect(daemon.runtime_dir) as other:
            held = client.acquire(60 * MIB, device=0)
            task = asyncio.ensure_future(other.acquire(20 * MIB, device=0, wait=math.inf))
            await settle(lambda: waiting(client) == 1)
            assert not task.done() and other.tenant == "python"
            held.close()
            segment = await task
            assert segment.nbytes == 20 * MIB
            with pytest.raises(gpumem.ResourceExhaustedError):
                await other.acquire(60 * MIB, device=0, wait=0.01)
            assert len(await other.acquire_many(2 * MIB, 2)) == 2

    asyncio.run(main())
    assert threading.enumerate() == [threading.main_thread()]


def test_a_cancelled_task_holds_nothing(client):
    async def main():
        other = gpumem.aio.Client(client)
        held = client.acquire(60 * MIB, device=0)
        for _ in range(5):
            task = asyncio.ensure_future(other.acquire(20 * MIB, device=0, wait=math.inf))
            await settle(lambda: waiting(client) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settle(lambda: waiting(client) == 0)
            assert charged(client) == held.nbytes
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(other.attach("none", wait=math.inf), 0.02)
        await settle(lambda: waiting(client) == 0)
        held.close()
        # Cancelled just when it is granted: nothing is held all the same.
        for _ in range(20):
            task = asyncio.ensure_future(other.acquire(MIB, wait=math.inf))
            await asyncio.sleep(0)
            task.cancel()
            try:
                (await task).close()
            except asyncio.CancelledError:
                pass
            # A grant to a task that is gone is given back as soon as it comes.
            await settle(lambda: charged(client) == 0)

    asyncio.run(main())


@pytest.mark.parametrize("end", [lambda waits: waits.close(),
                                 lambda waits: waits.throw(KeyboardInterrupt)])
def test_a_coroutine_that_is_given_up(client, end):
    async def main():
        held = client.acquire(60 * MIB, device=0)
        waits = gpumem.aio.Client(client).acquire(20 * MIB, device=0, wait=math.inf)
        waits.send(None)
        await settle(lambda: waiting(client) == 1)
        with contextlib.suppress(KeyboardInterrupt):
            end(waits)
        await settle(lambda: waiting(client) == 0 and charged(client) == held.nbytes)

    asyncio.run(main())


def test_asyncio_waits_for_a_publication(client):
    async def main():
        other = gpumem.aio.Client(client)
        task = asyncio.ensure_future(other.attach("later", wait=60))
        await settle(lambda: waiting(client) == 1)
        assert await other.publish("later", b"abc") == 1
        publication = await task
        assert bytes(memoryview(publication.value)) == b"abc"
        with pytest.raises(gpumem.DeadlineExceededError):
            await other.attach("later", version=2, wait=0.01)

    asyncio.run(main())


def test_asyncio_waits_for_a_quota(client, daemon):
    async def main():
        other = gpumem.aio.Client(client)
        assert (await other.wait_for_quota(lambda quota: True)).limit == 64 * MIB
        with pytest.raises(TimeoutError):
            await other.wait_for_quota(lambda quota: quota.limit == 32 * MIB, timeout=0.01)
        task = asyncio.ensure_future(
            other.wait_for_quota(lambda quota: quota.limit == 32 * MIB, timeout=60))
        daemon.ctl("quota", "set", "python", "--limit", "32MiB")
        quota = await task
        assert quota.max_segments == 200 and quota.parent == "" and not quota.revocable
        assert client.usage().devices[0].quota.limit == 32 * MIB
        async with gpumem.aio.Notices(other) as notices:
            async for notice in notices:
                assert notice.quota == quota
                break

    try:
        asyncio.run(main())
    finally:
        daemon.ctl("quota", "set", "python", "--limit", "64MiB")


# ---- Notices of the daemon -----------------------------------------------------------------------


def test_a_watch_tells(client, daemon):
    told = []
    with client.watch() as watch, client.watch(quota_changed=told.append) as other:
        assert watch.get(timeout=30).quota == client.quota()
        eventually(lambda: told, "the function is called")
        with pytest.raises(TimeoutError):
            watch.get(timeout=0.01)
        with pytest.raises(TimeoutError):
            other.get(timeout=0.01)
        daemon.ctl("quota", "set", "python", "--limit", "40MiB")
        notice = watch.get(timeout=30)
        assert notice.what == "quota_changed" and notice.quota.limit == 40 * MIB
        eventually(lambda: len(told) == 2, "the function is called again")
        assert told[1].quota == notice.quota == client.quota()
        daemon.ctl("quota", "set", "python", "--limit", "64MiB")
    assert watch.closed and other.closed
    with pytest.raises(TypeError, match="unknown notices nothing"):
        client.watch(nothing=print)


def test_get_ends_when_the_watch_is_closed(client):
    watch = client.watch(quota_changed=str)
    errors = []

    def get():
        try:
            watch.get()
        except gpumem.FailedPreconditionError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=get, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    watch.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == ["the watch is closed"] * 2
    with pytest.raises(gpumem.FailedPreconditionError, match="closed"):
        watch.get(1)


def test_pressure_is_told(client, daemon):
    # On a device that no other test here presses: notices of pressure have a pause between them.
    segment = client.acquire(60 * MIB, device=1)
    with client.watch() as watch, gpumem.connect(daemon.runtime_dir) as other:
        # The first notice of a watch: after it, it receives those of others.
        assert watch.get(timeout=30).what == "quota_changed"
        with pytest.raises(gpumem.ResourceExhaustedError):
            other.acquire(30 * MIB, device=1)
        notice = watch.get(timeout=30)
        assert notice.what == "pressure" and notice.device in ("", segment.device)
        assert notice.bytes >= 20 * MIB
