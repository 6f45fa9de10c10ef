#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two tenants whose memory does not fit on the device together take turns. How long is a turn?

    bench_turns.py [--work DIR] [--mib 12288] [--turns 50]    # with a daemon at $GPUMEM_RUNTIME_DIR

The daemon has a host tier with room for three times --mib, and tenants "left" and "right" that share
a limit below twice --mib. Each tenant is a process with --mib of GPU memory in pieces of --piece-mib.
In a turn the process that has its memory on the device gives it up, and the other one gets its
memory back, compares all words on the device, and changes them. Three ways, in one run:

- gpumem: suspend() beside resume(), which waits in the daemon's queue. --turns for each tenant.
- checkpoint: the driver's checkpoint of one whole process, then the restore of the other one. Their
  memory is of cuMemAlloc.
- reload: cuMemFree, then cuMemAlloc and a read from a file in the page cache. Changes are lost.

The last two end early when their time is over, after at least two turns. A turn is the time from the
first call of the process that leaves to the return of the last call of the one that enters, without
the comparison. The floor is a copy of the same bytes to pinned memory and back. Percentiles are of
the nearest rank: with less than a hundred turns, p99 is the longest one. On the host backend, only
the first way is measured.
"""
import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

import cuda_driver
import host_memory

MIB = 1 << 20
CHILD = pathlib.Path(__file__).resolve().parent / "turns_child.py"
WARM_UP = 6  # turns of gpumem that are not counted: they register the pages of the tier
FLOORS = 10
MOST_PIECES = 253  # more go in several calls

Turn = collections.namedtuple("Turn", "whole out back")  # seconds


def percentile(values, percent):
    """Returns the value of the nearest rank: the smallest one that `percent` % do not exceed."""
    if not values:
        raise ValueError("no values")
    if not 0 < percent <= 100:
        raise ValueError(f"no percentage: {percent}")
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def header():
    return ("| a turn | n | median | p90 | p99 | max | out, median | in, median | GB/s | "
            "by gpumem: median | by gpumem: p99 |")


def row(name, turns, size, reference):
    """Returns a line of the table. `size` is what one tenant has, `reference` the turns of gpumem."""
    whole = [turn.whole for turn in turns]
    points = [statistics.median(whole), *(percentile(whole, each) for each in (90, 99, 100))]
    points += [statistics.median(each) for each in ([turn.out for turn in turns],
                                                    [turn.back for turn in turns])]
    compared = [turn.whole for turn in reference]
    ratios = (points[0] / statistics.median(compared), points[2] / percentile(compared, 99))
    cells = [name, len(turns), *(f"{1e3 * point:.1f} ms" for point in points),
             f"{size / points[0] / 1e9:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]
    return f"| {' | '.join(map(str, cells))} |"


def say(line):
    print(line, flush=True)


class Child:
    """A process of turns_child.py."""

    def __init__(self, role, args, seed, tenant="", file=""):
        self.role = role
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(CHILD), role, "--seed", str(seed), "--mib",
             str(args.mib), "--piece-mib", str(args.piece_mib), "--tenant", tenant, "--file", file],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def pid(self):
        return self.process.pid

    def answer(self):
        """Returns the answer to the oldest command that has none; the first is to no command."""
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process of {self.role} died: {self.process.wait()}")
        return json.loads(line)

    def begin(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def do(self, command):
        self.begin(command)
        return self.answer()

    def kill(self):
        """Ends the process. May be called again."""
        self.process.kill()  # one that is checkpointed could not end by itself
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Way:
    """Two processes that take turns. A subclass has a role, leave() and turn()."""

    role = name = ""

    def __init__(self, args, files=("", "")):
        self.inside, self.outside = (
            Child(self.role, args, seed, tenant, file)
            for seed, tenant, file in ((1, "left", files[0]), (100_003, "right", files[1])))

    def pair(self):
        return self.inside, self.outside

    def load(self):
        """Fills the memory of both. The second one has its memory on the device then."""
        self.inside.do("load")
        self.leave(self.inside)
        self.inside, self.outside = self.outside, self.inside
        self.inside.do("load")

    def leave(self, child):
        child.do("leave")

    def turn(self):
        """Lets the other process have its memory on the device."""
        leaving, entering = self.inside, self.outside
        entering.begin("enter")
        left = leaving.do("leave")
        entered = entering.answer()
        return Turn(entered["ended"] - left["began"], left["ended"] - left["began"],
                    entered["ended"] - left["ended"])

    def turns(self, count, limit_s=math.inf):
        """Returns the times of so many turns, or of at least two if the time is over before."""
        times, end = [], time.monotonic() + limit_s
        while len(times) < count and (len(times) < 2 or time.monotonic() < end):
            times.append(self.turn())
            self.inside, self.outside = self.outside, self.inside
            wrong = self.inside.do("work")["result"]
            if wrong:
                raise SystemExit(f"{self.role}, turn {len(times)}: {wrong} pieces have wrong words")
        return times

    def end(self):
        self.inside.kill()
        self.outside.kill()


class Gpumem(Way):
    role = name = "gpumem"

    def load(self):
        super().load()
        if not self.outside.do("denied")["result"]:
            raise SystemExit("the memory of both tenants fits: their limit is too large")


class Checkpoint(Way):
    role = "checkpoint"
    name = "checkpoint and restore by the driver"

    def __init__(self, args):
        super().__init__(args)
        self.cuda = cuda_driver.Cuda()  # without a context

    def leave(self, child):
        self.cuda.checkpoint(child.pid)

    def turn(self):
        began = time.monotonic()
        self.cuda.checkpoint(self.inside.pid)
        middle = time.monotonic()
        self.cuda.restore(self.outside.pid)
        ended = time.monotonic()
        return Turn(ended - began, middle - began, ended - middle)


class Reload(Way):
    role = "reload"
    name = "reload from the page cache"

    def turn(self):
        left = self.inside.do("leave")
        entered = self.outside.do("enter")
        return Turn(entered["ended"] - left["began"], left["ended"] - left["began"],
                    entered["ended"] - entered["began"])


def floor_of(child):
    child.do("load")
    times = []
    for _ in range(FLOORS):
        out, back = (span["ended"] - span["began"]
                     for span in (child.do("leave"), child.do("enter")))
        times.append(Turn(out + back, out, back))
    return times


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work")  # as for the other benchmarks
    parser.add_argument("--mib", type=int, default=12 << 10, help="memory of each tenant")
    parser.add_argument("--piece-mib", type=int, default=64)
    parser.add_argument("--turns", type=int, default=50, help="for each tenant")
    parser.add_argument("--checkpoint-seconds", type=float, default=28)
    parser.add_argument("--reload-seconds", type=float, default=25)
    args = parser.parse_args(arguments)
    if args.piece_mib < 1 or args.mib < args.piece_mib or args.mib % args.piece_mib:
        parser.error("--mib has to be a multiple of --piece-mib")
    if args.mib // args.piece_mib > MOST_PIECES:
        parser.error(f"a tenant can have {MOST_PIECES} pieces")
    if args.turns < 1:
        parser.error("--turns has to be positive")
    return args


def compare(args, gpumem, others, floor):
    """Measures one way after the other. Says a row for each as soon as it is there."""
    size, count = args.mib * MIB, 2 * args.turns
    say(f"| each tenant: {args.mib} MiB in {args.mib // args.piece_mib} pieces |")
    say(header())
    floors = []
    if floor is not None:
        floors = floor_of(floor)
        floor.kill()  # frees its memory
    gpumem.load()
    first = gpumem.turns(WARM_UP)
    times = gpumem.turns(count)
    gpumem.end()
    say(row("gpumem", times, size, times))
    say(row("gpumem, first turns, not counted above", first, size, times))
    if floors:
        say(row("floor: copies out and in, pinned", floors, size, times))
    for way, limit_s in others:
        try:
            way.load()
            say(row(way.name, way.turns(count, limit_s), size, times))
        except cuda_driver.CudaError as error:
            say(f"| {way.name} | skipped: {error} |")
        way.end()


def main():
    args = parse()
    began, lacks = time.monotonic(), cuda_driver.why_not()
    with contextlib.ExitStack() as ends:
        # All are started at once: their start takes some seconds.
        gpumem, others, floor = Gpumem(args), [], None
        ends.callback(gpumem.end)
        if not lacks:
            files = [os.memfd_create(name) for name in ("left", "right")]
            paths = [f"/proc/{os.getpid()}/fd/{file}" for file in files]
            others = [(Checkpoint(args), args.checkpoint_seconds),
                      (Reload(args, paths), args.reload_seconds)]
            for way, _ in others:
                ends.callback(way.end)
            floor = Child("floor", args, seed=0)
            ends.callback(floor.kill)
        for child in [*gpumem.pair(), *(child for way, _ in others for child in way.pair()),
                      *([] if floor is None else [floor])]:
            child.answer()  # it is ready
        host_memory.settle()
        compare(args, gpumem, others, floor)
    if lacks:
        say(f"| floor, checkpoint, reload | skipped: {lacks} |")
    say(f"| whole run | {time.monotonic() - began:.0f} s |")


if __name__ == "__main__":
    main()
