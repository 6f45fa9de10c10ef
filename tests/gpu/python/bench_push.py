#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer pushes new weights after each step, and a worker switches to them: how long does it take?

    bench_push.py [--work DIR] [--gib 16] [--steps 8]     # with a daemon at $GPUMEM_RUNTIME_DIR

Rows:
- The floor: a copy of the same tensors into memory of this process.
- push: gpumem.serving.push(), from the call to its return. The first ones allocate memory; the
  later ones get that of versions which no worker uses any more.
- update: Weights.update() in the worker, with a module bound, from the call to its return.
- The whole way: from the start of a push to the worker's first read.
The worker reads each version whole and compares it.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

import torch

import gpumem
from gpumem.serving import load_or_attach, push

WIDTH = 4096
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def make(gib, number, device=DEVICE):
    """Returns tensors of the shapes of a language model; all elements are the number."""
    layer = {"qkv": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH), "up": (3 * WIDTH, WIDTH),
             "down": (WIDTH, 3 * WIDTH), "norm": (WIDTH,)}
    nbytes = 2 * sum(rows * (columns[0] if columns else 1) for rows, *columns in layer.values())
    layers = max(1, round(gib * (1 << 30) / nbytes))
    return {f"layer{index}_{name}": torch.full(shape, number, dtype=torch.bfloat16, device=device)
            for index in range(layers) for name, shape in layer.items()}


class Model(torch.nn.Module):
    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def work(name, gib, steps):
    """Follows the versions, and prints the time of each: of update(), and when it had read it."""
    with load_or_attach(name, dict, content_id="0") as weights:
        model = Model(make(gib, 0, device="meta"))
        weights.bind(model)
        print("ready", flush=True)
        while steps:
            began = time.perf_counter()
            if not weights.update(wait=60):
                raise SystemExit("no version came")
            updated = time.perf_counter()
            first = next(iter(model.buffers())).flatten()[0].item()
            read = time.monotonic()
            seen = {tensor.flatten()[at].item() for tensor in model.buffers() for at in (0, -1)}
            if seen != {first}:
                raise SystemExit(f"a version is not whole: {seen}")
            print(first, updated - began, read, flush=True)
            steps -= 1
            sys.stdin.readline()


def floor(tensors, nbytes):
    targets = [torch.empty_like(tensor) for tensor in tensors.values()]
    times = []
    for _ in range(6):
        synchronize()
        began = time.perf_counter()
        for target, tensor in zip(targets, tensors.values()):
            target.copy_(tensor)
        synchronize()
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times[1:])
    print(f"| floor | copy of {nbytes / (1 << 30):.2f} GiB in {len(tensors)} tensors, median of 5 | "
          f"{1e3 * seconds:.2f} ms | {nbytes / seconds / 1e9:.0f} GB/s |", flush=True)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work")  # as for the other benchmarks
    parser.add_argument("--gib", type=float, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--be")
    args = parser.parse_args()
    if args.be:
        work(args.be, args.gib, args.steps)
        return
    name = f"bench-push-{os.getpid()}"
    tensors = make(args.gib, 0)
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    least = floor(tensors, nbytes)
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    push(name, tensors, content_id="0")
    child = subprocess.Popen(
        [sys.executable, __file__, "--be", name, "--gib", str(args.gib), "--steps", str(args.steps)],
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pushes, updates, ways = [], [], []
    try:
        if child.stdout.readline().strip() != "ready":
            raise SystemExit(f"the worker died: {child.wait()}")
        for step in range(1, args.steps + 1):
            for tensor in tensors.values():
                tensor.fill_(step)
            synchronize()
            began, began_here = time.monotonic(), time.perf_counter()
            push(name, tensors)
            pushes.append(time.perf_counter() - began_here)
            said = child.stdout.readline().split()
            if not said or float(said[0]) != step:
                raise SystemExit(f"the worker has {said} after step {step}")
            updates.append(float(said[1]))
            ways.append(float(said[2]) - began)
            print(f"| step {step} | push {1e3 * pushes[-1]:.2f} ms | to the first read "
                  f"{1e3 * ways[-1]:.2f} ms |", flush=True)
            child.stdin.write("go\n")
            child.stdin.flush()
    finally:
        child.kill()
        child.wait()
        gpumem.default_client().unpublish(name)
    later = pushes[2:] or pushes
    print(f"| push | median of steps 3 to {args.steps} | {1e3 * statistics.median(later):.2f} ms | "
          f"{statistics.median(later) / least:.2f} of the floor |")
    print(f"| whole way | push, update and first read, median | "
          f"{1e3 * statistics.median(ways[2:] or ways):.2f} ms | "
          f"{statistics.median(ways[2:] or ways) / least:.2f} of the floor |", flush=True)


if __name__ == "__main__":
    main()
