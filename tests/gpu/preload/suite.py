#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""suite.py --release DIR [--rounds N] [--pairs N] [--peer FILE [--peer-env NAME=VALUE ...]] [PART ...]:
unmodified GPU programs under the preload, on a machine with a GPU.

Starts gpumemd of the release with a limit of 20 GiB, and runs each program of workloads.py alone and
under the preload. Parts (all by default, in this order):
  same    the results are those of the program alone
  answers what pointers, handles, captures and stream-ordered memory answer is the driver's
  fill    the limit holds, and is told as an ordinary out-of-memory
  race    ten processes that want 3 GiB each: the daemon's peak stays below the limit
  kill    killed processes' memory comes back; how long it takes
  speed   interleaved pairs of a matmul, a training step and kernel launches, alone and preloaded
  calls   the same of single calls of the driver (tests/preload/bench.c)
  broker  answers, fill, race and kill in broker mode
  broker_same, broker_speed  same and speed in broker mode
  suspend programs in broker mode, with each of their allocators, are suspended and resumed while they
          work
  turns   two that do not fit on the GPU together take turns, also if both wait for more than they hold
  injection  same, of some programs, and fill, with the library loaded by the CUDA driver
             (CUDA_INJECTION64_PATH) in place of the preload
  gpus    programs that use two GPUs, in both modes
