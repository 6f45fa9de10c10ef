#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long demoting and promoting takes, how long readers are held, and how fast they read.

    bench_demote.py [--work DIR] [--shapes 64x64,1000x2]   # with a daemon at $GPUMEM_RUNTIME_DIR that
                                                           # has pinned memory

Rows for each shape (segments x MiB), without readers and with one that sums up one segment after
another:
- demote and promote: the whole call; its part before the first pause, in which the library acquires
  the other memory and copies to it; the pauses, their number, longest and sum. A pause is from the
  moment when no kernel runs and none can begin until the next one may.
- the reader: kernels and GB a second, alone, beside each call, and while the memory is demoted.
The floor is a copy between GPU memory and pinned memory in this process, and for the host memory
acquiring as much of it.
Each sum of the reader is compared, and every byte after each round.
"""
import argparse
import contextlib
import statistics
import threading
import time

import torch

import gpumem
from bench_suspend import MIB, Contents, floor

ROUNDS = 4
READ_S = 1.0


class Pauses:
    """Holds the reader, and notes for how long."""

    def __init__(self):
        self.lock = threading.Lock()
        self.spans = []

    def pause(self):
        self.lock.acquire()
        torch.cuda.synchronize()
        self.spans.append(time.monotonic())

    def proceed(self):
        self.spans[-1] = (self.spans[-1], time.monotonic())
        self.lock.release()

    @contextlib.contextmanager
    def running(self):
        with self.lock:
            yield
            torch.cuda.synchronize()


class Reader(threading.Thread):
    """Sums up one tensor after another, and compares."""

    def __init__(self, tensors, pauses):
        super().__init__()
        self.tensors, self.pauses = tensors, pauses
        self.expected = [int(tensor.sum()) for tensor in tensors]
        self.ends = False
        self.wrong = 0
        self.done = []  # the times at which kernels ended

    def run(self):
        while not self.ends:
            for tensor, expected in zip(self.tensors, self.expected):
                with self.pauses.running():
                    self.wrong += int(tensor.sum()) != expected
                self.done.append(time.monotonic())
                if self.ends:
                    return

    def rate(self, began, ended):
        """Returns kernels a second."""
        return sum(began <= at < ended for at in self.done) / (ended - began)


def timed(move, segments, pauses):
    """Calls demote() or promote(). Returns its span and the spans of its pauses."""
    torch.cuda.synchronize()
    first = len(pauses.spans)
    began = time.monotonic()
    move(segments, pause=pauses.pause, proceed=pauses.proceed, wait=60)
    return (began, time.monotonic()), pauses.spans[first:]


def row(shape, what, size, calls):
    """Prints the medians of some calls, and the longest of all pauses."""
    def middle(values):
        return 1e3 * statistics.median(values)

    before = [spans[0][0] - whole[0] for whole, spans in calls]
    each = [[end - begin for begin, end in spans] for _, spans in calls]
    print(f"| {shape} MiB | {what}, median of {len(calls)} | "
          f"{middle([whole[1] - whole[0] for whole, _ in calls]):.1f} ms, before the first pause "
          f"{middle(before):.1f} ms ({size / statistics.median(before) / 1e9:.1f} GB/s) | "
          f"{len(each[0])} pauses, sum {middle([sum(one) for one in each]):.1f} ms, longest of all "
          f"{1e3 * max(map(max, each)):.2f} ms |", flush=True)


def rounds_of(client, shape, reads):
    count, mib = map(int, shape.split("x"))
    contents = Contents(client, count, mib)
    pauses = Pauses()
    reader = Reader(contents.tensors, pauses)
    rates = {"alone": [], "beside demote": [], "demoted": [], "beside promote": []}
    if reads:
        reader.start()
        began = time.monotonic()
        time.sleep(READ_S)
        rates["alone"].append(reader.rate(began, time.monotonic()))
    calls = {"demote": [], "promote": []}
    for turn in range(ROUNDS):
        demoted = timed(client.demote, contents.segments, pauses)
        began = time.monotonic()
        if reads:
            time.sleep(READ_S)
        ended = time.monotonic()
        promoted = timed(client.promote, contents.segments, pauses)
        if reads:
            rates["beside demote"].append(reader.rate(*demoted[0]))
            rates["demoted"].append(reader.rate(began, ended))
            rates["beside promote"].append(reader.rate(*promoted[0]))
        if turn == 0:  # the daemon makes the host memory
            row(shape, f"first demote{', readers' if reads else ''}", contents.bytes, [demoted])
        else:
            calls["demote"].append(demoted)
        calls["promote"].append(promoted)
        with pauses.running():
            contents.check()
    if reads:
        reader.ends = True
        reader.join()
        if reader.wrong:
            raise SystemExit(f"{reader.wrong} wrong sums")
    for what, some in calls.items():
        row(shape, f"{what}{', readers' if reads else ''}", contents.bytes, some)
    for what, some in rates.items():
        if some:
            rate = statistics.median(some)
            print(f"| {shape} MiB | reader {what} | {rate:.0f} kernels/s, "
                  f"{rate * mib * MIB / 1e9:.1f} GB/s |", flush=True)
    contents.close()


def host_floor(client, shape):
    count, mib = map(int, shape.split("x"))
    began = time.monotonic()
    segments = []
    for done in range(0, count, 253):
        segments += client.acquire_many(mib * MIB, min(253, count - done), kind="host")
    took = time.monotonic() - began
    print(f"| {shape} MiB | floor: acquire and map host memory | {1e3 * took:.1f} ms, "
          f"{count * mib * MIB / took / 1e9:.1f} GB/s |", flush=True)
    for segment in segments:
        segment.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work")  # as for the other benchmarks
    parser.add_argument("--shapes", default="64x64,1000x2")
    args = parser.parse_args()
    client = gpumem.default_client()
    torch.cuda.init()
    floor()
    for shape in args.shapes.split(","):
        for reads in (False, True):
            rounds_of(client, shape, reads)
        host_floor(client, shape)


if __name__ == "__main__":
    main()
