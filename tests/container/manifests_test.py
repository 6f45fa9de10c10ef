#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/kubernetes and deploy/container are valid, and work with the real programs.
"""
import copy
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
    import jsonschema
    import yaml
except ImportError as error:
    raise SystemExit(
        f"the manifests cannot be tested: Python's {error.name} is not installed here; install "
        "python3-jsonschema and python3-yaml, as ./run test does"
    ) from error

SCHEMAS = pathlib.Path("tests/container/kubernetes_schemas.json")
KUBERNETES = pathlib.Path("deploy/kubernetes")
CONTAINER = pathlib.Path("deploy/container")
PROGRAMS = {
    "gpumemctl": os.path.abspath("client/cli/gpumemctl"),
    "gpumemd": os.path.abspath("daemon/gpumemd"),
    "gpumem-keeper": os.path.abspath("daemon/keeper/gpumem-keeper"),
}
DEFINITIONS = {
    ("apps/v1", "DaemonSet"): "io.k8s.api.apps.v1.DaemonSet",
    ("v1", "ConfigMap"): "io.k8s.api.core.v1.ConfigMap",
    ("v1", "Namespace"): "io.k8s.api.core.v1.Namespace",
    ("v1", "Pod"): "io.k8s.api.core.v1.Pod",
    ("v1", "ServiceAccount"): "io.k8s.api.core.v1.ServiceAccount",
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): "io.k8s.api.rbac.v1.ClusterRole",
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): "io.k8s.api.rbac.v1.ClusterRoleBinding",
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


def mistakes(document):
    """Returns the schema's complaints about a document."""
    name = DEFINITIONS[document["apiVersion"], document["kind"]]
    schema = {**json.loads(SCHEMAS.read_text()), "$ref": f"#/definitions/{name}"}
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(document)]


def pods():
    """Yields (description, specification) of every pod."""
    for file, document in documents():
        if document["kind"] == "Pod":
            yield f"{file}: {document['metadata']['name']}", document["spec"]
    yield "DaemonSet", the("DaemonSet")["spec"]["template"]["spec"]


def containers():
    for name, spec in pods():
        for container in spec.get("initContainers", []) + spec["containers"]:
            yield f"{name}: {container['name']}", spec, container


def programs(command):
    """The command with this project's programs by the paths that Bazel has them at."""
    return [PROGRAMS.get(word, word) for word in command]


