#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fuzz.py CHECKOUT HOME ENGINE BIN [options] LABELS...: runs fuzz targets; `./run fuzz` calls it.

For each target NAME it keeps in HOME: corpus/NAME, the inputs that reached something new;
findings/NAME, those that ended the program; log/NAME. It runs the targets in turn, minimises what
ended one, and prints a line for each. The status is 1 if there were findings.

Each run adds a line to HOME/record. `fuzz.py --totals HOME` prints the sums of that as a table.
"""
import argparse
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

# Beyond the time of a run: an engine that does not end by itself is stuck.
GRACE = 60
# For an engine to end the processes that it started, after SIGINT. Only then their time is counted.
ENDING = 10
MINIMISE_SECONDS = 60
# An input that takes longer is a finding.
INPUT_SECONDS = 20
MEMORY_MB = 2048
MAX_LENGTH = 16384


class Target:
    def __init__(self, label, options):
        package, name = label[2:].split(":")
        self.label = label
        self.name = name[:-len("_fuzz")]
        self.program = os.path.join(options.bin, package, name)
        folder = os.path.join(options.checkout, package, "testing/fuzz")
        self.seeds = os.path.join(folder, self.name)
        self.words = os.path.join(folder, self.name + ".dict")
        self.corpus = os.path.join(options.home, "corpus", self.name)
        self.findings = os.path.join(options.home, "findings", self.name)
        self.log = os.path.join(options.home, "log", self.name)
        for path in (self.corpus, self.findings, os.path.dirname(self.log)):
            os.makedirs(path, exist_ok=True)

    def found(self):
        return {os.path.join(self.findings, name) for name in os.listdir(self.findings)
                if not name.endswith((".min", ".why"))}

    def reasons(self):
        """Returns what has ended the program so far."""
        paths = [os.path.join(self.findings, name) for name in os.listdir(self.findings)
                 if name.endswith(".why")]
        return {open(path, errors="replace").read() for path in paths}


def processor_seconds():
    """Returns the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Result:
    def __init__(self):
        self.runs = 0
        self.edges = 0
        self.seconds = 0.0
        self.processor_seconds = 0.0
        self.kept = 0  # inputs that the corpus has got
        self.new = []  # the paths of findings of this run
        self.again = 0  # how often it ended for a reason that was known