speed and calls also measure another library that is preloaded in place of ours, if --peer names one.
"""
import argparse
import collections
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from node import GIB, HERE, LIMIT, Node, Report
from several_gpus import gpus
from suspensions import suspend, turns
from workloads import compared

SAME = ("torch_default torch_expandable torch_async torch_graphs torch_graphs_async torch_ipc "
        "torch_ipc_expandable torch_nccl triton_kernel cupy_pool cupy_async cupy_managed jax_default "
        "jax_platform jax_vmm jax_cuda_async numba_kernel").split()

SAME_INJECTED = ("torch_default torch_expandable torch_async torch_graphs cupy_pool cupy_async "
                 "jax_default jax_cuda_async numba_kernel").split()

MATTERS = {"brokered": ("pointers", "ipc", "deferred", "reset"), "async": ("pointers", "codes"),
           "async_work": ("order",), "physical": ("facts", "export", "captured", "reset")}


def same(node, report, names=tuple(SAME), mode=True, prefix=""):
    for name in names:
        alone = node.run(name, preload=False)
        if "skipped" in alone:
            report.tell(None, prefix + name, alone["skipped"])
            continue
        if "failed" in alone:
            report.tell(None, prefix + name, f"fails alone: {alone['failed'][-200:]}")
            continue
        held = node.run(name, preload=mode)
        report.tell(compared(held) == compared(alone), prefix + name, f"{alone} {held}")
        node.wait_empty(mode=mode)


def fill(node, report, mode=True, prefix=""):
    for name in ("fill_default", "fill_expandable", "fill_async"):
        held = node.run(name, preload=mode)
        peak = node.usage(mode)["peak_bytes"]
        # A context and PyTorch's own memory take less than 1.5 GiB of the limit.
        ok = (held.get("_got") in (18, 19) and held.get("_total_mib") == LIMIT >> 20 and
              held.get("_error") in ("OutOfMemoryError", "AcceleratorError"))
        report.tell(ok, prefix + name, f"{held}, peak {peak / GIB:.2f} GiB")
        node.wait_empty(mode=mode)
    ways = tool("ways_dlsym")
    for way in ("alloc managed pitch vmm early retained async pool node any_node capture array "
                "array3d crossed crossed_back").split() if ways else ():
        piece = GIB // 4 if way.startswith("array") else GIB
        process = node.start([ways, way, str(piece)], mode)
        out, err = process.communicate(timeout=120)
        words = dict(word.split("=") for word in out.split() if "=" in word)
        want = (LIMIT - GIB) // piece
        got = int(words.get("got", -1))
        ok = words.get("code") == "2" and want <= got <= want + GIB // piece // 2 + 1
        report.tell(ok, f"{prefix}ways {way}", f"{out.strip()} {err.strip()[-200:]}")
        node.wait_empty(mode=mode)


def tool(name):
    """A program of tests/preload, which a release has beside this file."""
    return shutil.which(name, path=str(HERE))


MATTERS = {"brokered": ("pointers", "ipc", "deferred", "reset"), "async": ("pointers", "codes"),
           "async_work": ("order",), "physical": ("facts", "export", "captured", "reset")}


def answers(node, report, mode=True):
    for program, matters in MATTERS.items():
        for matter in matters if tool(program) else ():
            alone, held = (node.start([tool(program), matter], each).communicate(timeout=120)
                           for each in (False, mode))
            report.tell(alone == held, f"{program} {matter} {mode}", f"{alone} {held}")
            node.wait_empty(mode=mode)


def broker(node, report):
    answers(node, report, "broker")
    fill(node, report, "broker", "brokered ")
    race(node, report, "broker")
    kill(node, report, "broker")


def broker_same(node, report):
    same(node, report, mode="broker", prefix="brokered ")


def injection(node, report):
    same(node, report, SAME_INJECTED, "injection", "injected ")
    fill(node, report, "injection", "injected ")
    starts = {}
    for _ in range(9):
        for mode in (False, True, "injection"):
            begin = time.perf_counter()
            process = node.start([sys.executable, "-c", START], mode)
            out, err = process.communicate(timeout=120)
            if process.returncode != 0 or err:
                report.tell(False, "injected start", f"{mode}: {out} {err[-300:]}")
                return
            starts.setdefault(mode, []).append((time.perf_counter() - begin) * 1e3)
    report.tell(True, "injected start", "cuInit in Python, ms: " + ", ".join(
        f"{name} {statistics.median(starts[mode]):.1f}"
        for mode, name in ((False, "alone"), (True, "preloaded"), ("injection", "injected"))))


START = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()


def race(node, report, mode=True):
    """Ten at a time, which hold what they got until all have an answer: new processes in each of 20
    rounds, then the same ten in the others."""
    granted = collections.Counter()
    command = [tool("holder"), str(3 * GIB)]
    for _ in range(min(20, node.rounds)):
        processes = [node.start(command, mode) for _ in range(10)]
        answers = [process.stdout.readline().strip() for process in processes]
        granted[answers.count("held=0")] += 1
        for process in processes:
            end(process)
        node.wait_empty(mode=mode)
    again = collections.Counter()
    nvml = 0
    processes = [node.start([*command, "rounds"], mode) for _ in range(10)]
    for process in processes:
        assert process.stdout.readline() == "ready=0\n", process.stderr.read()
    for number in range(node.rounds - granted.total()):
        answers = [line.strip() for line in all_do(processes)]
        again[answers.count("held=0")] += 1
        if number % 100 == 0:
            nvml = max(nvml, nvml_used())
        assert set(all_do(processes)) == {"freed=0\n"}
    for process in processes:
        end(process)
    node.wait_empty(mode=mode)
    peak = node.usage(mode)["peak_bytes"]
    report.tell(peak <= LIMIT, f"race {NAMES[mode]}",
                f"granted, and in how many rounds: new processes {dict(granted)}, the same ones "
                f"{dict(again)}; peak {peak / GIB:.2f} GiB of 20; by NVML the GPU had at most "
                f"{nvml / GIB:.2f} GiB in use")


def all_do(processes):
    """Lets each take its next step, all at one moment, and returns what they say."""
    for process in processes:
        process.stdin.write("\n")
    for process in processes:
        process.stdin.flush()
    return [process.stdout.readline() for process in processes]


def nvml_used():
    """Of the first GPU, with what the driver itself takes."""
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, check=True, text=True).stdout
    return int(out.splitlines()[0]) << 20


def kill(node, report, mode=True):
    times = []
    for _ in range(node.rounds):
        process = node.start([tool("holder"), str(4 * GIB)], mode)
        assert process.stdout.readline().strip() == "held=0", process.stderr.read()
        end(process)
        times.append(node.wait_empty(mode=mode))
    times.sort()
    rounds = node.rounds
    report.tell(times[-1] < 0.1, f"kill {NAMES[mode]}",
                f"{rounds} killed; back after {statistics.median(times) * 1e3:.1f} ms (median), "
                f"{times[-1] * 1e3:.1f} ms at most, with gpumemctl's start and answer")


NAMES = {False: "alone", True: "preloaded", "broker": "brokered", "peer": "peer"}


def tell_ratios(report, name, unit, figures):
    """figures: by mode, a list with one figure of each round."""
    alone = figures[False]
    words = [f"{statistics.median(alone):.4g} {unit} alone"]
    for mode in list(figures)[1:]:
        ratios = sorted(held / base for held, base in zip(figures[mode], alone))
        words.append(f"{NAMES[mode]} {statistics.median(figures[mode]):.4g}, ratio of pairs "
                     f"{statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    report.tell(True, name, "; ".join(words))


def speed(node, report, modes=None):
    figures = {}
    for _ in range(node.pairs):
        for mode in modes or node.modes():
            results = node.run("speed", preload=mode)
            if "failed" in results:
                report.tell(False, "speed", f"{NAMES[mode]}: {results}")
                return
            for key, value in results.items():
                figures.setdefault(key, {}).setdefault(mode, []).append(value)
    for key, by_mode in figures.items():
        tell_ratios(report, f"speed {key[1:]}", "ms", by_mode)


def broker_speed(node, report):
    speed(node, report, (False, "broker"))


def peer_is_at_work(node, report):
    """A peer that the programs do not meet would be compared as a fast one."""
    out, err = node.start([tool("ways_dlsym"), "alloc", str(GIB)], "peer").communicate(timeout=120)
    words = dict(word.split("=") for word in out.split() if "=" in word)
    report.tell(int(words.get("got", 99)) <= LIMIT // GIB, "peer holds its limit", f"{out} {err[-300:]}")


def calls(node, report, rounds=21):
    if node.peer:
        peer_is_at_work(node, report)
    figures = {}
    for _ in range(rounds):
        for mode in node.modes():
            out, err = node.start([tool("bench")], mode).communicate(timeout=120)
            if mode != "peer" and err:
                report.tell(False, "calls", f"{NAMES[mode]}: {err[-300:]}")
                return
            for line in out.splitlines():
                if not line.startswith(("cuMem", "cuLaunch", "10000 live")):
                    continue
                name, numbers = line.rsplit(":", 1)
                for part, number in zip(("", " free"), numbers.split("/")):
                    figures.setdefault(name + part, {}).setdefault(mode, []).append(float(number))
    for name, by_mode in figures.items():
        tell_ratios(report, f"call {name}", "ns", by_mode)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=20, help="of race and kill")
    parser.add_argument("--pairs", type=int, default=5, help="of speed")
    parser.add_argument("--peer", type=pathlib.Path)
    parser.add_argument("--peer-env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("parts", nargs="*", default=[])
    options = parser.parse_args()
    parts = {"same": same, "answers": answers, "fill": fill, "race": race, "kill": kill,
             "speed": speed, "calls": calls, "broker": broker, "broker_same": broker_same,
             "broker_speed": broker_speed, "suspend": suspend, "turns": turns, "injection": injection, "gpus": gpus}
    work = pathlib.Path(tempfile.mkdtemp(prefix="gmpre.", dir="/tmp"))
    report = Report()
    node = Node(options.release.resolve(), work, options.peer, options.peer_env, options.rounds)
    node.pairs = options.pairs
    try:
        for name in options.parts or parts:
            begin = time.time()
            parts[name](node, report)
            print(f"part {name}: {time.time() - begin:.0f} s", flush=True)
    finally:
        node.stop()
        print((work / "gpumemd.log").read_text()[-1500:], file=sys.stderr)
        shutil.rmtree(work)
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return report.failed != 0


if __name__ == "__main__":
    sys.exit(main())