def image():
    """The Containerfile's instructions, the last of each name: {"USER": "64740:64740"}."""
    text = re.sub(r"^#.*\n", "", (CONTAINER / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return dict(line.split(None, 1) for line in lines if line.strip())


class Kubernetes(unittest.TestCase):
    def test_every_manifest_is_valid(self):
        count = 0
        for file, document in documents():
            count += 1
            self.assertEqual(mistakes(document), [], f"{file}: {document['kind']}")
        self.assertEqual(count, 6)

    def test_the_schema_sees_mistakes(self):
        daemons = the("DaemonSet")
        for change in (
            lambda spec: spec.update(hostPid=True),
            lambda spec: spec.update(hostPID="yes"),
            lambda spec: spec["containers"][0].pop("name"),
            lambda spec: spec["containers"][0]["readinessProbe"].update(exec=["gpumemctl"]),
        ):
            wrong = copy.deepcopy(daemons)
            change(wrong["spec"]["template"]["spec"])
            self.assertNotEqual(mistakes(wrong), [])

    def test_labels_and_names_fit(self):
        daemons = the("DaemonSet")
        self.assertEqual(
            daemons["spec"]["selector"]["matchLabels"],
            daemons["spec"]["template"]["metadata"]["labels"],
        )
        self.assertEqual(
            daemons["spec"]["template"]["spec"]["serviceAccountName"],
            the("ServiceAccount")["metadata"]["name"],
        )
        for name, spec, container in containers():
            volumes = {volume["name"] for volume in spec["volumes"]}
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            self.assertLessEqual(mounts, volumes, name)

    def test_nobody_has_more_rights_than_needed(self):
        for name, spec, container in containers():
            security = {**spec["securityContext"], **container["securityContext"]}
            self.assertIs(security["allowPrivilegeEscalation"], False, name)
            self.assertIs(security["readOnlyRootFilesystem"], True, name)
            self.assertEqual(security["capabilities"]["drop"], ["ALL"], name)
            self.assertEqual(security["seccompProfile"], {"type": "RuntimeDefault"}, name)
            first = name == "DaemonSet: folders"
            self.assertEqual(security["capabilities"].get("add", []), ["CHOWN"] if first else [])
            self.assertEqual(security["runAsUser"] == 0, first, name)
            self.assertIs(security["runAsNonRoot"], not first, name)

    def test_the_daemon_sees_processes_and_groups_of_the_node(self):
        spec = dict(pods())["DaemonSet"]
        self.assertIs(spec["hostPID"], True)
        self.assertFalse(spec["hostNetwork"] or spec["hostIPC"])
        groups = [v for v in spec["volumes"] if v.get("hostPath", {}).get("path") == "/sys/fs/cgroup"]
        self.assertEqual(len(groups), 1)
        mounts = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == groups[0]["name"]]
        self.assertEqual(
            mounts, [{"name": groups[0]["name"], "mountPath": "/host/cgroup", "readOnly": True}]
        )
        self.assertNotIn("shareProcessNamespace", spec)

    def test_folders_are_mounted_and_no_socket(self):
        for name, spec in pods():
            paths = [v["hostPath"] for v in spec["volumes"] if "hostPath" in v]
            self.assertIn("/run/gpumem", [path["path"] for path in paths], name)
            for path in paths:
                self.assertIn(path["type"], ("Directory", "DirectoryOrCreate"), name)
        for name, spec, container in containers():
            for mount in container["volumeMounts"]:
                self.assertNotIn("subPath", mount, name)
                if name.startswith("clients.yaml"):
                    self.assertIs(mount["readOnly"], True, name)

    def test_the_examples_are_of_the_classes_that_the_rules_tell_apart(self):
        guaranteed = {}
        for name, spec in pods():
            resources = spec["containers"][0]["resources"]
            guaranteed[name.split(": ")[-1]] = resources.get("limits") == resources["requests"]
        self.assertEqual(
            guaranteed, {"gpumem-serving": True, "gpumem-training": False, "DaemonSet": False}
        )

    def test_the_image_is_the_same_everywhere(self):
        images = {container["image"] for _, _, container in containers()}
        compose = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
        images |= {service["image"] for service in compose["services"].values()}
        version = subprocess.run(
            [PROGRAMS["gpumemd"], "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[1]
        self.assertEqual(images, {f"gpumem:{version}"})


class KubeletPlugin(unittest.TestCase):
    """deploy/kubernetes/plugin, beside the daemon's manifests."""

    def setUp(self):
        text = (KUBERNETES / "plugin/kubelet-plugin.yaml").read_text()
        self.by_kind = {document["kind"]: document for document in yaml.safe_load_all(text)}
        self.spec = self.by_kind["DaemonSet"]["spec"]["template"]["spec"]

    def test_every_manifest_is_valid(self):
        self.assertEqual(
            set(self.by_kind), {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}
        )
        for kind, document in self.by_kind.items():
            self.assertEqual(mistakes(document), [], kind)
        wrong = copy.deepcopy(self.by_kind["ClusterRole"])
        wrong["rules"][0].pop("verbs")
        self.assertNotEqual(mistakes(wrong), [])

    def test_the_account_may_list_claims_and_slices_alone(self):
        (claims, slices) = self.by_kind["ClusterRole"]["rules"]
        for rule, resource in ((claims, "resourceclaims"), (slices, "resourceslices")):
            self.assertEqual(
                rule,
                {"apiGroups": ["resource.k8s.io"], "resources": [resource], "verbs": ["list"]},
            )
        binding = self.by_kind["ClusterRoleBinding"]
        self.assertEqual(binding["roleRef"]["name"], self.by_kind["ClusterRole"]["metadata"]["name"])
        account = self.by_kind["ServiceAccount"]["metadata"]
        (subject,) = binding["subjects"]
        self.assertEqual((subject["name"], subject["namespace"]), (account["name"], account["namespace"]))
        self.assertEqual(self.spec["serviceAccountName"], account["name"])

    def test_it_has_no_more_rights_than_needed(self):
        (container,) = self.spec["containers"]
        security = container["securityContext"]
        self.assertIs(security["allowPrivilegeEscalation"], False)
        self.assertIs(security["readOnlyRootFilesystem"], True)
        self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
        # The group of gpumemd's socket for operators, whose pod has it as user and group.
        daemon = dict(pods())["DaemonSet"]["securityContext"]
        self.assertEqual(self.spec["securityContext"]["supplementalGroups"], [daemon["runAsGroup"]])
        self.assertIs(self.spec["hostPID"], True)
        self.assertFalse(self.spec["hostNetwork"] or self.spec["hostIPC"])
        self.assertTrue(all(mount["readOnly"] for mount in container["volumeMounts"]))
        self.assertEqual(
            {volume["hostPath"]["path"] for volume in self.spec["volumes"]},
            {"/run/gpumem", "/var/lib/kubelet/pod-resources"},
        )
        self.assertEqual({v["hostPath"]["type"] for v in self.spec["volumes"]}, {"Directory"})

    def test_the_example_asks_for_memory_of_a_claim(self):
        text = (KUBERNETES / "plugin/claims.yaml").read_text()
        template, pod = yaml.safe_load_all(text)
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        self.assertEqual(request["exactly"]["capacity"]["requests"], {"memory": "10Gi"})
        (claim,) = pod["spec"]["resourceClaims"]
        self.assertEqual(claim["resourceClaimTemplateName"], template["metadata"]["name"])
        (container,) = pod["spec"]["containers"]
        self.assertEqual(container["resources"]["claims"], [{"name": claim["name"]}])
        self.assertIn(container["image"], {c["image"] for _, _, c in containers()})
        self.assertEqual(container["image"], self.spec["containers"][0]["image"])


class DraDriver(unittest.TestCase):
    """deploy/kubernetes/dra, beside the daemon's manifests."""

    def setUp(self):
        text = (KUBERNETES / "dra/driver.yaml").read_text()
        self.by_kind = {document["kind"]: document for document in yaml.safe_load_all(text)}
        self.spec = self.by_kind["DaemonSet"]["spec"]["template"]["spec"]

    def test_every_manifest_is_valid(self):
        self.by_kind.pop("DeviceClass")  # the schemas have none
        for kind, document in self.by_kind.items():
            self.assertEqual(mistakes(document), [], kind)

    def test_it_has_no_more_rights_than_needed(self):
        verbs = {
            (group, resource): rule["verbs"]
            for rule in self.by_kind["ClusterRole"]["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        self.assertEqual(
            verbs,
            {
                ("resource.k8s.io", "resourceclaims"): ["list"],
                ("resource.k8s.io", "resourceslices"): ["get", "list", "create", "update"],
                ("", "nodes"): ["get"],
            },
        )
        account = self.by_kind["ServiceAccount"]["metadata"]
        self.assertEqual(self.spec["serviceAccountName"], account["name"])
        (container,) = self.spec["containers"]
        self.assertEqual(
            container["securityContext"],
            {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
             "capabilities": {"drop": ["ALL"]}},
        )
        daemon = dict(pods())["DaemonSet"]["securityContext"]
        self.assertEqual(self.spec["securityContext"]["supplementalGroups"], [daemon["runAsGroup"]])

    def test_its_folders_have_the_paths_of_the_node(self):
        (container,) = self.spec["containers"]
        paths = {v["name"]: v["hostPath"]["path"] for v in self.spec["volumes"]}
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        self.assertEqual(paths, mounts)
        writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        self.assertEqual(
            writable,
            {"/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins/gpumem.dev", "/var/run/cdi"},
        )

    def test_the_example_needs_no_folder_of_the_node(self):
        template, pod = yaml.safe_load_all((KUBERNETES / "dra/claims.yaml").read_text())
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        self.assertEqual(
            request["exactly"]["deviceClassName"], self.by_kind["DeviceClass"]["metadata"]["name"]
        )
        (claim,) = pod["spec"]["resourceClaims"]
        self.assertEqual(claim["resourceClaimTemplateName"], template["metadata"]["name"])
        (container,) = pod["spec"]["containers"]
        self.assertEqual(container["resources"]["claims"], [{"name": claim["name"]}])
        self.assertNotIn("volumes", pod["spec"])
        self.assertEqual(container["image"], self.spec["containers"][0]["image"])


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
        for text in (
            the("ConfigMap")["data"]["gpumemd.toml"],
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
