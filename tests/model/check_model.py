#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_model.py [--full] [--worlds] [--faults] [NAME...]: checks the model of this folder by spin.

Each world has to be without an error, and each deliberate fault has to break the property that is
listed with it. By default it checks the small worlds and all faults, which takes under a minute of one
core. --full takes the large worlds instead: up to ten minutes and 8 GiB each. With names it checks
these worlds or faults only. Without spin or a C compiler it is skipped, and says so.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Largest memory of one check, in MiB, and its longest path in steps.
MEMORY = 8000
DEPTH = 100000

SMALL = {
    "systemd": "KILLS=1",
    "keeper": "KILLS=1 KEEPER=1 CLIENTS=1 REQUESTS=2 LEASES=4",
    "restart": "KILLS=1 STOPS=1 CLIENTS=1 UPGRADES=1",
    "keeper killed": "KILLS=2 KEEPER=1 MANAGER_KILLS=1 CLIENTS=1",
    "client killed": "KILLS=1 CRASHES=1",
    "connection cut": "KILLS=1 CUTS=1 CLIENTS=1 REQUESTS=2 LEASES=4",
    "request given up": "KILLS=2 GIVE_UPS=1 CLIENTS=1 REQUESTS=2 LEASES=4",
    "on-exit": "KILLS=1 TRUSTS=0",
    "nothing retained": "KILLS=2 RETAINS=0 CLIENTS=1 REQUESTS=2",
}

LARGE = {
    "two kills": "KILLS=2",
    "two kills, keeper": "KILLS=2 KEEPER=1",
    "two kills, nothing retained": "KILLS=2 RETAINS=0",
    "two kills, on-exit": "KILLS=2 TRUSTS=0",
    "two kills, client killed": "KILLS=2 CRASHES=1",
    "two kills, upgrade": "KILLS=2 UPGRADES=1",
    "two requests": "KILLS=1 REQUESTS=2 LEASES=4",
    "kill and restart": "KILLS=1 STOPS=1",
    "kill and restart, keeper": "KILLS=1 STOPS=1 KEEPER=1",
    "connection cut": "KILLS=1 CUTS=1",
    "request given up": "KILLS=1 GIVE_UPS=1",
    "keeper killed, two kills": "KILLS=2 KEEPER=1 MANAGER_KILLS=1",
    "one client, all faults": "KILLS=1 CLIENTS=1 REQUESTS=2 LEASES=4 CRASHES=1 CUTS=1 GIVE_UPS=1",
}

# Worlds in which no run of steps may come round: so all that has begun ends.
CYCLES = {
    "no cycle": "KILLS=1 CLIENTS=1 CRASHES=1 CUTS=1 GIVE_UPS=1",
}
LARGE_CYCLES = {
    "no cycle, two clients": "KILLS=1",
    "no cycle, two kills": "KILLS=2 CLIENTS=1 CRASHES=1 CUTS=1 GIVE_UPS=1 STOPS=1",
}

# Fault, number of the property that it breaks first, and a world in which it shows. With ONLY no other
# property is checked: so each is broken by a fault.
FAULTS = (
    ("ANSWERED_BEFORE_COMMIT", 8, "KILLS=1"),
    ("CALLS_NOT_AWAITED", 7, "KILLS=0 CUTS=1 ONLY=7"),
    ("CALLS_NOT_AWAITED", 8, "KILLS=0 CUTS=1"),
    ("CLOSE_COUNTS_AS_UNMAPPED", 3, "KILLS=0 CUTS=1"),
    ("COUNTERS_NOT_JOURNALED", 3, "KILLS=1"),
    ("DEAD_PROCESSES_SURVIVE", 9, "KILLS=1 CRASHES=1"),
    ("EXPOSURES_FORGOTTEN", 3, "KILLS=1"),
    ("JOURNALED_AFTER_ANSWER", 2, "KILLS=1"),
    ("KEPT_AFTER_ANSWER", 4, "KILLS=1"),
    ("MADE_BEFORE_KEPT", 4, "KILLS=1"),
    ("NOT_LET_GO", 1, "KILLS=0 RETAINS=0"),
    ("NOT_REGRANTED", 8, "KILLS=1"),
    ("OLD_JOURNAL_FIRST", 2, "KILLS=2 UPGRADES=1 CLIENTS=1"),
    ("QUEUE_DROPPED", 4, "KILLS=1 KEEPER=1"),
    ("REFUND_BEFORE_FREE", 1, "KILLS=0 RETAINS=0"),
    ("RELEASED_TWICE", 2, "KILLS=1 REQUESTS=2 LEASES=4"),
    ("REQUESTS_NOT_STATED", 2, "KILLS=1"),
    ("STATED_WHILE_EARLY", 3, "KILLS=1"),
    ("STATED_WHILE_EARLY", 5, "KILLS=1 ONLY=5"),
    ("STOP_ENDS_SESSIONS", 2, "KILLS=0 STOPS=1"),
    ("STORE_FORGETS", 4, "KILLS=1"),
    ("STORE_FORGETS", 6, "KILLS=1 ONLY=6"),
    ("UNNAMED_LEASES_STAY", 8, "KILLS=1"),
    ("UNNEEDED_KEPT", 1, "KILLS=1"),
)


