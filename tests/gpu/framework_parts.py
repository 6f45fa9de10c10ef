# SPDX-License-Identifier: Apache-2.0
"""The parts of frameworks.py. Each is a function of a Gpumem, runs in a new process, and prints a line
for each of its checks, `ok:` or `FAILED:`."""
import gc
import json
import os
import subprocess
import sys
import threading
import time

from gpumem_library import PoolInfo, TenantUsage

MIB = 1 << 20
QUOTA = 1 << 30
TOO_MUCH = 8 << 30
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "frameworks.py")


def child_command(part, lib):
    """Returns the command that runs a part by its name in a new process."""
    return [sys.executable, "-X", "faulthandler", SCRIPT, "--lib", lib, "--be", part]


# ---- Output of a part ----------------------------------------------------------------------------

def check(right, what, seen=None):
    words = what if right or seen is None else f"{what}: {seen}"
    print(f"{'ok' if right else 'FAILED'}: {words}", flush=True)


def check_raises(kind, what, call):
    """That it raises that, and the exception's first line."""
    try:
        call()
    except kind as error:
        check(True, f"{what}: {type(error).__name__}")
    except Exception as error:  # whatever else it is, is what was seen
        check(False, what, repr(error))
    else:
        check(False, what, "nothing was raised")


# ---- The parts -----------------------------------------------------------------------------------

def print_backend(gpumem):
    pool = gpumem.make("gpumem_default_pool", 0)
    print(("cuda", "host")[gpumem.ask("gpumem_pool_get_info", pool, PoolInfo).backend])


def play_with_callbacks(gpumem, pool, seed, wrong):
    """Does the work of rmm's callback_memory_resource, in one thread. Adds to `wrong`."""
    stream = None
    held = []
    for _ in range(2000):
        seed = (seed * 1103515245 + 12345) % (1 << 31)
        size = 1 + seed % (256 << 10)
        address = gpumem.rmm_allocate(size, stream, pool)
        if not address or address % 256:  # the least alignment that RMM promises
            wrong.append(f"{size} bytes at {address}")
            break
        held.append((address, size))
        if len(held) > 20:
            address, size = held.pop(seed % len(held))
            gpumem.rmm_deallocate(address, size, stream, pool)
    spans = sorted(held)
    for (one, size), (other, _) in zip(spans, spans[1:]):
        if one + size > other:
            wrong.append(f"the blocks at {one} and {other} are in each other's way")
    for address, size in held:
        gpumem.rmm_deallocate(address, size, stream, pool)


