#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The JSON of each gpumemctl command is what client/cli/schema says, beside a real daemon.

The schemas let readers meet new members. This test does not: a member that a command prints and its
schema does not name fails it.
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest
import unittest.mock

try:
    import jsonschema
except ImportError as error:
    raise SystemExit(
        f"the schemas cannot be tested: Python's {error.name} is not installed here; install "
        "python3-jsonschema, as ./run test does"
    ) from error

SCHEMAS = pathlib.Path("client/cli/schema").absolute()
GPUMEMCTL = os.path.abspath("client/cli/gpumemctl")
PRELOAD = os.path.abspath("client/preload/libgpumem-preload.so")
GPUMEMD = os.path.abspath("daemon/gpumemd")
GPUMEM_WEB = os.path.abspath("client/web/gpumem-web")
SUSPENDABLE = os.path.abspath("tests/cli/suspendable")
DEADLINE = 60


def strict(schema):
    """Returns the schema with additionalProperties false for objects that do not mention it."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        result.setdefault("additionalProperties", False)
    return result


def load(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text())


TYPES = "types.json"
STORE = {f"file:///schema/{TYPES}": strict(load("types"))}


def mistakes(name, document):
    """Returns what the schema of this name says against the document."""
    schema = strict(load(name))
    resolver = jsonschema.RefResolver(f"file:///schema/{name}.json", schema, store=STORE)
    validator = jsonschema.Draft7Validator(schema, resolver=resolver)
    return [f"{list(error.absolute_path)}: {error.message}" for error in validator.iter_errors(document)]


class SchemaTest(unittest.TestCase):
    seen = set()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="gpumem-schema-", dir="/tmp")
        cls.file = os.path.join(cls.folder, "weights")
        pathlib.Path(cls.file).write_bytes(b"w" * 4096)
        cls.config = os.path.join(cls.folder, "gpumemd.toml")
        pathlib.Path(cls.config).write_text(
            '[tier]\ncapacity = "16MiB"\n'
            '[pinned]\ncapacity = "16MiB"\n'
            '[[tenant]]\nname = "lab"\nlimit = "1GiB"\n'
            f'[[rule]]\ntenant = "lab"\nuid = {os.getuid()}\n')
        cls.log = open(os.path.join(cls.folder, "log"), "w", encoding="utf-8")
        cls.daemon = subprocess.Popen(
            [GPUMEMD, "--config", cls.config, "--backend", "host", "--host-devices", "2",
             "--host-device-bytes", "64MiB", "--runtime-dir", cls.folder, "--state-dir",
             cls.folder + "/state"], stdout=cls.log, stderr=cls.log)
        deadline = time.monotonic() + DEADLINE
        while cls.run_ctl("status").returncode != 0:
            assert time.monotonic() < deadline, pathlib.Path(cls.folder, "log").read_text()
            time.sleep(0.02)
        cls.holder = subprocess.Popen(
            [GPUMEMCTL, "--runtime-dir", cls.folder, "hold", "--size", "2MiB", "--kind", "mempool",
             "--json"], stdout=subprocess.PIPE, text=True)
        cls.held = json.loads(cls.holder.stdout.readline())
        cls.suspendable = subprocess.Popen([SUSPENDABLE, cls.folder], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, text=True)

    @classmethod
    def tearDownClass(cls):
        for process in (cls.suspendable, cls.holder, cls.daemon):
            process.terminate()
            process.wait(DEADLINE)
        for pipe in (cls.suspendable.stdin, cls.suspendable.stdout, cls.holder.stdout):
            pipe.close()
        cls.log.close()
        shutil.rmtree(cls.folder, ignore_errors=True)

    @classmethod
    def run_ctl(cls, *arguments):
        return subprocess.run([GPUMEMCTL, "--runtime-dir", cls.folder, *arguments], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=DEADLINE)

    def check(self, name, *arguments, code=0):
        """Checks the only document of a command."""
        result = self.run_ctl(*arguments, "-o", "json")
        self.assertEqual(result.returncode, code, result.stderr)
        text = result.stderr if name == "error" else result.stdout
        self.expect(name, json.loads(text))
        if name != "error":
            self.assertEqual(result.stderr, "")

    def expect(self, name, document):
        self.seen.add(name)
        self.assertEqual(mistakes(name, document), [], name)

    def suspend(self, *what):
        """Suspends a session once the daemon knows that it may, or a publication once the sessions
        that have used it are gone. Returns the answer."""
        deadline = time.monotonic() + DEADLINE
        result = self.run_ctl("suspend", *what, "-o", "json")
        while result.returncode != 0:
            self.assertIn("FAILED_PRECONDITION", result.stderr)
            self.assertLess(time.monotonic(), deadline, result.stderr)
            time.sleep(0.02)
            result = self.run_ctl("suspend", *what, "-o", "json")
        answer = json.loads(result.stdout)
        self.expect("suspend", answer)
        return answer

    def check_web(self, listen):
        """Checks the document beside a gpumem-web, with a port or without one."""
        socket = self.folder + "/web.sock"
        with subprocess.Popen([GPUMEM_WEB, "--runtime-dir", self.folder, "--listen",
                               "unix:" + socket, *listen], stdout=subprocess.DEVNULL,
                              stderr=self.log) as web:
            deadline = time.monotonic() + DEADLINE
            while self.run_ctl("web").returncode != 0:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            self.check("web", "web")
            web.terminate()

    def test_all(self):
        self.expect("hold", self.held)
        self.check("status", "status")
        self.check("devices", "devices")
        self.check("ps", "ps")
        self.check("segments", "segments")
        self.check("top", "top", "--iterations", "1")
        self.check("map", "map")
        self.check("whoami", "whoami")
        self.check("version", "version")
        self.check("pool-list", "pool")
        self.check("pool", "pool", "set", "lab", "--reset-peaks")
        self.check("pool", "pool", "trim", "lab")
        self.check("publish", "publish", "llama", "--file", self.file)
        self.check("publications", "publications")
        self.check("verify", "verify", "llama")
        self.check("fetch", "fetch", "llama", "--out", self.folder + "/copy")
        for words in (["tenant", "lab"], ["segment", str(self.held["segment_id"])],
                      ["session", str(self.held["session_id"])], ["device", "0"],
                      ["lease", str(self.held["lease_id"])], ["publication", "lab/llama"]):
            self.check("describe", "describe", *words)
        session = self.suspendable.stdout.readline().strip()
        for words in (["suspend", session], ["demote", session],
                      ["suspend", "--tenant", "lab"], ["promote", "--tenant", "lab"],
                      ["suspend", "--publication", "lab/llama"],
                      ["resume", "--publication", "lab/llama"], ["unpublish", "lab/llama"],
                      ["drain"], ["undrain"], ["trim"],
                      ["quota", "set", "lab", "--limit", "1MiB"], ["quota", "unset", "lab"],
                      ["pool", "trim", "lab"], ["pool", "set", "lab", "--reset-peaks"], ["reload"]):
            self.check("dry-run", *words, "--dry-run")
        self.suspend(session)
        self.check("resume", "resume", session)
        self.check("demote", "demote", session)
        self.check("ps", "ps")
        self.check("top", "top", "--iterations", "1")
        self.check("segments", "segments")
        self.check("describe", "describe", "session", session)
        self.check("promote", "promote", session)
        # The holder serves nothing, so its session fails: the document says so, and the error.
        for name in ("suspend", "demote"):
            result = self.run_ctl(name, "--tenant", "lab", "-o", "json")
            self.assertEqual(result.returncode, 1)
            answer = json.loads(result.stdout)
            self.expect(name, answer)
            self.assertEqual(sorted(each["error"] is None for each in answer["sessions"]),
                             [False, True], answer)
            self.expect("error", json.loads(result.stderr))
            back = "resume" if name == "suspend" else "promote"
            self.check(back, back, "--tenant", "lab")
        # A program that charges itself: it is in the tenant of the run.
        with unittest.mock.patch.dict(os.environ, GPUMEM_PRELOAD_LIBRARY=PRELOAD):
            result = self.run_ctl("run", "--json", "--", GPUMEMCTL, "--runtime-dir", self.folder,
                                  "hold", "--size", "2MiB", "--kind", "driver", "--for", "1ms",
                                  "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.expect("hold", json.loads(result.stdout.splitlines()[0]))
        used = json.loads(result.stderr)
        self.expect("run", used)
        self.assertEqual(used["peak_bytes"], 2 << 20)
        moved = self.suspend("--publication", "lab/llama")
        self.assertGreater(moved["moved_bytes"], 0)
        self.check("publications", "publications")
        self.check("resume", "resume", "--publication", "lab/llama")
        self.check("unpublish", "unpublish", "lab/llama")
        self.check("quota", "quota")
        self.check("quota", "quota", "set", "lab", "--limit", "40MiB", "--guarantee", "1MiB")
        self.check("quota", "quota", "get", "lab")
        self.check("usage", "usage")
        self.check("usage", "usage", "lab")
        self.check("error", "usage", "--job", "17", code=6)
        self.check("quota-list", "quota", "list")
        self.check("tenant", "tenant", "create", "job", "--owner", "slurm", "--limit", "1MiB")
        self.check("tenant", "tenant", "update", "job", "--limit", "2MiB")
        self.check("quota-list", "tenant", "list")
        self.check("tenant-end", "tenant", "end", "job", "--wait", "1s")
        self.check("error", "hold", "--size", "50MiB", code=5)
        self.check("quota", "quota", "unset", "lab")
        self.check("error", "quota", "get", "none", code=6)
        self.check("error", "statsu", code=2)
        self.check("trim", "trim")
        self.check("reload", "reload")
        self.check("status", "drain")
        self.check("status", "undrain")
        self.check("trace", "trace", "on", "--seconds", "0.2", "--out",
                   os.path.join(self.folder, "trace"))
        warning = self.run_ctl("--json", "hold", "--bytes", "2MiB", "--for", "1ms")
        self.expect("warning", json.loads(warning.stderr))
        for line in warning.stdout.splitlines():
            self.expect("hold", json.loads(line))
        for line in self.run_ctl("events", "--json").stdout.splitlines():
            self.expect("events", json.loads(line))
        doctor = self.run_ctl("doctor", "--json")
        self.assertEqual(doctor.stderr, "")
        self.expect("doctor", json.loads(doctor.stdout))
        for listen in ([], ["--listen", "127.0.0.1:0"]):
            self.check_web(listen)
        # Each schema has a command here.
        self.assertEqual(self.seen | {"types"}, {path.stem for path in SCHEMAS.glob("*.json")})


if __name__ == "__main__":
    unittest.main()
