#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of an allocation from Python, by each framework, on gpumem and on the framework's
allocator, all in one run. Prints rows of a table: nanoseconds for one allocation and its end.

    bench_alloc.py            # with a daemon at $GPUMEM_RUNTIME_DIR

Each is measured in several processes, in turn with those that it is compared with, and the best
round of the best process counts. On a shared machine one loop of one process was seen to take twice
as long as the same loop a second before, with no other thread in its way.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import ctypes
import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time

SIZES = (4 << 10, 2 << 20, 64 << 20)
PROCESSES, ROUNDS, CALLS = 3, 7, 5000
LONGEST_S = 160


def round_of(call, count):
    """Nanoseconds of a call."""
    began = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - began) / count


def best(call):
    """Nanoseconds of a call, in the best of the rounds."""
    round_of(call, 200)
    gc.disable()
    found = min(round_of(call, CALLS) for _ in range(ROUNDS))
    gc.enable()
    return found


def best_of_each(calls, prepare):
    """Like best(), of each call. They take turns, each in a separate thread, so that state that
    one leaves in its thread does not affect the others; prepare(i) is called in the i-th."""
    def prepared_round(i, count):
        prepare(i)
        return round_of(calls[i], count)

    with contextlib.ExitStack() as stack:
        threads = [stack.enter_context(concurrent.futures.ThreadPoolExecutor(1)) for _ in calls]
        for i, thread in enumerate(threads):
            thread.submit(prepared_round, i, 200).result()
        gc.disable()
        rounds = [[thread.submit(prepared_round, i, CALLS).result()
                   for i, thread in enumerate(threads)] for _ in range(ROUNDS)]
        gc.enable()
    return [min(of_one) for of_one in zip(*rounds)]


def say(framework, allocator, size, nanoseconds):
    print(f"| {framework} | {allocator} | {size} | {nanoseconds:.0f} |", flush=True)


# An allocator for PyTorch that does nothing, to measure PyTorch's part alone; and a loop around any
# allocator of that shape, to measure the allocator alone.
IN_C = r"""
#include <sys/types.h>
#include <time.h>
typedef void* (*malloc_fn)(ssize_t, int, void*);
typedef void (*free_fn)(void*, ssize_t, int, void*);
static void* address;
void set_address(void* to) { address = to; }
void* same_malloc(ssize_t size, int device, void* stream) { return address; }
void same_free(void* pointer, ssize_t size, int device, void* stream) {}
static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}
/* Nanoseconds for one of each; below 0: it answered null. */
double pair(malloc_fn get, free_fn put, ssize_t size, void* stream, long count) {
  const double began = now();
  for (long i = 0; i < count; ++i) {
    void* const block = get(size, 0, stream);
    if (!block) return -1;
    put(block, size, 0, stream);
  }
  return (now() - began) / count;
}
"""


def in_c():
    """Compiles IN_C to a library: returns its path, and it loaded; None without a compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang", "nvcc"))), None)
    if compiler is None:
        return None, None
    with tempfile.TemporaryDirectory() as folder:
        source, made = os.path.join(folder, "same.c"), os.path.join(folder, "same.so")
        with open(source, "w", encoding="utf-8") as file:
            file.write(IN_C)
        position = ["-Xcompiler", "-fPIC"] if compiler.endswith("nvcc") else ["-fPIC"]
        done = subprocess.run([compiler, "-O2", "-shared", *position, "-o", made, source],
                              stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"{compiler}: {done.stderr[-500:]}", file=sys.stderr)
            return None, None
        # Loaded here, so that it stays when the folder goes; PyTorch gets the same one by its path.
        kept = os.open(made, os.O_RDONLY)
        path = f"/proc/self/fd/{kept}"
        library = ctypes.CDLL(path)
    library.pair.restype = ctypes.c_double
    library.pair.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p,
                             ctypes.c_long]
    library.set_address.argtypes = [ctypes.c_void_p]
    return path, library


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p)


def c_part():
    """gpumem's entry points for PyTorch, called by C."""
    import gpumem
    path, library = in_c()
    if path is None:
        print("| in C | not measured: no C compiler here | | |", flush=True)
        return
    own = ctypes.CDLL(gpumem.library_path())
    streams = [("null stream", None)]
    try:
        import torch
        streams.append(("own stream", torch.cuda.Stream().cuda_stream))
    except Exception as error:  # no PyTorch, or no GPU
        print(f"an own stream: {error}", file=sys.stderr)
    for where, stream in streams:
        for name, get, put in (
                ("gpumem_torch_malloc", own.gpumem_torch_malloc, own.gpumem_torch_free),
                ("one that gives the same address", library.same_malloc, library.same_free)):
            library.set_address(1 << 40)
            for size in SIZES:
                rounds = [library.pair(address_of(get), address_of(put), size, stream, 100000)
                          for _ in range(ROUNDS)]
                if min(rounds) < 0:
                    raise RuntimeError(f"{name} answers null")
                print(f"| in C, {where} | {name} | {size} | {min(rounds):.1f} |", flush=True)


