#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/container and deploy/kubernetes/daemon work with the real programs. (Whether
Kubernetes takes the manifests: //tests/kubernetes/manifests.)
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

try:
    import yaml
except ImportError as error:
    raise SystemExit(
        f"the manifests cannot be tested: Python's {error.name} is not installed here; install "
        "python3-yaml, as ./run test does"
    ) from error

KUBERNETES = pathlib.Path("deploy/kubernetes")
CONTAINER = pathlib.Path("deploy/container")
PROGRAMS = {
    "gpumemctl": os.path.abspath("client/cli/gpumemctl"),
    "gpumemd": os.path.abspath("daemon/gpumemd"),
    "gpumem-keeper": os.path.abspath("daemon/keeper/gpumem-keeper"),
}
DEADLINE = 60


def documents():
    """(file, document) of all manifests."""
    for path in sorted((KUBERNETES / "daemon").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def the(kind):
    """The one document of a kind."""
    (found,) = [document for _, document in documents() if document["kind"] == kind]
    return found


def pods():
    """Yields (description, specification) of the daemon's pod and its example clients."""
    yield "DaemonSet", the("DaemonSet")["spec"]["template"]["spec"]
    for file, document in documents():
        if document["kind"] == "Pod":
            yield f"{file}: {document['metadata']['name']}", document["spec"]


def programs(command):
    """The command with this project's programs by the paths that Bazel has them at."""
    return [PROGRAMS.get(word, word) for word in command]


def image():
    """The Containerfile's instructions, the last of each name: {"USER": "64740:64740"}."""
    text = re.sub(r"^#.*\n", "", (CONTAINER / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return dict(line.split(None, 1) for line in lines if line.strip())


class Image(unittest.TestCase):
    def test_user_and_command_are_those_of_the_manifests(self):
        security = dict(pods())["DaemonSet"]["securityContext"]
        instructions = image()
        self.assertEqual(
            instructions["USER"], f"{security['runAsUser']}:{security['runAsGroup']}"
        )
        command = json.loads(instructions["ENTRYPOINT"]) + json.loads(instructions["CMD"])
        self.assertEqual(command, the("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["command"])

    def test_compose_takes_no_more_rights_than_needed(self):
        compose = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
        daemon = compose["services"].pop("gpumemd")
        self.assertEqual((daemon["pid"], daemon["cgroup"]), ("host", "host"))
        self.assertIs(daemon["read_only"], True)
        self.assertEqual(daemon["cap_drop"], ["ALL"])
        self.assertNotIn("ports", daemon)
        for name, client in compose["services"].items():
            self.assertEqual(client["volumes"], ["sockets:/run/gpumem:ro"], name)
            self.assertNotIn("pid", client, name)


    def test_the_image_is_the_same_everywhere(self):
        images = set()
        for path in KUBERNETES.rglob("*.yaml"):
            images |= set(re.findall(r"gpumem[\w-]*:[\d.]+\d", path.read_text()))
        compose = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
        images |= {service["image"] for service in compose["services"].values()}
        version = subprocess.run(
            [PROGRAMS["gpumemd"], "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[1]
        self.assertEqual(images, {f"gpumem:{version}", f"gpumem-preload:{version}"})


class WithTheRealPrograms(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpumem-test-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.env = {
            **os.environ,
            "GPUMEM_RUNTIME_DIR": str(self.folder / "run"),
            "STATE_DIRECTORY": str(self.folder / "state"),
            "TMPDIR": str(self.folder),
        }

    def test_the_configurations_are_right(self):
        pod_tenants = (KUBERNETES / "components/pod-tenants/config.yaml").read_text()
        for text in (
            the("ConfigMap")["data"]["gpumemd.toml"],
            yaml.safe_load(pod_tenants)["data"]["gpumemd.toml"],
            (CONTAINER / "gpumemd.toml").read_text(),
        ):
            file = self.folder / "gpumemd.toml"
            file.write_text(text)
            checked = subprocess.run(
                [PROGRAMS["gpumemd"], "--check-config", "--config", file],
                capture_output=True,
                text=True,
            )
            self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_command_probes_and_examples_work(self):
        """The DaemonSet's command runs, its probes and the Containerfile's health check answer."""
        container = the("DaemonSet")["spec"]["template"]["spec"]["containers"][0]
        (self.folder / "gpumemd.toml").write_text(the("ConfigMap")["data"]["gpumemd.toml"])
        command = [
            word.replace("/etc/gpumem/gpumemd.toml", str(self.folder / "gpumemd.toml"))
            for word in programs(container["command"])
        ]
        probes = [container[probe]["exec"]["command"] for probe in
                  ("startupProbe", "readinessProbe", "livenessProbe")]
        probes.append(json.loads(image()["HEALTHCHECK"].split("CMD", 1)[1]))
        for probe in probes:
            self.assertEqual(self.run_probe(probe), 3, "there is no daemon yet")
        # No GPU of this machine is touched.
        with open(self.folder / "log", "wb") as log:
            daemon = subprocess.Popen(command + ["--backend", "host"], env=self.env, stderr=log)
        try:
            deadline = time.monotonic() + DEADLINE
            while self.run_probe(probes[0]) != 0:
                self.assertIsNone(daemon.poll(), (self.folder / "log").read_text())
                self.assertLess(time.monotonic(), deadline, (self.folder / "log").read_text())
            for probe in probes[1:]:
                self.assertEqual(self.run_probe(probe), 0, probe)
            for _, spec in pods():
                example = spec["containers"][0]["command"]
                if example[0] != "gpumemctl":
                    continue
                held = subprocess.Popen(
                    programs(example) + ["--json"], env=self.env, stdout=subprocess.PIPE, text=True
                )
                self.assertEqual(json.loads(held.stdout.readline())["event"], "held")
                held.terminate()
                held.communicate(timeout=DEADLINE)
        finally:
            daemon.send_signal(signal.SIGTERM)
            self.assertEqual(daemon.wait(DEADLINE), 0)

    def run_probe(self, command):
        return subprocess.run(
            programs(command), env=self.env, capture_output=True, timeout=DEADLINE
        ).returncode


if __name__ == "__main__":
    unittest.main()
