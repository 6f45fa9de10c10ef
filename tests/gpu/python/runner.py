#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of run.sh, each in separate processes with a separate daemon, and counts.

    runner.py --gpumemd PATH --out DIR --work DIR [--limit SECONDS] [PART ...]

Parts: the test files of this folder by name (test_cupy, …), numba-own (Numba's tests of its memory,
with the plugin and without), examples, bench-alloc, bench-restart. Only if they are named:

- bench-suspend, bench-demote
- bench-suspend-cold, -huge and -reserved: the tier takes its memory when it is first needed, in
  ordinary pages, transparent huge pages and reserved huge pages
- bench-turns: two tenants that do not fit together
- bench-push: new weights for a worker after each step of a trainer
- bench-serving: a Llama by load_or_attach(), and by transformers and safetensors
- bench-load: safetensors files by publish_files() and by other loaders; attaching 1,000 arrays

Failures are printed with their reasons, and a table comes last; exit code 0 if all ran and nothing
failed.
"""
import argparse
import collections
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import configs
import host_memory
import versions

HERE = pathlib.Path(__file__).resolve().parent
TESTS = ("test_arrays", "test_cupy", "test_cupy_calls", "test_numba", "test_numba_calls", "test_jax",
         "test_torch_use", "test_torch", "test_cuda_core", "test_cuda_runtime", "test_cuda_calls",
         "test_works_with", "test_turns", "test_serving", "test_engines")
EXAMPLES = ("two_frameworks", "inference_server", "pipeline", "numba_kernel", "jax_weights",
            "two_servers", "serve_model")
NUMBA_OWN = ("cudadrv.test_cuda_memory", "cudadrv.test_cuda_ndarray",
             "cudadrv.test_cuda_array_slicing", "cudadrv.test_cuda_auto_context",
             "cudadrv.test_cuda_devicerecord", "cudadrv.test_deallocations",
             "cudadrv.test_emm_plugins", "cudadrv.test_host_alloc", "cudadrv.test_pinned",
             "cudadrv.test_managed_alloc", "cudadrv.test_context_stack",
             "cudadrv.test_device_array_manipulation", "cudadrv.test_reset_device",
             "cudadrv.test_array_attr", "cudadrv.test_streams", "cudadrv.test_events",
             "cudapy.test_ipc", "cudapy.test_array", "cudapy.test_array_args",
             "cudapy.test_cuda_array_interface", "cudapy.test_multithreads",
             "cudapy.test_record_dtype")
BEGAN = time.monotonic()


def left(args, limit):
    """Seconds that a part may take that ends after `limit` at the latest."""
    return max(5.0, min(limit, args.limit - (time.monotonic() - BEGAN)))


class Part:
    """One part's counts, and its messages about failures."""

    def __init__(self, name):
        self.name = name
        self.passed = self.failed = self.skipped = 0
        self.seconds = 0.0
        self.failures = []  # (test, why)
        self.skips = []
        self.lines = []  # printed as they are
        self.note = ""
        self.cut = ""  # why some of its tests did not run

    def fail(self, test, why):
        self.failed += 1
        self.failures.append((test, why))


class Daemon:
    """A daemon for one part, as root where this is."""

    def __init__(self, args, name):
        self.folder = pathlib.Path(args.work) / name
        self.folder.mkdir(parents=True)
        (self.folder / "gpumemd.toml").write_text(configs.of(name))
        self.log = open(pathlib.Path(args.out) / f"{name}.gpumemd.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [args.gpumemd, "--backend", args.backend, "--config", self.folder / "gpumemd.toml",
             "--runtime-dir", self.folder / "run", "--state-dir", self.folder / "state"],
            stderr=self.log)
        end = time.monotonic() + 30
        while " ready: " not in self.said():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError("gpumemd did not start: " + self.said()[-800:])
            time.sleep(0.05)

    def said(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def environment(self, **more):
        made = {key: value for key, value in os.environ.items() if not key.startswith("GPUMEM_")}
        made["GPUMEM_RUNTIME_DIR"] = str(self.folder / "run")
        made.update(more)
        return made


def run(command, environment, log, limit):
    """The exit code; None where time was up. Output goes to the log."""
    with open(log, "a", encoding="utf-8") as output:
        output.write(f"$ {' '.join(map(str, command))}\n")
        output.flush()
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT,
                                 stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)  # with what it has started
            except ProcessLookupError:
                pass
            child.wait()


def tail(path, characters=700):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")[-characters:]
    except OSError:
        return ""


def pytest_command(targets, done):
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "reporter", "-p",
               "no:cacheprovider", "-v", "--tb=short", "-o", "faulthandler_timeout=100",
               "--rootdir", HERE, *targets]
    for test in done:
        command += ["--deselect", test]
    return command


def own_tests_command(targets, done):
    return [sys.executable, "-X", "faulthandler", str(HERE / "own_tests.py"), *targets, "--without",
            *done]