def environment(options):
    env = dict(os.environ)
    env["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=1:symbolize=%d:handle_abort=1" % (
        options.engine == "libfuzzer")
    env["UBSAN_OPTIONS"] = "print_stacktrace=1:abort_on_error=1"
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env


def call(command, options, log, seconds):
    """Runs a command, which may not take longer than the seconds; returns its status."""
    with open(log, "ab") as output:
        # The targets look for programs and files in the checkout.
        process = subprocess.Popen(command, cwd=options.checkout, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output, env=environment(options),
                                   start_new_session=True)
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        except KeyboardInterrupt:
            options.interrupted = True
            return None
        finally:
            try:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(timeout=ENDING)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


# A frame of a stack whose source was compiled by Bazel. Sources of libraries are elsewhere.
OWN_FRAME = re.compile(r"#\d+ +in (.*) /proc/self/cwd/(?:\./)?(\S+?:\d+)(?::\d+)?$")


def own_frame(text):
    """Returns the first frame of a report's first stack that is the project's, or \"\"."""
    stack = re.search(r"(^ *#\d+ .*\n?)+", text, re.M)
    for line in stack.group().splitlines() if stack else ():
        match = OWN_FRAME.search(line)
        # Both engines' programs begin there.
        if match and not match.group(1).startswith("LLVMFuzzerTestOneInput"):
            return " in %s %s" % match.groups()
    return ""


def reason_of(text):
    """Returns one line from a log that is the same whenever a program ends for this reason."""
    text = re.sub(r"0x[0-9a-f]+|==\d+==", "", text)
    for pattern in (r".*FUZZ_CHECK\(.*", r"[^ \n]+: runtime error: .*"):
        if match := re.search(pattern, text):
            return match.group()  # with the place
    # These name a place in a library if it is a library that ends the program.
    match = re.search(r"ERROR: (?:libFuzzer: [a-z -]+|\w+Sanitizer: [\w-]+)", text)
    if match and (frame := own_frame(text[match.end():])):
        return match.group().strip() + frame
    summary = re.search(r"SUMMARY: .*", text) or match
    return summary.group() if summary else "unknown"


def with_libfuzzer(target, options):
    result, before, reasons = Result(), target.found(), target.reasons()
    end = time.monotonic() + options.time
    # A finding ends the program; it is started again for the rest of the time.
    while not options.interrupted and (left := int(end - time.monotonic())) > 0:
        open(target.log, "wb").close()
        command = [target.program, target.corpus]
        command += [target.seeds] if os.path.isdir(target.seeds) else []
        command += ["-dict=" + target.words] if os.path.exists(target.words) else []
        command += ["-artifact_prefix=" + target.findings + "/", "-max_total_time=%d" % left,
                    "-timeout=%d" % INPUT_SECONDS,
                    "-report_slow_units=%d" % INPUT_SECONDS, "-rss_limit_mb=%d" % MEMORY_MB,
                    "-max_len=%d" % MAX_LENGTH, "-print_final_stats=1", "-detect_leaks=0",
                    # The choice by rare features costs more than a run where 40,000 edges count.
                    "-entropic=0"]
        if options.jobs > 1:
            command += ["-fork=%d" % options.jobs, "-ignore_crashes=1"]
        status = call(command, options, target.log, left + GRACE)
        with open(target.log, errors="replace") as log:
            text = log.read()
        runs = re.findall(r"^#(\d+)", text, re.M)
        counted = re.findall(r"number_of_executed_units: (\d+)", text)
        result.runs += int((counted or runs or ["0"])[-1])
        result.edges = max([result.edges] + [int(n) for n in re.findall(r"cov: (\d+)", text)])
        found = sorted(target.found() - before - set(result.new))
        wrote = re.search(r"Test unit written to (\S+)", text)
        reason = reason_of(text)
        if options.jobs == 1 and wrote and reason in reasons:
            for path in found:
                os.remove(path)
            result.again += 1
            found = []
        elif wrote and not found:
            result.again += 1  # its file was there before
        elif options.jobs == 1 and found:
            reasons.add(reason)
            with open(found[0] + ".why", "w") as why:
                why.write(reason)
        result.new += found
        if found:
            shutil.copy(target.log, target.log + ".finding")
        if status == 0 or options.interrupted:
            break
        if wrote and "INITED" not in text:
            # An input of the corpus, which the engine names by its contents, too: one that other
            # bytes, or another program, had let pass.
            kept = os.path.join(target.corpus, wrote.group(1).rpartition("-")[2])
            if os.path.exists(kept):
                os.remove(kept)
                continue
        if not wrote or "INITED" not in text:
            # Without an end of the program, or before the first mutation: the next run would end so.
            print("fuzz: %s: the engine ended with status %s; see %s" % (
                target.name, status, target.log), flush=True)
            options.failed = True
            break
    return result


def keep(path, folder, kind):
    """Copies a file of AFL's, whose names begin anew in each run; returns the copy's path."""
    with open(path, "rb") as file:
        copy = os.path.join(folder, "%s-%s" % (kind, hashlib.sha1(file.read()).hexdigest()))
    return shutil.copy(path, copy)


def with_afl(target, options):
    result = Result()
    seeds = os.path.join(options.home, "afl-seeds", target.name)
    shutil.rmtree(seeds, ignore_errors=True)
    os.makedirs(seeds)
    for folder in (target.seeds, target.corpus):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            shutil.copy(os.path.join(folder, name), seeds)
    if not os.listdir(seeds):
        with open(os.path.join(seeds, "empty"), "w") as file:
            file.write("0")
    output = os.path.join(options.home, "afl", target.name)
    os.makedirs(os.path.dirname(output), exist_ok=True)
    shutil.rmtree(output, ignore_errors=True)
    command = ["afl-fuzz", "-i", seeds, "-o", output, "-V", str(options.time), "-m", "none",
               "-t", "%d+" % (INPUT_SECONDS * 1000)]
    command += ["-x", target.words] if os.path.exists(target.words) else []
    # Neither the governor nor core_pattern of the machine is changed for it.
    os.environ.update(AFL_SKIP_CPUFREQ="1", AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES="1",
                      AFL_NO_UI="1", AFL_NO_AFFINITY="1", AFL_IGNORE_SEED_PROBLEMS="1")
    open(target.log, "wb").close()
    status = call(command + ["--", target.program], options, target.log, options.time + GRACE)
    # It takes the time of its trial of all seeds on top, which a busy machine makes long.
    if status not in (0, None) and not options.interrupted:
        print("fuzz: %s: afl-fuzz ended with status %s; see %s" % (target.name, status, target.log),
              flush=True)
        options.failed = True
    with open(target.log, errors="replace") as log:
        # It skips seeds that end the program, and goes on with the others.
        skipped = re.findall(r"est case '?([^\s']*)'? results in a (?:crash|timeout)", log.read())
    for name in sorted(set(skipped)):
        path = os.path.join(seeds, name.split("orig:")[-1])
        print("fuzz: %s: a seed ends the program: %s" % (target.name, path), flush=True)
        if os.path.isfile(path):
            result.new.append(keep(path, target.findings, "afl-crashes"))
        options.failed = True
    try:
        with open(os.path.join(output, "default/fuzzer_stats")) as file:
            stats = dict(re.split(r"\s*:\s*", line.strip(), 1) for line in file if ":" in line)
    except OSError:
        print("fuzz: %s: afl-fuzz did not start; see %s" % (target.name, target.log), flush=True)
        options.failed = True
        return result
    result.runs = int(stats["execs_done"])
    result.edges = int(stats["edges_found"])
    for kind in ("crashes", "hangs"):
        folder = os.path.join(output, "default", kind)
        for name in sorted(os.listdir(folder)):
            if name.startswith("id:"):
                path = keep(os.path.join(folder, name), target.findings, "afl-" + kind)
                result.new.append(path)
    for name in os.listdir(os.path.join(output, "default/queue")):
        path = os.path.join(output, "default/queue", name)
        if "+cov" in name and os.path.isfile(path):
            keep(path, target.corpus, "afl")
    return result


def minimised(target, path, options):
    """Returns the path of the smallest input found that still ends the program."""
    smaller = path + ".min"
    if os.path.exists(smaller):
        os.remove(smaller)
    if options.engine == "libfuzzer" and os.path.basename(path).startswith("crash-"):
        call([target.program, "-minimize_crash=1", "-exact_artifact_path=" + smaller,
              "-max_total_time=%d" % MINIMISE_SECONDS, path], options, target.log + ".min",
             MINIMISE_SECONDS + GRACE)
    if options.engine == "afl" and "-crashes-" in path:
        call(["afl-tmin", "-m", "none", "-i", path, "-o", smaller, "--", target.program], options,
             target.log + ".min", MINIMISE_SECONDS)
    return smaller if os.path.exists(smaller) else path


def note(target, result, options):
    """Adds a run to the record."""
    line = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "target": target.name,
            "engine": options.engine, "seconds": round(result.seconds, 1),
            "processor_seconds": round(result.processor_seconds, 3), "runs": result.runs,
            "edges": result.edges, "kept": result.kept, "findings": len(result.new)}
    with open(os.path.join(options.home, "record"), "a") as record:
        record.write(json.dumps(line) + "\n")


