# SPDX-License-Identifier: Apache-2.0
"""The parts "suspend" and "turns" of suite.py: programs in broker mode that are suspended and know
nothing of it."""
import json
import pathlib
import sys
import time

from workloads import compared

PROGRAM = [sys.executable, pathlib.Path(__file__).resolve().parent / "workloads.py"]
GIB = 1 << 30

# Each holds more than 2 GiB, and works for some seconds.
LONG = ("train_long train_long_async train_long_expandable cupy_async_long "
        "jax_long_default jax_long_platform jax_long_vmm jax_long_cuda_async").split()


def results_of(process, limit):
    out, err = process.communicate(timeout=limit)
    return json.loads(out.splitlines()[-1]) if process.returncode == 0 else {"failed": err[-600:]}


def move(node, words):
    """Suspends and resumes the program in tenant "brokered". Returns the bytes that stayed."""
    sessions = json.loads(node.ctl("ps").stdout)["sessions"]
    session = next(each for each in sessions if each["tenant"] == "brokered")
    begin = time.perf_counter()
    node.ctl("suspend", str(session["session_id"]), "--yes")
    middle = time.perf_counter()
    left = node.usage("broker")["leased_bytes"]
    resumed = time.perf_counter()
    node.ctl("resume", str(session["session_id"]))
    words.append(f"out {middle - begin:.2f} s, {left / GIB:.2f} GiB left, "
                 f"back {time.perf_counter() - resumed:.2f} s")
    return left


def suspend_one(node, report, name, mode="broker"):
    alone = node.run(name, preload=False)
    if "skipped" in alone or "failed" in alone:
        report.tell(None, f"suspend {name}", str(alone))
        return
    process = node.start([*PROGRAM, name], mode)
    while node.usage("broker")["leased_bytes"] < 2 * GIB and process.poll() is None:
        time.sleep(0.01)
    words = []
    left = 0
    for _ in range(3):
        time.sleep(1)
        if process.poll() is None:
            left = max(left, move(node, words))
    held = results_of(process, 300)
    # What stays is the context, and memory that is the driver's.
    report.tell(compared(alone) == compared(held) and len(words) == 3 and left < 2 * GIB,
                f"suspend {mode} {name}", f"{alone} {held} {words}")
    node.wait_empty(mode="broker")


def take_turns(node, report, name):
    begin = time.perf_counter()
    both = {mode: node.start([*PROGRAM, name], mode) for mode in ("left", "right")}
    for mode, process in both.items():
        held = results_of(process, 400)
        report.tell(held.get("wrong") == 0, f"{name} {mode}", str(held))
    log = (node.work / "gpumemd.log").read_text()
    report.tell(True, name, f"{time.perf_counter() - begin:.1f} s in all, "
                f"{log.count('suspended')} lines of suspensions in the log")


def suspend(node, report):
    for name in LONG:
        suspend_one(node, report, name)
    for name in ("train_long", "train_long_async", "train_long_expandable"):
        suspend_one(node, report, name, "injected_broker")


def turns(node, report):
    for way in ("", "_async", "_expandable"):
        take_turns(node, report, "take_turns" + way)
        take_turns(node, report, "grow_in_turns" + way)
