#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long suspending and resuming takes, and what it costs other processes.

    bench_suspend.py [--work DIR] [--shapes 16x1024,1000x2]   # with a daemon at $GPUMEM_RUNTIME_DIR
                                                              # that has a host tier

Rows:
- For each shape (segments x MiB): GB/s of suspend() and resume(), from the call to its return, in
  rounds. After odd rounds the memory is resumed at once, after even ones a second later: the
  driver clears memory that was freed, and copies to new memory wait for that.
- The floor: copies between GPU memory and pinned memory in this process.
- A bystander: the kernels per second of another process beside the copies, as a share of those
  between them. Kernels bound by memory, and small ones with a wait each.
Every byte is compared after each round.
"""
import argparse
import statistics
import subprocess
import sys
import time

import torch

import gpumem
import host_memory

MIB = 1 << 20
ROUNDS = 6
SLICE_S = 0.02  # of the bystander


def pattern(count, seed):
    return torch.arange(count, dtype=torch.int32, device="cuda").mul_(2654435 + 2 * seed).add_(seed)


class Contents:
    """Segments with known bytes."""

    def __init__(self, client, count, mib):
        self.client = client
        self.bytes = count * mib * MIB
        self.segments = [client.acquire(mib * MIB) for _ in range(count)]
        self.tensors = [torch.as_tensor(one.array(dtype="int32"), device="cuda")
                        for one in self.segments]
        for seed, tensor in enumerate(self.tensors):
            tensor.copy_(pattern(tensor.numel(), seed))
        torch.cuda.synchronize()

    def check(self):
        for seed, tensor in enumerate(self.tensors):
            if not torch.equal(tensor, pattern(tensor.numel(), seed)):
                raise SystemExit(f"segment {seed} of {len(self.tensors)} has other bytes than before")

    def suspend(self):
        torch.cuda.synchronize()
        began = time.monotonic()
        self.client.suspend(self.segments)
        return began, time.monotonic()

    def resume(self):
        began = time.monotonic()
        self.client.resume(self.segments, wait=60)
        return began, time.monotonic()

    def close(self):
        self.tensors.clear()
        for segment in self.segments:
            segment.close()


def rate(size, span):
    return f"{1e3 * (span[1] - span[0]):.1f} ms, {size / (span[1] - span[0]) / 1e9:.1f} GB/s"


def rounds_of(client, shape):
    count, mib = map(int, shape.split("x"))
    contents = Contents(client, count, mib)
    spans = {"suspend": [], "resume at once": [], "resume later": []}
    for turn in range(ROUNDS):
        out = contents.suspend()
        if turn == 0:
            print(f"| {shape} MiB | first suspend | {rate(contents.bytes, out)} |", flush=True)
        else:
            spans["suspend"].append(out)
        if turn % 2 == 1:
            time.sleep(1)
        back = contents.resume()
        spans["resume later" if turn % 2 == 1 else "resume at once"].append(back)
        contents.check()
    for what, all_spans in spans.items():
        middle = sorted(all_spans, key=lambda span: span[1] - span[0])[len(all_spans) // 2]
        print(f"| {shape} MiB | {what}, median of {len(all_spans)} | {rate(contents.bytes, middle)} |",
              flush=True)
    contents.close()


def floor():
    size = 1 << 30
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    for name, target, source in (("out", host, device), ("in", device, host)):
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.monotonic()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.monotonic() - began)
        print(f"| floor | copy {name}, pinned, 1 GiB, median of 5 | "
              f"{size / statistics.median(times) / 1e9:.1f} GB/s |", flush=True)


def bystand(kind):
    """Runs kernels until its input ends, and prints the slices of time and their counts."""
    memory = torch.zeros((1 << 29) if kind == "memory" else 1 << 10, device="cuda")
    memory.add_(1)
    torch.cuda.synchronize()
    print("ready", flush=True)
    slices = []
    end = time.monotonic() + float(sys.stdin.readline())
    while time.monotonic() < end:
        began, done = time.monotonic(), 0
        while time.monotonic() < began + SLICE_S:
            memory.add_(1)
            torch.cuda.synchronize()
            done += 1
        slices.append((began, time.monotonic(), done))
    for began, ended, done in slices:
        print(began, ended, done)


def beside(client, kind):
    """Copies 16 GiB out and in while a bystander computes."""
    contents = Contents(client, 16, 1024)
    contents.suspend()  # the tier is warm after that
    contents.resume()
    child = subprocess.Popen([sys.executable, __file__, "--be", kind], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if child.stdout.readline().strip() != "ready":
        raise SystemExit(f"the bystander died: {child.wait()}")
    child.stdin.write("9\n")
    child.stdin.flush()
    spans = {"out": [], "in": []}
    end = time.monotonic() + 8
    while time.monotonic() < end:
        time.sleep(0.5)
        spans["out"].append(contents.suspend())
        time.sleep(0.5)
        spans["in"].append(contents.resume())
    lines = child.communicate()[0].splitlines()
    rates = {"out": [], "in": [], "alone": []}
    for line in lines:
        began, ended, done = map(float, line.split())
        for name in ("out", "in"):
            if any(span[0] <= began and ended <= span[1] for span in spans[name]):
                rates[name].append(done / (ended - began))
        if all(ended < span[0] or began > span[1] + 0.1 for name in spans for span in spans[name]):
            rates["alone"].append(done / (ended - began))
    alone = statistics.mean(rates["alone"])
    for name in ("out", "in"):
        print(f"| bystander, {kind} | beside copies {name} | "
              f"{statistics.mean(rates[name]) / alone:.3f} of {alone:.0f}/s, {len(rates[name])} slices "
              f"beside, {len(rates['alone'])} alone |", flush=True)
    contents.check()
    contents.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work")  # as for the other benchmarks
    parser.add_argument("--shapes", default="16x1024,256x64,1000x2")
    parser.add_argument("--be")
    parser.add_argument("--first-only", action="store_true")
    args = parser.parse_args()
    if args.be:
        bystand(args.be)
        return
    client = gpumem.default_client()
    torch.cuda.init()
    host_memory.settle()
    if not args.first_only:
        floor()
    for shape in args.shapes.split(","):
        rounds_of(client, shape)
        if args.first_only:
            return
    for kind in ("memory", "small"):
        beside(client, kind)


if __name__ == "__main__":
    main()
