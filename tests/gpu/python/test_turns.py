# SPDX-License-Identifier: Apache-2.0
"""Frameworks that are suspended and resumed at random steps calculate what they would without.

TEST_SUSPENSIONS (5) is how often each test suspends. The daemon needs a host tier.
"""
import hashlib
import importlib.util
import json
import os
import random
import threading

import pytest

import gpumem
from support import MIB, child

SUSPENSIONS = int(os.environ.get("TEST_SUSPENSIONS", "5"))
STEPS = 10 + 4 * SUSPENSIONS

needs_cupy = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="no CuPy")
needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="no Numba")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")


def random_steps(first):
    """Returns steps at which to suspend; the same in each run."""
    return sorted(random.Random(first).sample(range(first, STEPS), SUSPENSIONS))


# ---- PyTorch -------------------------------------------------------------------------------------

# For a new process, since use() is for the whole process. Arguments: "use" or "mem_pool", the number
# of steps, and the steps at which to suspend. Prints the bits of each step's loss. No operation of a
# step allocates memory, so that it can be captured under any allocator.
TRAINING = """
    import contextlib, json, sys
    import torch
    import gpumem, gpumem.torch as brokered

    mode, steps, *suspend_at = sys.argv[1], *map(int, sys.argv[2:])
    if mode == "use":
        brokered.use()
        memory = contextlib.nullcontext
    else:
        pool = brokered.mem_pool()
        memory = lambda: brokered.using(pool)
    torch.use_deterministic_algorithms(True)

    def normal(*shape):
        return torch.randn(*shape, generator=random).cuda()

    with memory():
        random = torch.Generator().manual_seed(1)
        x, w0, b0 = normal(512, 256), normal(1024, 256) / 16, normal(1024)
        w1, b1 = normal(1, 1024) / 32, normal(1)
        y = (x[:, :1] * 2).contiguous()
        ones = torch.ones(1, 512, device="cuda")
        h, mask, g_h = (torch.empty(512, 1024, device="cuda") for _ in range(3))
        out, square = (torch.empty(512, 1, device="cuda") for _ in range(2))
        g_w0, g_b0 = torch.empty_like(w0), torch.empty(1, 1024, device="cuda")
        g_w1, g_b1 = torch.empty_like(w1), torch.empty(1, 1, device="cuda")
        loss = torch.empty(1, 1, device="cuda")

    def step():
        torch.mm(x, w0.t(), out=h)
        h.add_(b0).clamp_(min=0)
        torch.mm(h, w1.t(), out=out)
        out.add_(b1).sub_(y)
        torch.mul(out, out, out=square)
        torch.mm(ones, square, out=loss)
        out.mul_(2 / 512)
        torch.mm(out.t(), h, out=g_w1)
        torch.mm(ones, out, out=g_b1)
        torch.mm(out, w1, out=g_h)
        torch.sign(h, out=mask)
        g_h.mul_(mask)
        torch.mm(g_h.t(), x, out=g_w0)
        torch.mm(ones, g_h, out=g_b0)
        for weight, change in ((w0, g_w0), (b0, g_b0[0]), (w1, g_w1), (b1, g_b1[0])):
            weight.sub_(change, alpha=1e-3)  # larger ones diverge

    def bits():
        torch.cuda.synchronize()
        return loss.view(torch.int32).item()

    def others_use_the_device():
        with gpumem.connect() as client:
            array = client.empty((2 << 30,), "uint8")
            brokered.from_array(array).fill_(255)
            torch.cuda.synchronize()
            del array

    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    losses = []
    with torch.cuda.stream(stream), memory():
        for _ in range(3):  # cuBLAS takes its workspace
            step()
            losses.append(bits())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    kept = (x, y, ones, w0, b0, w1, b1, h, mask, g_h, out, square, g_w0, g_b0, g_w1, g_b1, loss)
    addresses = [tensor.data_ptr() for tensor in kept]
    for number in range(3, steps):
        if number in suspend_at:
            brokered.suspend()
            assert brokered.suspended() and gpumem.Pool.default(0).suspended
            others_use_the_device()
            brokered.resume(wait=60)
        with brokered.running():
            graph.replay()
            losses.append(bits())
    assert addresses == [tensor.data_ptr() for tensor in kept]
    print(json.dumps(losses))
"""


