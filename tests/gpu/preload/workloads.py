#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""workloads.py NAME: runs one GPU program that knows nothing of gpumem, and prints its results as one
line of JSON. suite.py runs each alone and under the preload, and compares the lines.

A workload whose package is missing prints {"skipped": REASON}. Keys that begin with "_" are figures,
which are not compared."""
import functools
import json
import os
import sys
import time

GIB = 1 << 30
WORKLOADS = {}


def workload(function):
    WORKLOADS[function.__name__] = function
    return function


def close(value):
    """Rounds to three digits: sums on a GPU need not be the same to the bit."""
    return float(f"{float(value):.3g}")


def compared(results):
    return {key: value for key, value in results.items() if not key.startswith("_")}


def torch_module(config=None):
    if config is not None:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = config
    import torch
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def train(torch, steps=20, width=2048):
    net = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(),
                              torch.nn.Linear(width, width)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = torch.randn(512, width, device="cuda")
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(data) - data).square().mean()
        loss.backward()
        optimizer.step()
    return {"loss": close(loss)}


def train_long(config=None):
    torch = torch_module(config)
    ballast = torch.arange(2 << 30, device="cuda", dtype=torch.int8)
    results = train(torch, steps=2500)
    kept = torch.arange(2 << 30, device="cuda", dtype=torch.int8)
    return {**results, "kept": bool((ballast == kept).all())}


WORKLOADS["train_long"] = train_long
WORKLOADS["train_long_async"] = functools.partial(train_long, "backend:cudaMallocAsync")
WORKLOADS["train_long_expandable"] = functools.partial(train_long, "expandable_segments:True")


def rounds_of(seconds):
    begin = time.time()
    rounds = 0
    while rounds < 20 or time.time() - begin < seconds:
        yield rounds
        rounds += 1


@workload
def cupy_async_long():
    """Memory of two streams that comes and goes, beside some that stays."""
    import cupy
    pool = cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
    kept = cupy.full(2 << 30, 7, dtype=cupy.int8)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    wrong = 0
    for at in rounds_of(12):
        with streams[at % 2] as stream:
            part = cupy.full(1 << 20, at % 100, dtype=cupy.float32)
            wrong += int((part + part != 2 * (at % 100)).sum())
            del part
            stream.synchronize()
    return {"wrong": wrong, "kept": bool((kept == 7).all()), "used": pool.used_bytes() >= kept.nbytes}


def take_turns(config=None):
    """Holds most of the GPU, and looks at all of it again and again."""
    torch = torch_module(config)
    count = int(torch.cuda.mem_get_info()[1] * 0.55) // (1 << 30)
    parts = [torch.full((1 << 30,), at, device="cuda", dtype=torch.int8) for at in range(count)]
    wrong = rounds = 0
    for rounds in rounds_of(15):
        wrong += sum(int((part != at).any()) for at, part in enumerate(parts))
    return {"wrong": wrong, "_rounds": rounds + 1, "_gib": count}


def grow_in_turns(config=None):
    """Needs more than it holds of the GPU, as another such program does: both wait."""
    begin = time.monotonic()
    torch = torch_module(config)
    parts = []
    for share in (0.45, 0.57):
        while len(parts) < int(torch.cuda.mem_get_info()[1] * share) // (1 << 30):
            parts.append(torch.full((1 << 30,), len(parts), device="cuda", dtype=torch.int8))
        time.sleep(max(0, begin + 15 - time.monotonic()))  # the other one has its first part then
    wrong = sum(int((part != at).any()) for _ in rounds_of(10) for at, part in enumerate(parts))
    return {"wrong": wrong, "_gib": len(parts), "_seconds": time.monotonic() - begin}


for each in (take_turns, grow_in_turns):
    WORKLOADS[each.__name__] = each
    WORKLOADS[each.__name__ + "_async"] = functools.partial(each, "backend:cudaMallocAsync")
    WORKLOADS[each.__name__ + "_expandable"] = functools.partial(each, "expandable_segments:True")


def convolve(torch):
    image = torch.randn(8, 32, 128, 128, device="cuda")
    weights = torch.randn(64, 32, 3, 3, device="cuda")
    spectrum = torch.fft.fft2(image).abs().mean()
    solved = torch.linalg.solve(torch.eye(256, device="cuda") * 3, torch.ones(256, 4, device="cuda"))
    return {"conv": close(torch.nn.functional.conv2d(image, weights).square().mean()),
            "fft": close(spectrum), "solve": close(solved.sum())}


@workload
def torch_default():
    torch = torch_module()
    return {**train(torch), **convolve(torch)}


@workload
def torch_expandable():
    torch = torch_module("expandable_segments:True")
    return {**train(torch), **convolve(torch)}


@workload
def torch_async():
    torch = torch_module("backend:cudaMallocAsync")
    results = {**train(torch), **convolve(torch)}
    results["reserved"] = torch.cuda.memory_reserved() > 0
    return results


def replay(torch):
    work = torch.zeros(1024, 1024, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            (work + 1) @ (work + 2)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (work + 1) @ (work + 2)
    work.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    return {"sum": close(result.sum())}


@workload
def torch_graphs():
    return replay(torch_module())


@workload
def torch_graphs_async():
    return replay(torch_module("backend:cudaMallocAsync"))


def other_process(queue, answers):
    import torch
    tensor = queue.get()
    tensor.add_(1)
    torch.cuda.synchronize()
    answers.put(float(tensor.sum()))
    queue.get()


def share(torch):
    import torch.multiprocessing as processes
    context = processes.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=other_process, args=(queue, answers))
    child.start()
    tensor = torch.zeros(1 << 20, device="cuda")
    queue.put(tensor)
    seen = answers.get(timeout=120)
    here = float(tensor.sum())
    queue.put(None)
    child.join()
    return {"seen": seen, "here": here, "code": child.exitcode}


@workload
def torch_ipc():
    return share(torch_module())


@workload
def torch_ipc_expandable():
    return share(torch_module("expandable_segments:True"))


@workload
def torch_nccl():
    torch = torch_module()
    import torch.distributed as ranks
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", NCCL_NVLS_ENABLE="0")
    ranks.init_process_group("nccl", rank=0, world_size=1)
    tensor = torch.ones(1 << 20, device="cuda")
    ranks.all_reduce(tensor)
    torch.cuda.synchronize()
    result = {"sum": float(tensor.sum())}
    ranks.destroy_process_group()
    return result


@workload
def triton_kernel():
    torch = torch_module()
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

    x = torch.ones(10000, device="cuda")
    out = torch.empty_like(x)
    add[(triton.cdiv(10000, 1024),)](x, x * 2, out, 10000, block=1024)
    return {"sum": float(out.sum())}


def cupy_sums(cupy):
    cupy.random.seed(1)
    a = cupy.arange(1 << 20, dtype=cupy.float32).reshape(1024, 1024) / 1e6
    return {"matmul": close((a @ a).sum()), "fft": close(cupy.abs(cupy.fft.fft(a)).mean())}


@workload
def cupy_pool():
    import cupy
    return cupy_sums(cupy)


@workload
def cupy_async():
    import cupy
    pool = cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
    held = cupy.zeros(64 << 20, dtype=cupy.uint8)
    return {**cupy_sums(cupy), "used": pool.used_bytes() >= held.nbytes}


@workload
def cupy_managed():
    import cupy
    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    return cupy_sums(cupy)


def jax_module(allocator, fraction):
    os.environ.update(XLA_PYTHON_CLIENT_ALLOCATOR=allocator,
                      XLA_PYTHON_CLIENT_MEM_FRACTION=fraction)
    import jax
    if jax.default_backend() != "gpu":
        raise ImportError("JAX sees no GPU")
    return jax


def jax_long(allocator):
    """Works on 2 GiB for some seconds, and looks at all of them at the end."""
    jax = jax_module(allocator, ".30")
    jnp = jax.numpy
    parts = [jnp.full((1 << 27,), at, dtype=jnp.int32) for at in range(4)]
    weights = jnp.eye(2048, dtype=jnp.float32) * 0.5
    step = jax.jit(lambda x: x @ weights + 1)
    x = jnp.zeros((2048, 2048), dtype=jnp.float32)
    for _ in rounds_of(12):
        for _ in range(100):
            x = step(x)
        x.block_until_ready()
    # It converges to 2 in each element.
    return {"mean": close(x.mean()),
            "kept": all(bool((part == at).all()) for at, part in enumerate(parts))}


def jax_sums(allocator):
    jax = jax_module(allocator, ".10")
    jnp = jax.numpy
    a = jnp.arange(1 << 20, dtype=jnp.float32).reshape(1024, 1024) / 1e6
    return {"matmul": close(jax.jit(lambda x: x @ x)(a).sum())}


for _allocator in ("default", "platform", "vmm", "cuda_async"):
    WORKLOADS[f"jax_{_allocator}"] = functools.partial(jax_sums, _allocator)
    WORKLOADS[f"jax_long_{_allocator}"] = functools.partial(jax_long, _allocator)


@workload
def numba_kernel():
    import numpy
    from numba import cuda

    @cuda.jit
    def double(values):
        at = cuda.grid(1)
        if at < values.size:
            values[at] *= 2

    values = cuda.to_device(numpy.ones(10000, dtype=numpy.float32))
    double[40, 256](values)
    return {"sum": float(values.copy_to_host().sum())}


def fill(torch):
    """Takes pieces of 1 GiB until that is refused."""
    pieces, error = [], None
    try:
        while len(pieces) < 40:
            pieces.append(torch.empty(GIB, dtype=torch.uint8, device="cuda").fill_(1))
            torch.cuda.synchronize()
    except Exception as caught:  # pylint: disable=broad-except
        error = type(caught).__name__
    free, total = torch.cuda.mem_get_info()
    return {"_got": len(pieces), "_error": error, "_free_mib": free >> 20, "_total_mib": total >> 20}


@workload
def fill_default():
    return fill(torch_module())


@workload
def fill_expandable():
    return fill(torch_module("expandable_segments:True"))


@workload
def fill_async():
    return fill(torch_module("backend:cudaMallocAsync"))


def median_ms(torch, call, rounds):
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2] * 1e3


@workload
def speed():
    """A matmul, a training step, a small kernel and a fresh block, in milliseconds (medians)."""
    torch = torch_module()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    data = torch.randn(2048, 2048, device="cuda")
    small = torch.zeros(1024, device="cuda")

    def step():
        optimizer.zero_grad()
        net(data).square().mean().backward()
        optimizer.step()

    def launches():
        for _ in range(1000):
            small.add_(1)

    for warm in (lambda: a @ a, step, launches):
        warm()
    return {"_matmul": median_ms(torch, lambda: a @ a, 30), "_step": median_ms(torch, step, 30),
            "_launch": median_ms(torch, launches, 10) / 1000}


def main():
    name = sys.argv[1]
    try:
        result = WORKLOADS[name]()
    except ImportError as missing:
        result = {"skipped": str(missing)}
    print(json.dumps(result, sort_keys=True))


if __name__ == "__main__":
    main()