def totals(home):
    """Returns the sums of the record by target and engine, as lines of a table."""
    sums = {}
    with open(os.path.join(home, "record")) as record:
        for run in map(json.loads, record):
            of = sums.setdefault((run["target"], run["engine"]), [0, 0, 0])
            of[0] += run["processor_seconds"]
            of[1] += run["runs"]
            of[2] = max(of[2], run["edges"])
    lines = ["| target | engine | CPU-minutes | executions | a CPU second | edges |",
             "|---|---|---:|---:|---:|---:|"]
    for (target, engine), (seconds, runs, edges) in sorted(sums.items()):
        lines.append("| `%s` | %s | %.1f | %s | %s | %s |" % (
            target, engine, seconds / 60, format(runs, ","),
            format(round(runs / max(seconds, 1)), ","), format(edges, ",")))
    hours = sum(of[0] for of in sums.values()) / 3600
    return lines + ["", "%.1f CPU-hours in all" % hours]


def main():
    if sys.argv[1:2] == ["--totals"]:
        print("\n".join(totals(sys.argv[2])))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout")
    parser.add_argument("home")
    parser.add_argument("engine", choices=("libfuzzer", "afl"))
    parser.add_argument("bin")
    parser.add_argument("labels", nargs="+")
    parser.add_argument("--time", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    options = parser.parse_args()
    options.interrupted = options.failed = False
    # As Ctrl-C: the engine, which runs in another session, ends with this.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)

    lines, findings = [], 0
    for label in sorted(options.labels):
        if options.interrupted:
            break
        target = Target(label, options)
        print("fuzz: %s for %d s; log in %s" % (target.name, options.time, target.log), flush=True)
        run = {"libfuzzer": with_libfuzzer, "afl": with_afl}[options.engine]
        began, used, had = time.monotonic(), processor_seconds(), len(os.listdir(target.corpus))
        result = run(target, options)
        result.seconds = time.monotonic() - began
        result.processor_seconds = processor_seconds() - used
        result.kept = len(os.listdir(target.corpus)) - had
        note(target, result, options)
        findings += len(result.new)
        for path in result.new:
            small = path if options.interrupted else minimised(target, path, options)
            print("fuzz: %s: a finding, %d bytes: %s" % (
                target.name, os.path.getsize(small), small))
            print("fuzz:   replay it: cd %s && %s %s" % tuple(
                map(shlex.quote, (options.checkout, target.program, small))), flush=True)
        lines.append(
            "%-16s %12d runs %8d a second %8d CPU s %8d edges %6d inputs kept %4d findings%s" % (
                target.name, result.runs, result.runs / max(result.seconds, 1),
                result.processor_seconds, result.edges, result.kept, len(result.new),
                ", %d of known ones" % result.again if result.again else ""))
        findings += result.again
    print("\n".join(lines))
    sys.exit(130 if options.interrupted else 1 if findings or options.failed else 0)


if __name__ == "__main__":
    main()
