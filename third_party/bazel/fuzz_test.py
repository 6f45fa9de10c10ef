#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fuzz.py tells findings apart, and what it counts of a run. The engine is a script."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, FOLDER)
import fuzz  # pylint: disable=wrong-import-position

SIGNAL = """INFO: Seed: 1
==77== ERROR: libFuzzer: deadly signal
    #0 0x55d4 in __sanitizer_print_stack_trace (/bazel-out/bin/a_fuzz+0x11)
    #1 0x55d5 in fuzzer::PrintStackTrace() (/bazel-out/bin/a_fuzz+0x12)
    #2 0x7f01 in raise signal/../sysdeps/posix/raise.c:26:13
    #3 0x55d6 in operator() /usr/include/absl/types/optional.h:10:1
    #4 0x55d7 in gpumemd::%s(absl::Span<int const>) const /proc/self/cwd/daemon/core/a.cc:%d:9
    #5 0x55d8 in LLVMFuzzerTestOneInput /proc/self/cwd/tests/a_fuzz.cc:20:3

SUMMARY: libFuzzer: deadly signal
"""
REPORT = """==%d==ERROR: AddressSanitizer: heap-use-after-free on address 0x60%d at pc 0x1
READ of size 8 at 0x60%d thread T3 (grpc)
    #0 0x55d4 in __interceptor_memcpy (/bazel-out/bin/a_fuzz+0x11)
    #1 0x7f02 in grpc::Server::Run() (/lib/x86_64-linux-gnu/libgrpc++.so.1.51+0x3)

freed by thread T0 here:
    #0 0x55d4 in free (/bazel-out/bin/a_fuzz+0x13)
    #1 0x55d4 in gpumemd::Other() /proc/self/cwd/daemon/b.cc:%d:1

SUMMARY: AddressSanitizer: heap-use-after-free (/lib/libgrpc++.so.1.51+0x3) in grpc::Server::Run()
"""
ENGINE = """#!/usr/bin/env python3
import os, sys
folders = [a for a in sys.argv[1:] if not a.startswith("-")]
flags = dict(a[1:].split("=", 1) for a in sys.argv[1:] if a.startswith("-"))
if "minimize_crash" in flags:
    sys.exit(0)
with open(COUNT, "a") as counter:
    counter.write("x")
count = os.path.getsize(COUNT)
kept = os.path.join(folders[0], "kept")
if count <= 3 or not os.path.exists(kept):
    open(kept, "w").close()
    open(os.path.join(folders[0], "more"), "w").close()
    print("#2 INITED cov: 5 ft: 6\\n#90 NEW cov: 7 ft: 9")
if count <= 4:
    path = flags["artifact_prefix"] + "crash-" + (str(count) if count <= 3 else "kept")
    open(path, "w").write("x")
    print("a.cc:%d: FUZZ_CHECK(x)" % (count // 2))
    print("Test unit written to " + path)
    print("stat::number_of_executed_units: 100")
    sys.exit(77)
print("stat::number_of_executed_units: 1000")
"""


class Reasons(unittest.TestCase):
    def test_of_signals_is_the_first_frame_of_ours(self):
        reason = fuzz.reason_of(SIGNAL % ("Grant", 12))
        self.assertIn("deadly signal in gpumemd::Grant(", reason)
        self.assertIn(" daemon/core/a.cc:12", reason)
        self.assertEqual(reason, fuzz.reason_of(SIGNAL.replace("0x55", "0x66") % ("Grant", 12)))
        self.assertNotEqual(reason, fuzz.reason_of(SIGNAL % ("Grant", 13)))

    def test_of_sources_that_others_include(self):
        text = (SIGNAL % ("Grant", 12)).replace("daemon/core", "./daemon/core")
        self.assertEqual(fuzz.reason_of(text), fuzz.reason_of(SIGNAL % ("Grant", 12)))

    def test_without_a_frame_of_ours_is_the_summary(self):
        reason = fuzz.reason_of(REPORT % (1, 2, 2, 3))
        self.assertIn("grpc::Server::Run", reason)
        # Of the first stack alone: memory may be freed anywhere.
        self.assertEqual(reason, fuzz.reason_of(REPORT % (9, 8, 8, 7)))
        self.assertNotIn("tests/a_fuzz.cc", fuzz.reason_of(
            SIGNAL.replace("/proc/self/cwd/daemon/core/a.cc", "/usr/include/a.h") % ("Grant", 1)))

    def test_of_checks_is_their_line(self):
        text = "PERMISSION_DENIED: x\ntests/a.cc:7: FUZZ_CHECK(a == b)\n" + SIGNAL % ("Grant", 12)
        self.assertEqual(fuzz.reason_of(text), "tests/a.cc:7: FUZZ_CHECK(a == b)")

    def test_unknown(self):
        self.assertEqual(fuzz.reason_of("nothing"), "unknown")