def run_tests(part, args, environment, targets, limit, command_of=pytest_command):
    """Runs all tests of the targets. If the process dies, another one runs the rest."""
    report, log = (pathlib.Path(args.out) / f"{part.name}.{end}" for end in ("jsonl", "log"))
    report.touch()
    environment = dict(environment, GPUMEM_REPORT=str(report))
    end = time.monotonic() + limit
    done = set()
    for attempt in range(10):
        status = run(command_of(targets, sorted(done)), environment, log,
                     max(5.0, end - time.monotonic()))
        lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
        begun = [line["test"] for line in lines if line["what"] == "begins"]
        ended = {line["test"] for line in lines if line["what"] != "begins"}
        died = [test for test in begun if test not in ended]
        if status is not None and 0 <= status <= 5 and not died:
            if status not in (0, 1, 5) and not lines:
                part.fail("all of them", f"exit code {status}: {tail(log)}")
            break
        if status is None:  # the running test may hang, or be fast and the time too short
            part.cut = f"time was up in {died[-1] if died else 'no test'}"
            break
        for test in died:
            with open(report, "a", encoding="utf-8") as file:
                file.write(json.dumps({"test": test, "what": "failed", "why":
                                       f"its process died ({status})\n{tail(log)}"}) + "\n")
        if not died:
            part.note = f"it ended with {status}"
            break
        done = ended | set(died)
    results = {line["test"]: line for line in map(
        json.loads, report.read_text(encoding="utf-8").splitlines()) if line["what"] != "begins"}
    for line in results.values():
        if line["what"] == "passed":
            part.passed += 1
        elif line["what"] == "skipped":
            part.skipped += 1
            part.skips.append((line["test"], line["why"]))
        elif line["what"] == "failed":
            part.fail(line["test"], line["why"])


# ---- The parts -----------------------------------------------------------------------------------


def test_file(args, name):
    part = Part(name)
    daemon = Daemon(args, name)
    try:
        run_tests(part, args, daemon.environment(), [str(HERE / f"{name}.py")], left(args, 300))
    finally:
        daemon.stop()
    return part


def numba_modules():
    found, missing = [], []
    for name in NUMBA_OWN:
        try:
            there = importlib.util.find_spec(f"numba.cuda.tests.{name}") is not None
        except (ImportError, AttributeError, ValueError):
            there = False
        (found if there else missing).append(f"numba.cuda.tests.{name}")
    return found, missing


def filecheck_folder(args, name):
    """Returns PYTHONPATH's addition for Numba's own tests: see filecheck_stub.py."""
    if importlib.util.find_spec("filecheck") is not None:
        return ""
    folder = pathlib.Path(args.work) / name / "stub"
    folder.mkdir()
    shutil.copy(HERE / "filecheck_stub.py", folder / "filecheck.py")
    return f"{folder}:"


def numba_own(args, name):
    """With the plugin, or without it, to measure what works on this machine at all."""
    part = Part(name)
    found, missing = numba_modules()
    if missing:
        some = ", ".join(one.split("tests.")[1] for one in missing[:3])
        part.note = f"{len(missing)} modules are not in the wheel: {some}, …"
    if not found:
        return part
    daemon = Daemon(args, name)
    try:
        more = {"NUMBA_CUDA_MEMORY_MANAGER": "gpumem.numba", "GPUMEM_POOL_KIND": "ipc"}
        if name == "numba-own-ipc":
            found = [one for one in found if one.endswith("test_ipc")]
        elif name == "numba-own":
            more["GPUMEM_POOL_KIND"] = "vmm"
            found = [one for one in found if not one.endswith("test_ipc")]
        else:
            more = {}
        more["PYTHONPATH"] = filecheck_folder(args, name) + os.environ.get("PYTHONPATH", "")
        run_tests(part, args, daemon.environment(**more), found, left(args, 600),
                  own_tests_command)
    finally:
        daemon.stop()
    return part


def example(args, name):
    part = Part(f"example-{name}")
    script = next((folder / f"{name}.py" for folder in (
        HERE.parent / "examples", HERE.parent.parent.parent / "client/python/examples")
        if (folder / f"{name}.py").exists()), None)
    if script is None:
        part.note = "not here"
        return part
    daemon = Daemon(args, part.name)
    log = pathlib.Path(args.out) / f"{part.name}.log"
    try:
        began = time.monotonic()
        status = run([sys.executable, "-X", "faulthandler", str(script)], daemon.environment(), log,
                     left(args, 90))
        part.lines = [f"{part.name}: {line}" for line in tail(log, 900).splitlines()[1:][-5:]]
        if status == 0:
            part.passed = 1
        else:
            part.fail(script.name, f"exit code {status} after {time.monotonic() - began:.1f} s: "
                      + tail(log))
    finally:
        daemon.stop()
    return part