def torch_floor():
    """PyTorch's wrapper of pluggable allocators, around one that does nothing."""
    import gpumem
    import torch
    path, library = in_c()
    if path is None:
        print("| torch.empty | not measured: no C compiler here | | |", flush=True)
        return
    torch.cuda.memory.change_current_allocator(
        torch.cuda.memory.CUDAPluggableAllocator(path, "same_malloc", "same_free"))
    segment = gpumem.default_client().acquire(SIZES[-1])  # so that the address is one
    library.set_address(segment.ptr)
    torch.cuda.init()
    for size in SIZES:
        say("torch.empty", "pluggable, gives the same address", size,
            best(lambda: torch.empty(size, dtype=torch.uint8, device="cuda")))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for size in SIZES[:2]:
            say("torch.empty, own stream", "pluggable, gives the same address", size,
                best(lambda: torch.empty(size, dtype=torch.uint8, device="cuda")))
    sys.stdout.flush()
    os._exit(0)  # PyTorch has nothing to free


def cupy_part():
    import cupy
    import gpumem
    import gpumem.cupy
    cupy.ones(1)
    brokered = gpumem.default_client().pool()
    allocators = {
        "CuPy MemoryPool": cupy.cuda.MemoryPool().malloc,
        "CuPy MemoryAsyncPool": cupy.cuda.MemoryAsyncPool().malloc,
        "gpumem": gpumem.cupy.MemoryPool(brokered).malloc,
        "CuPy MemoryPool on gpumem": cupy.cuda.MemoryPool(
            gpumem.cupy._base_allocator(brokered)).malloc,
    }
    null, own = cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)

    def prepare(i, stream=null):
        # In a thread that has not done so each of CUDA's cudaGetDevice takes microseconds.
        cupy.cuda.Device(0).use()
        stream.use()
        cupy.cuda.set_allocator(list(allocators.values())[i])

    for where, stream in (("null stream", null), ("own stream", own)):
        for size in SIZES:
            found = best_of_each([functools.partial(malloc, size)
                                  for malloc in allocators.values()],
                                 functools.partial(prepare, stream=stream))
            for name, nanoseconds in zip(allocators, found):
                say(f"cupy malloc, {where}", name, size, nanoseconds)
    for size in SIZES[:2]:
        found = best_of_each([lambda: cupy.empty(size, dtype="uint8")] * len(allocators), prepare)
        for name, nanoseconds in zip(allocators, found):
            say("cupy.empty", name, size, nanoseconds)
    gpumem.cupy.unuse()


def torch_part(own):
    import torch
    name = "PyTorch's caching allocator"
    if not own:
        import gpumem.torch
        gpumem.torch.use()
        name = "gpumem"
    torch.ones(1, device="cuda")
    for size in SIZES:
        say("torch.empty", name, size,
            best(lambda: torch.empty(size, dtype=torch.uint8, device="cuda")))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for size in SIZES[:2]:
            say("torch.empty, own stream", name, size,
                best(lambda: torch.empty(size, dtype=torch.uint8, device="cuda")))
    if own:
        import gpumem.torch
        with gpumem.torch.using():
            for size in SIZES[:2]:
                say("torch.empty", "MemPool on gpumem", size,
                    best(lambda: torch.empty(size, dtype=torch.uint8, device="cuda")))


def numba_part(own):
    name = "Numba's own"
    if not own:
        import gpumem.numba
        gpumem.numba.use()
        name = "gpumem"
    from numba import cuda
    context = cuda.current_context()
    global CALLS
    CALLS = 500  # cuMemAlloc and cuMemFree are slow
    for size in SIZES:
        say("numba memalloc", name, size, best(lambda: context.memalloc(size)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work")
    parser.add_argument("--be")
    args = parser.parse_args()
    parts = {"cupy": cupy_part, "torch-own": lambda: torch_part(True),
             "torch": lambda: torch_part(False), "torch-floor": torch_floor, "c": c_part,
             "numba-own": lambda: numba_part(True),
             "numba": lambda: numba_part(False)}
    if args.be:
        parts[args.be]()
        return 0
    failed = 0
    found = collections.defaultdict(list)  # nanoseconds by what they are of
    began = time.monotonic()
    for again in range(PROCESSES):
        if again > 0 and time.monotonic() - began > LONGEST_S * again / PROCESSES:
            break
        for name in parts:  # each in a separate process, since allocators are chosen for good
            done = subprocess.run([sys.executable, __file__, "--be", name], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, check=False, timeout=100)
            for line in done.stdout.splitlines():
                what, _, number = line.rstrip(" |").rpartition(" | ")
                found[what].append(float(number) if number[:1].isdigit() else number)
            if done.returncode:
                failed = 1
                print(f"{name}: exit code {done.returncode}\n{done.stderr[-3000:]}", flush=True)
    for what, numbers in found.items():
        known = [number for number in numbers if isinstance(number, float)]
        print(f"{what} | {min(known):.0f} |" if known else f"{what} | {numbers[0]} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