class Calls(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = os.path.join(self.folder.name, "log")

    def call(self, script, seconds):
        options = argparse.Namespace(checkout=self.folder.name, engine="afl", interrupted=False)
        status = fuzz.call(["sh", "-c", script], options, self.log, seconds)
        with open(self.log) as log:
            return status, log.read()

    def test_end_engines_by_a_signal_for_which_they_end_their_own(self):
        status, text = self.call("trap 'echo ended; exit' INT; while :; do sleep 0.05; done", 3)
        self.assertIsNone(status)
        self.assertIn("ended", text)

    def test_kill_engines_that_do_not_end(self):
        with mock.patch.object(fuzz, "ENDING", 0.2):
            status, text = self.call("trap '' INT; echo $$; while :; do sleep 0.05; done", 3)
        self.assertIsNone(status)
        with self.assertRaises(ProcessLookupError):
            os.kill(int(text), 0)

    def test_return_the_status_of_others(self):
        self.assertEqual(self.call("exit 7", 60), (7, ""))


class Runs(unittest.TestCase):
    def test_counts_and_totals(self):
        with tempfile.TemporaryDirectory() as folder:
            home, package = os.path.join(folder, "home"), os.path.join(folder, "bin", "p")
            os.makedirs(package)
            os.mkdir(home)
            program = os.path.join(package, "a_fuzz")
            with open(program, "w") as file:
                file.write(ENGINE.replace("COUNT", repr(os.path.join(folder, "count"))))
            os.chmod(program, 0o755)
            command = [sys.executable, os.path.join(FOLDER, "fuzz.py")]
            ended = subprocess.run(
                command + [folder, home, "libfuzzer", os.path.join(folder, "bin"), "//p:a_fuzz",
                           "--time=60", "--jobs=1"], stdout=subprocess.PIPE, text=True, check=False)
            self.assertEqual(ended.returncode, 1, ended.stdout)
            # The second and the third crash have one reason. The fourth is of the corpus, which loses
            # that input; else the engine could not begin.
            self.assertRegex(ended.stdout, r"(?m)^a +1400 runs .* 7 edges +2 inputs kept +3 "
                                           r"findings, 1 of known ones$")
            self.assertEqual(len(os.listdir(os.path.join(home, "findings/a"))), 6)
            with open(os.path.join(home, "record")) as record:
                run = json.loads(record.readline())
            self.assertEqual((run["target"], run["engine"], run["runs"], run["kept"]),
                             ("a", "libfuzzer", 1400, 2))
            self.assertGreater(run["processor_seconds"], 0)
            with open(os.path.join(home, "record"), "a") as record:
                record.write(json.dumps({**run, "processor_seconds": 7200, "seconds": 650}) + "\n")
                record.write(json.dumps({**run, "engine": "afl"}) + "\n")
            table = subprocess.run(command + ["--totals", home], stdout=subprocess.PIPE, text=True,
                                   check=True).stdout
            self.assertRegex(table, r"\| `a` \| afl \| 0.\d \| 1,400 \|")
            self.assertRegex(table, r"\| `a` \| libfuzzer \| 120.\d \| 2,800 \| \d+ \| 7 \|")
            self.assertIn("2.0 CPU-hours", table)


if __name__ == "__main__":
    unittest.main()