def train(mode, suspend_at):
    said = child(TRAINING, mode, STEPS, *suspend_at, timeout=120 + 3 * SUSPENSIONS,
                 environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
    return json.loads(said.splitlines()[-1])


@needs_torch
@pytest.mark.parametrize("mode", ["use", "mem_pool"])
def test_training_with_a_captured_graph(mode):
    stays = train(mode, [])
    assert len(stays) == STEPS and len(set(stays)) > STEPS // 2  # it learns
    assert train(mode, random_steps(3)) == stays


SERVING = """
    import sys, threading
    import torch
    import gpumem, gpumem.torch as brokered

    brokered.use()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh()).cuda()
    x = torch.ones(8, 512, device="cuda")
    with torch.no_grad():
        wanted = model(x).cpu()
    ends, wrong, served = threading.Event(), [], [0, 0]

    def serve(number):
        stream = torch.cuda.Stream()
        while not ends.is_set():
            with brokered.running(), torch.cuda.stream(stream), torch.no_grad():
                answer = model(x).cpu()  # allocates and frees
                if not torch.equal(answer, wanted):
                    wrong.append(number)
                served[number] += 1

    threads = [threading.Thread(target=serve, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for _ in range(int(sys.argv[1])):
        seen = list(served)
        while served[0] == seen[0] or served[1] == seen[1]:
            threads[0].join(0.001)
        brokered.suspend()
        stopped = list(served)
        assert gpumem.Pool.default(0).suspended
        brokered.resume(wait=60)
    ends.set()
    for thread in threads:
        thread.join()
    assert not wrong
    print("served", sum(served) > 0)
"""


@needs_torch
def test_threads_serve_in_steps():
    assert child(SERVING, SUSPENSIONS, timeout=120 + 3 * SUSPENSIONS).split()[-1] == "True"


@needs_torch
def test_memory_of_others_is_waited_for():
    said = child("""
        import threading
        import torch
        import gpumem, gpumem.torch as brokered
        brokered.use()
        x = torch.arange(1 << 28, device="cuda", dtype=torch.int32)  # 1 GiB of 6
        brokered.suspend()
        client = gpumem.connect()
        held = client.acquire(int(5.5 * (1 << 30)))
        try:
            brokered.resume()
        except gpumem.ResourceExhaustedError as error:
            print(error.denial is not None, brokered.suspended())
        timer = threading.Timer(0.5, held.close)
        timer.start()
        brokered.resume(wait=60)
        timer.join()
        print(bool((x == torch.arange(1 << 28, device="cuda", dtype=torch.int32)).all()))
    """)
    assert said.split()[-3:] == ["True", "True", "True"]


# ---- CuPy ----------------------------------------------------------------------------------------


def iterate(suspend_at, pool):
    """Returns a digest of an array after each launch of a captured graph."""
    import cupy
    import gpumem.cupy as adapter
    digests = []
    with adapter.using(pool):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            start = cupy.linspace(0, 1, MIB, dtype="float32")
            x, y = start.copy(), cupy.empty_like(start)
            cupy.multiply(x, 3.0, out=y)  # compiled before
            cupy.sin(y, out=x)
            stream.synchronize()
            stream.begin_capture()
            cupy.multiply(x, 3.0, out=y)  # chaotic: each launch has another result
            cupy.sin(y, out=x)
            graph = stream.end_capture()
            cupy.copyto(x, start)
            gone = cupy.ones(MIB)
            pointer = x.data.ptr
            for number in range(STEPS):
                if number in suspend_at:
                    adapter.suspend()
                    assert pool.suspended
                    with pytest.raises(gpumem.FailedPreconditionError):
                        cupy.empty(10)
                    gone = None  # a free while it is suspended
                    with gpumem.default_client().acquire(1 << 30):
                        pass
                    adapter.resume(wait=60)
                with adapter.running():
                    graph.launch(stream)
                    stream.synchronize()
                    digests.append(hashlib.sha256(cupy.asnumpy(x).tobytes()).hexdigest())
                    gone = cupy.ones(MIB)
            assert x.data.ptr == pointer
        del start, x, y, gone, graph
        stream.synchronize()
    return digests


@needs_cupy
@pytest.mark.usefixtures("cupy_restored")
def test_cupy_with_a_captured_graph(pool):
    stays = iterate([], pool)
    assert len(set(stays)) == STEPS
    assert iterate(random_steps(0), pool) == stays


@needs_cupy
@pytest.mark.usefixtures("cupy_restored")
def test_cupys_pool_on_top():
    import cupy
    import gpumem.cupy as adapter
    adapter.use(cupy_pool=True)
    x = cupy.arange(MIB)
    cupy.ones(64 * MIB, dtype="uint8").sum()  # its memory stays in CuPy's pool
    adapter.suspend()
    used = gpumem.Pool.default(0).stats().used_bytes
    adapter.resume(wait=60)
    assert x.nbytes <= used < 64 * MIB
    assert int(x.sum()) == MIB * (MIB - 1) // 2


@needs_cupy
@pytest.mark.usefixtures("cupy_restored")
def test_threads_of_cupy(pool):
    import cupy
    import gpumem.cupy as adapter
    ends, wrong, steps = threading.Event(), [], [0, 0]

    def work(number):
        with adapter.using(pool), cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.full(MIB, number, dtype="int64")
            while not ends.is_set():
                with adapter.running():
                    total = int((x * 2 + 1).sum())
                    if total != (2 * number + 1) * MIB:
                        wrong.append(total)
                    steps[number] += 1
            stream.synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for _ in range(SUSPENSIONS):
        seen = list(steps)
        while any(now == before and thread.is_alive()
                  for now, before, thread in zip(steps, seen, threads)):
            threads[0].join(0.001)
        adapter.suspend()
        assert pool.suspended
        adapter.resume(wait=60)
    ends.set()
    for thread in threads:
        thread.join()
    assert not wrong and min(steps) >= SUSPENSIONS


# ---- Numba ---------------------------------------------------------------------------------------


@needs_numba
def test_numba():
    said = child("""
        import sys
        import numpy
        import gpumem, gpumem.numba as adapter
        adapter.use()
        from numba import cuda

        @cuda.jit
        def add(x, more):
            i = cuda.grid(1)
            if i < x.size:
                x[i] += more

        x = cuda.to_device(numpy.arange(1 << 20))
        for number in range(int(sys.argv[1])):
            add[4096, 256](x, number)
            adapter.suspend()
            assert gpumem.Pool.default(0).suspended
            adapter.resume(wait=60)
        total = sum(range(int(sys.argv[1])))
        print((x.copy_to_host() == numpy.arange(1 << 20) + total).all())
    """, SUSPENSIONS, timeout=120 + 3 * SUSPENSIONS)
    assert said.split()[-1] == "True"
