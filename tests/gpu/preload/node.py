# SPDX-License-Identifier: Apache-2.0
"""The daemon of the suite, the ways to run a program beside it, and the report."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30
LIMIT = 20 * GIB
CONFIG = """
[tier]
capacity = "90GiB"
[[tenant]]
name = "unmodified"
limit = "20GiB"
[[tenant]]
name = "brokered"
limit = "20GiB"
preload = "broker"
[[tenant]]
name = "left"
preload = "broker"
swappable = true
min_residence = "1s"
[[tenant]]
name = "right"
preload = "broker"
swappable = true
min_residence = "1s"
""" + "".join(f"""[[rule]]
default = true
tenant = "{name}"
""" for name in ("unmodified", "brokered", "left", "right"))
# The tenants of the modes that are not "unmodified".
TENANTS = {"broker": "brokered", "injected_broker": "brokered", "left": "left", "right": "right"}


class Node:
    """A daemon, and how programs run beside it."""

    def __init__(self, release, work, peer, peer_env, rounds):
        self.rounds = rounds
        self.release, self.work = release, work
        self.peer, self.peer_env = peer, dict(pair.split("=", 1) for pair in peer_env)
        self.runtime = work / "run"
        (work / "gpumemd.toml").write_text(CONFIG)
        self.log = open(work / "gpumemd.log", "wb")
        self.daemon = subprocess.Popen(
            [release / "bin/gpumemd", "--config", work / "gpumemd.toml", "--runtime-dir",
             self.runtime, "--state-dir", work / "state", "--backend", "cuda"],
            stdout=self.log, stderr=self.log)
        for _ in range(600):
            if self.ctl("status", check=False).returncode == 0:
                break
            if self.daemon.poll() is not None:
                sys.exit((work / "gpumemd.log").read_text())
            time.sleep(0.05)

    def ctl(self, *arguments, check=True):
        return subprocess.run([self.release / "bin/gpumemctl", "--runtime-dir", self.runtime, "--json",
                               *arguments], capture_output=True, check=check, text=True)

    def usage(self, mode=True):
        """Of the mode's tenant on the first GPU."""
        for tenant in json.loads(self.ctl("quota", "list").stdout)["tenants"]:
            if tenant["usage"]["tenant"] != TENANTS.get(mode, "unmodified"):
                continue
            for device in tenant["usage"].get("devices", []):
                if device["device_uuid"].startswith("GPU-"):
                    return device
        return {"leased_bytes": 0, "peak_bytes": 0}

    def modes(self):
        """False: the program alone; True: under the preload; "broker": the same in broker mode;
        "peer". Also "injection", "injected_broker", "left", "right"."""
        return (False, True, "broker", "peer") if self.peer else (False, True, "broker")

    def environment(self, preload):
        env = dict(os.environ, GPUMEM_RUNTIME_DIR=str(self.runtime))
        if preload in ("left", "right"):
            env["GPUMEM_PRELOAD_WAIT_MS"] = "120000"
        if preload == "peer":
            env.update(self.peer_env, LD_PRELOAD=str(self.peer))
        elif preload:
            env["GPUMEM_TENANT"] = TENANTS.get(preload, "unmodified")
            injected = preload in ("injection", "injected_broker")
            variable = "CUDA_INJECTION64_PATH" if injected else "LD_PRELOAD"
            env[variable] = str(self.release / "lib/gpumem/libgpumem-preload.so")
        return env

    def start(self, command, preload=True):
        return subprocess.Popen(command, env=self.environment(preload), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, name, preload, limit=300, program="workloads.py"):
        """Returns the workload's results, or {"failed": why}."""
        process = self.start([sys.executable, HERE / program, name], preload)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            return {"failed": f"took more than {limit} s: {err[-300:]}"}
        if process.returncode != 0:
            return {"failed": f"ended with {process.returncode}: {err[-600:]}"}
        return json.loads(out.strip().splitlines()[-1])

    def wait_empty(self, seconds=30, mode=True):
        """Returns how long it took until nothing is charged to processes."""
        begin = time.perf_counter()
        while self.usage(mode)["leased_bytes"] != 0:
            if time.perf_counter() - begin > seconds:
                raise RuntimeError(f"still charged: {self.usage(mode)}")
            time.sleep(0.002)
        return time.perf_counter() - begin

    def stop(self):
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait(60)
        self.log.close()


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def tell(self, ok, name, words):
        self.passed += ok is True
        self.failed += ok is False
        self.skipped += ok is None
        print({True: "ok     ", False: "FAILED ", None: "skipped"}[ok], name, words, flush=True)
