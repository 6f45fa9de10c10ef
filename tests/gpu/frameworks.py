#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch, CuPy and RMM's callbacks on gpumem's pool, through libgpumem.so's entry points for them.

    frameworks.py [--gpumemd PATH] [--lib PATH] [--backend auto|cuda|host] [--only PART ...]

Starts a separate daemon, with a quota of 1 GiB, and runs each part below in a new process. By
default program and library are those of the release that the script lies in. Prints a line for each
check, `ok:` or `FAILED:`. A part is `skipped:` if it is not installed, or needs a GPU and there is
none. The last line counts; exit code 0 if nothing failed. It leaves nothing behind.
"""
import argparse
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

sys.dont_write_bytecode = True  # nothing is left beside the script
import framework_parts  # noqa: E402
from framework_parts import MIB, PARTS, QUOTA, child_command  # noqa: E402
from gpumem_library import Gpumem  # noqa: E402

TIMEOUT_S = 180  # of one part
CONFIG = f"""
[tenant_defaults]
limit = "{QUOTA // MIB}MiB"
max_retained = "0"
[[tenant]]
name = "frameworks"
[[rule]]
tenant = "frameworks"
default = true
"""


def run_part(part, may_speak, args, environment):
    """Returns its lines, with one more if it did not end well."""
    child = subprocess.Popen(child_command(part.__name__, args.lib), env=environment, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             start_new_session=True)
    try:
        output, errors = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with what it has started
        output, errors = child.communicate()
        errors += f"\nno end within {TIMEOUT_S} s"
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    lines = [line for line in output.splitlines() if line.startswith(("ok: ", "FAILED: "))]
    spoken = [line for line in errors.splitlines() if line.startswith("gpumem_")]
    if child.returncode != 0 or not lines:
        last = (errors.strip().splitlines() or [""])[-1]
        lines.append(f"FAILED: exit code {child.returncode}: {last}")
    elif spoken and not may_speak:
        lines.append(f"FAILED: the library complains: {spoken[0]}")
    if any(line.startswith("FAILED: ") for line in lines):
        sys.stderr.write(errors)
    return lines


def start_daemon(args, folder):
    config = folder / "gpumemd.toml"
    config.write_text(CONFIG)
    daemon = subprocess.Popen(
        [args.gpumemd, "--backend", args.backend, "--config", config, "--runtime-dir",
         folder / "run", "--state-dir", folder / "state"], stderr=subprocess.PIPE, text=True)
    too_late = threading.Timer(30, daemon.kill)
    too_late.start()
    log = []
    for line in daemon.stderr:  # until it is ready, or ends
        log.append(line)
        if " ready: " in line:
            break
    too_late.cancel()
    if not log or " ready: " not in log[-1]:
        daemon.wait()
        sys.exit("gpumemd did not start:\n" + "".join(log))
    threading.Thread(target=daemon.stderr.read, daemon=True).start()  # or it would fill up
    return daemon


def find_backend(args, environment):
    child = subprocess.run(child_command(framework_parts.print_backend.__name__, args.lib), env=environment,
                           stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S)
    return child.stdout.strip()


def main():
    release = pathlib.Path(__file__).resolve().parent.parent.parent
    names = [part.__name__ for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gpumemd", default=str(release / "bin/gpumemd"), help="the daemon")
    parser.add_argument("--lib", default=str(release / "lib/libgpumem.so"), help="the library")
    parser.add_argument("--backend", default="auto", choices=("auto", "cuda", "host"))
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PART",
                        help=", ".join(names))
    parser.add_argument("--be", help=argparse.SUPPRESS)  # the part that this process plays
    args = parser.parse_args()
    if args.be:
        getattr(framework_parts, args.be)(Gpumem(args.lib))
        return

    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("GPUMEM_")}
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # for the same sums in every process
    lines = []
    with tempfile.TemporaryDirectory(prefix="gpumem-frameworks-") as folder:
        environment["GPUMEM_RUNTIME_DIR"] = os.path.join(folder, "run")
        daemon = start_daemon(args, pathlib.Path(folder))
        try:
            backend = find_backend(args, environment)
            for part, (library, may_speak) in PARTS.items():
                if part.__name__ not in args.only:
                    continue
                if library and importlib.util.find_spec(library) is None:
                    print(f"skipped: {part.__name__}: {library} is not installed", flush=True)
                elif library and backend == "host":
                    print(f"skipped: {part.__name__}: it needs a GPU", flush=True)
                else:
                    new = run_part(part, may_speak, args, environment)
                    print("\n".join(new), flush=True)
                    lines += new
        finally:
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
    failed = sum(line.startswith("FAILED: ") for line in lines)
    print(f"frameworks: {len(lines) - failed} ok, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