def properties():
    """What each number of an assertion says, from the model."""
    return dict(re.findall(r"assert\((\d+) == 0 /\* (.*?) \*/\)", model_text()))


def model_files():
    return sorted(name for name in os.listdir(HERE) if name.endswith(".pml"))


def model_text():
    text = ""
    for name in model_files():
        with open(os.path.join(HERE, name), encoding="utf-8") as file:
            text += file.read()
    return text


def search(definitions, optimized, cycles=False):
    """Returns what the checker found in one world: a dictionary. With `cycles` it looks for those."""
    with tempfile.TemporaryDirectory(prefix="gpumem-model.") as folder:
        for name in model_files():
            shutil.copy(os.path.join(HERE, name), folder)
        defines = ["-D" + each for each in definitions.split()]
        run = {"cwd": folder, "check": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
               "text": True}
        made = subprocess.run(["spin", "-a", *defines, "gpumem.pml"], **run).stdout
        if "rror" in made or not os.path.exists(os.path.join(folder, "pan.c")):
            raise RuntimeError("spin: " + made)
        subprocess.run(["gcc", "-w", "-O2" if optimized else "-O0", "-DNP" if cycles else "-DSAFETY", "-DCOLLAPSE",
                        "-DMEMLIM=%d" % MEMORY, "-o", "pan", "pan.c"], **run)
        start = time.monotonic()
        said = subprocess.run(["./pan", "-m%d" % DEPTH, *(["-l"] if cycles else [])], **run).stdout
        seconds = time.monotonic() - start
        whole = "Search not completed" not in said and "max search depth too small" not in said
        broken = re.search(r"pan:1: (assertion violated \((\d+)==0\)|.*)", said)
        trail = ""
        if broken and definitions.find("FAULT") < 0:
            trail = subprocess.run(["spin", "-t", "-p", *defines, "gpumem.pml"], **run).stdout
        return {
            "states": int(float(re.search(r"([\d.e+]+) states, stored", said).group(1))),
            "depth": int(re.search(r"depth reached (\d+)", said).group(1)),
            "megabytes": float(re.search(r"([\d.]+)\s+total actual memory", said).group(1)),
            "seconds": seconds,
            "whole": whole,
            "broken": broken and (broken.group(2) or broken.group(1)),
            "trail": trail,
        }


def check_worlds(worlds, optimized, cycles=False):
    wrong = 0
    for name, definitions in worlds.items():
        found = search(definitions, optimized, cycles)
        good = found["whole"] and not found["broken"]
        wrong += not good
        print("%-28s %-62s %10d states, depth %d, %.1f s, %.0f MiB%s" % (
            name, definitions, found["states"], found["depth"], found["seconds"], found["megabytes"],
            "" if good else ": FAILED: " + properties().get(str(found["broken"]), str(found["broken"]))),
              flush=True)
        if not good:
            print(found["trail"])
    return wrong


def check_faults(faults):
    wrong = 0
    said = properties()
    for name, number, definitions in faults:
        found = search("FAULT_%s %s" % (name, definitions), optimized=False)
        good = found["broken"] == str(number)
        wrong += not good
        broken = said.get(str(found["broken"]), found["broken"])
        how = broken if good else "NOT FOUND: broken is '%s' instead of '%s'" % (broken, said.get(str(number)))
        print("fault %-26s %-36s %s" % (name, definitions, how), flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--worlds", action="store_true")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            print("check_model: skipped: %s is not installed" % program)
            return 0
    worlds = LARGE if options.full else SMALL
    switches = set(re.findall(r"def FAULT_(\w+)", model_text()))
    named = {fault[0] for fault in FAULTS}
    if switches != named:
        print("faults of the model that are not listed here, or the other way: %s" % sorted(switches ^ named))
        return 1
    unbroken = set(properties()) - {str(fault[1]) for fault in FAULTS}
    if unbroken:
        print("no fault breaks the properties %s" % sorted(unbroken))
        return 1
    unknown = set(options.names) - named.union(SMALL, LARGE, CYCLES, LARGE_CYCLES)
    if unknown:
        parser.error("no world or fault is called %s" % ", ".join(sorted(unknown)))
    both = options.worlds == options.faults
    wrong = 0

    def chosen(table):
        return {name: table[name] for name in table if not options.names or name in options.names}

    if both or options.worlds:
        wrong += check_worlds(chosen(worlds), options.full)
        wrong += check_worlds(chosen(LARGE_CYCLES if options.full else CYCLES), options.full, cycles=True)
    if (both and not options.full) or options.faults:
        wrong += check_faults([fault for fault in FAULTS if not options.names or fault[0] in options.names])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