def rmm_callbacks(gpumem):
    default = gpumem.make("gpumem_default_pool", 0)
    client = gpumem.make("gpumem_client_connect", None)
    own = gpumem.make("gpumem_pool_create", client, None)
    for name, context, pool in (("the default pool", None, default),
                                ("a pool of its own", own, own)):
        wrong = []
        played, seen = threading.Barrier(5), threading.Barrier(5)

        def play(seed):
            play_with_callbacks(gpumem, context, seed, wrong)
            played.wait()
            seen.wait()
        threads = [threading.Thread(target=play, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        played.wait()
        stats = gpumem.stats(pool)
        seen.wait()
        for thread in threads:
            thread.join()
        check(not wrong, f"RMM's callbacks over {name}, in 4 threads", wrong)
        check(stats.allocations == stats.frees == 8000 and stats.used_bytes == 0,
              f"{name} saw 8000 blocks, and has them all back",
              (stats.allocations, stats.frees, stats.used_bytes))
    check(gpumem.rmm_allocate(TOO_MUCH, None, None) is None and "limit" in gpumem.last_error(),
          "above the quota there is null, and a sentence", gpumem.last_error())
    gpumem.call("gpumem_pool_destroy", own)
    gpumem.call("gpumem_client_destroy", client)


def train():
    """Returns the losses of 20 steps of a small transformer, its data made on a separate stream."""
    import torch
    import torch.nn.attention
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    generator = torch.Generator("cuda").manual_seed(2)
    losses = []
    with torch.cuda.stream(main), torch.nn.attention.sdpa_kernel(
            torch.nn.attention.SDPBackend.MATH):
        model = torch.nn.Sequential(
            torch.nn.TransformerEncoder(
                torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 2,
                enable_nested_tensor=False),
            torch.nn.Linear(256, 256)).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(20):
            with torch.cuda.stream(side):
                data = torch.randn(16, 128, 256, device="cuda", generator=generator)
                target = data.roll(1, dims=1) * 0.5
            main.wait_stream(side)
            loss = torch.nn.functional.mse_loss(model(data), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            # Data and target are freed on the side stream, and read on the main one.
            side.wait_stream(main)
        losses = torch.stack(losses).cpu().tolist()
    torch.cuda.synchronize()
    return losses


def pluggable(gpumem):
    import torch
    return torch.cuda.memory.CUDAPluggableAllocator(gpumem.path, "gpumem_torch_malloc",
                                                    "gpumem_torch_free")


def torch_stock_losses(_):
    print(json.dumps(train()))


def torch_training(gpumem):
    stock = subprocess.run(child_command("torch_stock_losses", gpumem.path), text=True,
                           stdout=subprocess.PIPE, check=True)
    expected = json.loads(stock.stdout)
    import torch
    torch.cuda.memory.change_current_allocator(pluggable(gpumem))
    losses = train()
    off = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
    check(off <= 1e-6 and losses[-1] < losses[0],
          "a training by PyTorch on gpumem has the stock allocator's losses",
          f"{losses}, not {expected}")
    seen = gpumem.stats()
    check(seen.allocations > 1000 and seen.used_peak_bytes > 10 * MIB,
          "the pool saw its allocations", (seen.allocations, seen.used_peak_bytes))
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # or they are kept to the end
    seen = gpumem.stats()
    check(seen.used_bytes <= MIB, "when the model is gone, the pool has its memory back",
          f"{seen.used_bytes} bytes in {seen.used_blocks} blocks are used")


def torch_exit(gpumem):
    import torch
    torch.cuda.memory.change_current_allocator(pluggable(gpumem))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch_exit.kept = torch.ones(1000, 1000, device="cuda") @ torch.ones(1000, 1000,
                                                                             device="cuda")
    check(torch_exit.kept[0, 0].item() == 1000 and gpumem.stats().used_bytes > 0,
          "a program of PyTorch may end with tensors alive")


def torch_refusal(gpumem):
    """PyTorch does not check for a null pointer of a pluggable allocator."""
    import torch
    torch.cuda.memory.change_current_allocator(pluggable(gpumem))
    try:
        refused = torch.empty(TOO_MUCH, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        check("memory" in str(error), "PyTorch raises where the quota is used up", error)
    else:
        check(refused.data_ptr() == 0 and "limit" in gpumem.last_error(),
              "where the quota is used up, a tensor has no memory, and stderr says why",
              (refused.data_ptr(), gpumem.last_error()))
        del refused
    after = torch.arange(1000, device="cuda")
    check(after.sum().item() == 499500, "and the next that fits is served")


def torch_mem_pool(gpumem):
    import torch
    allocator = pluggable(gpumem)
    pool = torch.cuda.MemPool(allocator.allocator())
    count = 8 * MIB
    outside = torch.arange(count, device="cuda")
    check(gpumem.stats().allocations == 0, "outside of a MemPool, memory is PyTorch's own")
    with torch.cuda.use_mem_pool(pool):
        inside = torch.arange(count, device="cuda")
    seen = gpumem.stats()
    check(seen.used_bytes >= inside.nbytes, "inside of a MemPool, it is gpumem's", seen.used_bytes)
    check(torch.equal(inside, outside), "and serves as well")

    def too_much():
        with torch.cuda.use_mem_pool(pool):
            torch.empty(TOO_MUCH, dtype=torch.uint8, device="cuda")
    check_raises(torch.OutOfMemoryError, "a MemPool raises where the quota is used up", too_much)
    check(torch.equal(inside, outside), "which harms nobody")
    del inside, too_much
    torch.cuda.synchronize()
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    seen = gpumem.stats()
    check(seen.used_bytes == 0, "when the MemPool is gone, gpumem has its memory back",
          seen.used_bytes)


def cupy_allocator(gpumem):
    import cupy
    return cupy.cuda.CFunctionAllocator(0, gpumem.address("gpumem_cupy_malloc"),
                                        gpumem.address("gpumem_cupy_free"), gpumem)


def calculate(streams):
    """Takes and frees memory on each of the streams for some arithmetic; True if that is right."""
    import cupy
    count = 1 << 18
    sums = []
    for i in range(200):
        with streams[i % len(streams)]:
            ones = cupy.full(count, i, dtype=cupy.int64)
            sums.append(((ones * 3 + 1) - ones).sum())
    for stream in streams:
        stream.synchronize()
    return [int(one) for one in sums] == [(2 * i + 1) * count for i in range(200)]


def cupy_arrays(gpumem):
    import cupy
    cupy.cuda.set_allocator(cupy_allocator(gpumem).malloc)
    check(calculate([cupy.cuda.Stream.null]), "CuPy calculates on gpumem")
    check(calculate([cupy.cuda.Stream(non_blocking=True) for _ in range(4)]),
          "also on several streams")
    gc.collect()
    seen = gpumem.stats()
    check(seen.allocations > 1000 and seen.used_bytes == 0, "the pool saw it, and has all back",
          (seen.allocations, seen.used_bytes))


def cupy_memory_pool(gpumem):
    import cupy
    pool = cupy.cuda.MemoryPool(cupy_allocator(gpumem).malloc)
    cupy.cuda.set_allocator(pool.malloc)
    check(calculate([cupy.cuda.Stream(non_blocking=True) for _ in range(4)]),
          "CuPy's own pool on top of gpumem, on several streams")
    gc.collect()
    check(gpumem.stats().used_bytes >= pool.total_bytes() > 0, "gpumem has what CuPy's pool keeps",
          (gpumem.stats().used_bytes, pool.total_bytes()))
    pool.free_all_blocks()
    check(gpumem.stats().used_bytes == 0, "and gets it back", gpumem.stats().used_bytes)


def cupy_refusal(gpumem):
    """As in docs/reference/c.md: CuPy does not check for a null pointer of an allocator in C."""
    import cupy
    allocator = cupy_allocator(gpumem)

    def malloc(size):
        memory = allocator.malloc(size)
        if size and not memory.ptr:
            raise cupy.cuda.runtime.CUDARuntimeError(2)  # cudaErrorMemoryAllocation
        return memory
    check_raises(cupy.cuda.runtime.CUDARuntimeError, "CuPy raises where the quota is used up",
                 lambda: malloc(TOO_MUCH))
    pool = cupy.cuda.MemoryPool(malloc)
    cupy.cuda.set_allocator(pool.malloc)
    check_raises(cupy.cuda.memory.OutOfMemoryError, "so does its own pool on top",
                 lambda: cupy.empty(TOO_MUCH, dtype=cupy.uint8))
    first = cupy.ones(QUOTA * 6 // 10, dtype=cupy.uint8)
    del first  # CuPy's pool keeps it, and there is no room beside it for the next
    again = cupy.ones(QUOTA * 7 // 10, dtype=cupy.uint8)
    check(int(again.sum(dtype=cupy.int64)) == again.size,
          "which gives back what it keeps before it gives up")


def nothing_is_left(gpumem):
    client = gpumem.make("gpumem_client_connect", None)
    end = time.monotonic() + 20
    while True:
        usage = gpumem.make("gpumem_client_get_usage", client)
        charged = gpumem.ask("gpumem_usage_get_tenant", usage, TenantUsage).charged_bytes
        gpumem.call("gpumem_usage_destroy", usage)
        if charged == 0 or time.monotonic() > end:
            break
        time.sleep(0.05)  # the daemon learns of a process's end by itself
    check(charged == 0, "nobody is charged for what has ended", charged)
    gpumem.call("gpumem_client_destroy", client)


# Each with its requirements, and True if the library may write to stderr.
PARTS = {
    rmm_callbacks: (None, True),
    torch_training: ("torch", False),
    torch_exit: ("torch", False),
    torch_refusal: ("torch", True),
    torch_mem_pool: ("torch", True),
    cupy_arrays: ("cupy", False),
    cupy_memory_pool: ("cupy", False),
    cupy_refusal: ("cupy", True),
    nothing_is_left: (None, False),
}