def bench(args, name):
    part = Part(name)
    script, more = configs.NAMED.get(name, (name.replace("-", "_"), []))
    log = pathlib.Path(args.out) / f"{name}.log"
    with host_memory.reserved_huge_pages(configs.HUGE_PAGES.get(name, 0)) as lacks:
        if lacks:
            part.skipped, part.skips = 1, [(name, lacks)]
            return part
        daemon = Daemon(args, name)
        try:
            status = run([sys.executable, "-X", "faulthandler", str(HERE / f"{script}.py"), "--work",
                          args.work, *more], daemon.environment(), log,
                         left(args, configs.LIMITS.get(name, 190)))
        finally:
            daemon.stop()
    part.lines = [line for line in tail(log, 6000).splitlines() if line.startswith("| ")]
    if status == 0:
        part.passed = 1
    else:
        part.fail(f"{script}.py", f"exit code {status}: {tail(log)}")
    return part


# Benchmarks have the machine for themselves; the longest parts come last.
TOGETHER = [(name, test_file, name) for name in TESTS]
SERIAL = [("examples", example, name) for name in EXAMPLES] + [
    ("bench-alloc", bench, "bench-alloc"), ("bench-restart", bench, "bench-restart")]
LAST = [(name, numba_own, name) for name in ("numba-own", "numba-own-ipc", "numba-own-without")]


def safely(function, args, name):
    began = time.monotonic()
    try:
        part = function(args, name)
    except Exception as error:  # one part's trouble is not the others'
        part = Part(name)
        part.fail(name, repr(error))
    part.seconds = time.monotonic() - began
    with _printing:
        print(f"[{time.monotonic() - BEGAN:5.0f} s] {part.name}: {part.passed} passed, "
              f"{part.failed} failed, {part.skipped} skipped", flush=True)
    return part


_printing = threading.Lock()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gpumemd", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for all parts together")
    parser.add_argument("--jobs", type=int, default=4, help="test parts at a time")
    parser.add_argument("parts", nargs="*", metavar="PART")
    args = parser.parse_args()
    versions.say()
    wanted, parts = set(args.parts), []
    named = [(name, bench, name) for name in configs.NAMED if name in wanted]
    for phase, jobs in ((TOGETHER, args.jobs), (SERIAL, 1), (named, 1), (LAST, args.jobs)):
        with concurrent.futures.ThreadPoolExecutor(jobs) as executor:
            running = [executor.submit(safely, function, args, name)
                       for group, function, name in phase
                       if not wanted or group in wanted or name in wanted]
            parts += [one.result() for one in running]
    # Failures that also occur in the run without the plugin are not the plugin's.
    without = {test for part in parts if part.name == "numba-own-without"
               for test, _ in part.failures}
    room, also_without = 24000, collections.Counter()  # characters; all is in the logs
    for part in parts:
        for test, why in part.failures:
            short = test.split("/")[-1].removeprefix("numba.cuda.tests.")
            why = " ".join(why.split())[-200:]
            if part.name == "numba-own-without":
                only = all(test not in {one for one, _ in other.failures} for other in parts
                           if other is not part)
                line = f"fails only without gpumem: {short}: …{why}" if only else ""
            elif test in without:
                also_without[part.name] += 1
                line = f"fails also without gpumem: {part.name} {short}: …{why}"
            else:
                line = f"FAILED {part.name} {short}: …{why}"
            room -= len(line)
            if line and room > 0:
                print(line)
    for part in parts:
        if part.name in ("numba-own", "numba-own-ipc"):
            print(f"{part.name}: {part.passed} passed, {part.skipped} skipped, {part.failed} failed, "
                  f"of which {also_without[part.name]} fail also without gpumem")
    reasons = collections.Counter(
        f"{part.name}: {' '.join(why.split())[-90:]}" for part in parts for _, why in part.skips)
    for reason, count in reasons.most_common(8):
        print(f"skipped {count} of {reason}")
    for part in parts:
        print("\n".join(part.lines)) if part.lines else None
    print(f"{'part':<22} passed failed skipped seconds")
    for part in parts:
        print(f"{part.name:<22} {part.passed:6} {part.failed:6} {part.skipped:7} {part.seconds:7.0f}"
              f"  {part.cut or part.note}")
    failed = sum(part.name != "numba-own-without" and test not in without
                 for part in parts for test, _ in part.failures)
    print(f"python: {sum(part.passed for part in parts)} passed, {failed} failed, "
          f"{sum(part.skipped for part in parts)} skipped in {time.monotonic() - BEGAN:.0f} s; what "
          "also fails without gpumem is not counted")
    cut = [part for part in parts if part.cut]
    for part in cut:
        print(f"not complete: {part.name}: {part.cut}")
    sys.exit(1 if failed or cut else 0)


if __name__ == "__main__":
    main()
