#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/kubernetes are valid for Kubernetes 1.34 to 1.37, and ask for no more than the
documents say."""
import copy
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

try:
    import jsonpatch  # noqa: F401
    import jsonschema  # noqa: F401
    import yaml
except ImportError as error:
    raise SystemExit(
        f"the manifests cannot be tested: Python's {error.name} is not installed here; install "
        "python3-jsonpatch, python3-jsonschema and python3-yaml, as ./run test does"
    ) from error

import manifests
from manifests import FOLDER, of_kind, read, render

DOCUMENTS = {
    "plugin": pathlib.Path("docs/how-to/kubernetes.md"),
    "dra": pathlib.Path("docs/how-to/kubernetes-dra-driver.md"),
    "device-plugin": pathlib.Path("docs/how-to/kubernetes-device-plugin.md"),
}
PROGRAMS = pathlib.Path("docs/how-to/kubernetes-programs.md")
DRIVERS = tuple(DOCUMENTS)
# The uid and group of the image's daemon.
GPUMEM = 64740


def renderings():
    """Yields (folder, documents) of each kustomization that can be applied."""
    for file in sorted(FOLDER.rglob("kustomization.yaml")):
        folder = file.parent.relative_to(FOLDER)
        if folder.parts[0] != "components":
            yield str(folder), render(folder)


def examples():
    """Yields (file, documents) of the files that no kustomization has: pods of users."""
    used = set()
    for file in FOLDER.rglob("kustomization.yaml"):
        about = yaml.safe_load(file.read_text())
        used |= {file.parent / name for name in about.get("resources", [])}
        used |= {file.parent / patch.get("path", "") for patch in about.get("patches", [])}
    for file in sorted(FOLDER.rglob("*.yaml")):
        if file.name != "kustomization.yaml" and file not in used:
            yield str(file.relative_to(FOLDER)), read(file.relative_to(FOLDER))


def pods(documents):
    """Yields (name, specification) of the pods that documents make."""
    for document in documents:
        if document["kind"] == "Pod":
            yield document["metadata"]["name"], document["spec"]
        elif document["kind"] == "DaemonSet":
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def all_pods():
    for file, documents in [*renderings(), *examples()]:
        for name, spec in pods(documents):
            yield f"{file}: {name}", spec


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


class Schemas(unittest.TestCase):
    def test_every_document_is_valid(self):
        count = 0
        for file, documents in [*renderings(), *examples()]:
            for document in documents:
                have = manifests.versions(document)
                self.assertTrue(have, f"{file}: no version has {document['kind']}")
                if document["kind"].startswith("MutatingAdmissionPolicy"):
                    self.assertEqual(have, ["1.36", "1.37"])
                else:
                    self.assertEqual(have, manifests.VERSIONS, file)
                for version in have:
                    count += 1
                    self.assertEqual(manifests.mistakes(document, version), [], f"{file}, {version}")
        self.assertGreater(count, 100)

    def test_the_policy_is_valid_as_v1beta1(self):
        """The command of the documents for 1.34 and 1.35."""
        command = re.search(r"sed '(s#.*#)' \S*policy.yaml", PROGRAMS.read_text())
        _, old, new, _ = command.group(1).split("#")
        text = (FOLDER / "preload/policy.yaml").read_text().replace(old, new)
        for document in yaml.safe_load_all(text):
            self.assertEqual(manifests.versions(document)[:2], ["1.34", "1.35"])
            for version in manifests.versions(document):
                self.assertEqual(manifests.mistakes(document, version), [])

    def test_the_schemas_see_mistakes(self):
        daemons = of_kind(render(pathlib.Path("daemon")), "DaemonSet")
        for change in (
            lambda spec: spec.update(hostPid=True),
            lambda spec: spec.update(hostPID="yes"),
            lambda spec: spec["containers"][0].pop("name"),
            lambda spec: spec["containers"][0]["readinessProbe"].update(exec=["gpumemctl"]),
        ):
            wrong = copy.deepcopy(daemons)
            change(wrong["spec"]["template"]["spec"])
            for version in manifests.VERSIONS:
                self.assertNotEqual(manifests.mistakes(wrong, version), [])
        template = read(pathlib.Path("dra/claims.yaml"))[0]
        template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"memory": "10Gi"}
        self.assertNotEqual(manifests.mistakes(template, "1.34"), [])

    def test_kubectl_makes_the_same(self):
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            self.skipTest("kubectl is not installed here")
        version = subprocess.run([kubectl, "version", "--client"], capture_output=True, text=True).stdout
        if "Kustomize Version" not in version:
            self.skipTest("this kubectl's kustomize is older than components")
        # kustomize follows no link out of its folder, and Bazel's data are links.
        place = tempfile.TemporaryDirectory(prefix="gpumem-test-")
        self.addCleanup(place.cleanup)
        copied = shutil.copytree(FOLDER, pathlib.Path(place.name) / "kubernetes")
        for folder, documents in renderings():
            made = subprocess.run(
                [kubectl, "kustomize", copied / folder], capture_output=True, text=True
            )
            self.assertEqual((made.returncode, made.stderr), (0, ""), folder)
            theirs = {manifests.identity(d): d for d in yaml.safe_load_all(made.stdout)}
            self.assertEqual(theirs, {manifests.identity(d): d for d in documents}, folder)


class Pods(unittest.TestCase):
    def test_labels_names_and_mounts_fit(self):
        for folder, documents in renderings():
            accounts = {d["metadata"]["name"] for d in documents if d["kind"] == "ServiceAccount"}
            for document in documents:
                if document["kind"] == "DaemonSet":
                    template = document["spec"]["template"]
                    labels = document["spec"]["selector"]["matchLabels"]
                    self.assertEqual(labels, template["metadata"]["labels"], folder)
                    self.assertIn(template["spec"]["serviceAccountName"], accounts, folder)
        for name, spec in all_pods():
            volumes = {volume["name"] for volume in spec.get("volumes", [])}
            for container in containers(spec):
                mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
                self.assertLessEqual(mounts, volumes, name)

    def test_nobody_has_more_rights_than_needed(self):
        for name, spec in all_pods():
            for container in containers(spec):
                security = {**spec["securityContext"], **container["securityContext"]}
                self.assertIs(security["allowPrivilegeEscalation"], False, name)
                self.assertIs(security["readOnlyRootFilesystem"], True, name)
                self.assertEqual(security["capabilities"]["drop"], ["ALL"], name)
                self.assertEqual(security["seccompProfile"], {"type": "RuntimeDefault"}, name)
                added = security["capabilities"].get("add", [])
                if container["name"] == "folders":
                    self.assertEqual((added, security["runAsUser"]), (["CHOWN"], 0))
                elif spec.get("hostPID") and security["runAsUser"] == 0:
                    on_node = "daemon-on-node" in name
                    self.assertEqual(added, ["DAC_OVERRIDE"] if on_node else [], name)
                    groups = None if on_node else [GPUMEM]
                    self.assertEqual(security.get("supplementalGroups"), groups, name)
                else:
                    self.assertEqual((added, security["runAsNonRoot"]), ([], True), name)

    def test_pods_meet_the_level_of_pod_security_that_the_documents_say(self):
        for file, documents in examples():
            level = "privileged" if file == "daemon/clients.yaml" else "restricted"
            for name, spec in pods(documents):
                if file != "plugin/claims.yaml":
                    self.assertEqual(manifests.pod_security(spec)[0], level, f"{file}: {name}")
        for folder, documents in renderings():
            for name, spec in pods(documents):
                level, why = manifests.pod_security(spec)
                self.assertEqual(level, "privileged", folder)
                self.assertIn("hostPID", why)
                self.assertNotIn("privileged", why, "no container is privileged")

    def test_folders_are_mounted_and_no_socket(self):
        for name, spec in all_pods():
            for path in [v["hostPath"] for v in spec.get("volumes", []) if "hostPath" in v]:
                self.assertIn(path["type"], ("Directory", "DirectoryOrCreate"), name)
            for container in containers(spec):
                for mount in container.get("volumeMounts", []):
                    self.assertNotIn("subPath", mount, name)
        for _, spec in pods(read(pathlib.Path("daemon/clients.yaml"))):
            self.assertTrue(all(m["readOnly"] for c in spec["containers"] for m in c["volumeMounts"]))

    def test_paths_in_the_pods_of_drivers_are_those_of_the_node(self):
        """They write paths into files and calls that the kubelet and the runtime read on the node."""
        for folder in DRIVERS:
            for _, spec in pods(render(pathlib.Path(folder))):
                paths = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"]}
                (container,) = spec["containers"]
                self.assertEqual(paths, {m["name"]: m["mountPath"] for m in container["volumeMounts"]})

    def test_what_a_driver_may_write(self):
        writable = {}
        for folder in DRIVERS:
            for _, spec in pods(render(pathlib.Path(folder))):
                mounts = spec["containers"][0]["volumeMounts"]
                writable[folder] = {m["mountPath"] for m in mounts if not m.get("readOnly")}
        self.assertEqual(
            writable,
            {
                "plugin": set(),
                "dra": {
                    "/var/lib/kubelet/plugins_registry",
                    "/var/lib/kubelet/plugins/gpumem.dev",
                    "/var/run/cdi",
                },
                "device-plugin": {"/var/lib/kubelet/device-plugins"},
            },
        )

    def test_the_daemon_sees_processes_and_groups_of_the_node(self):
        ((_, spec),) = pods(render(pathlib.Path("daemon")))
        self.assertIs(spec["hostPID"], True)
        self.assertNotIn("shareProcessNamespace", spec)
        (group,) = [
            v["name"] for v in spec["volumes"] if v.get("hostPath", {}).get("path") == "/sys/fs/cgroup"
        ]
        (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == group]
        self.assertEqual(mount, {"name": group, "mountPath": "/host/cgroup", "readOnly": True})

    def test_the_examples_are_of_the_classes_that_the_rules_tell_apart(self):
        guaranteed = {}
        for name, spec in pods(read(pathlib.Path("daemon/clients.yaml"))):
            resources = spec["containers"][0]["resources"]
            guaranteed[name] = resources.get("limits") == resources["requests"]
        self.assertEqual(guaranteed, {"gpumem-serving": True, "gpumem-training": False})


class Permissions(unittest.TestCase):
    def documented(self, folder):
        """Returns the permissions in the table of a document: {resource: verbs}."""
        text = DOCUMENTS[folder].read_text()
        section = text.split("\n## Permissions\n", 1)[1].split("\n## ", 1)[0]
        rows = re.findall(r"^\| ((?:`[a-z]+`(?:, )?)+) of `([\w/]+)`", section, re.MULTILINE)
        return {resource: set(re.findall(r"\w+", verbs)) for verbs, resource in rows}

    def granted(self, folder):
        role = of_kind(render(pathlib.Path(folder)), "ClusterRole")
        return {r: set(rule["verbs"]) for rule in role["rules"] for r in rule["resources"]}

    def test_the_tables_of_the_documents_are_the_roles(self):
        for folder in DRIVERS:
            self.assertEqual(self.documented(folder), self.granted(folder))

    def test_no_role_has_a_star_and_each_is_bound_to_its_account(self):
        for folder in DRIVERS:
            documents = render(pathlib.Path(folder))
            role, binding = of_kind(documents, "ClusterRole"), of_kind(documents, "ClusterRoleBinding")
            self.assertNotIn("*", str(role["rules"]))
            self.assertEqual(binding["roleRef"]["name"], role["metadata"]["name"])
            account = of_kind(documents, "ServiceAccount")["metadata"]
            (subject,) = binding["subjects"]
            self.assertEqual(
                (subject["name"], subject["namespace"]), (account["name"], account["namespace"])
            )


class Claims(unittest.TestCase):
    def test_the_examples_ask_for_memory_of_a_claim(self):
        for folder, device_class in (("plugin", None), ("dra", "gpumem.dev")):
            template, pod = read(pathlib.Path(folder) / "claims.yaml")
            (request,) = template["spec"]["spec"]["devices"]["requests"]
            self.assertEqual(request["exactly"]["capacity"]["requests"], {"memory": "10Gi"})
            if device_class:
                self.assertEqual(request["exactly"]["deviceClassName"], device_class)
                names = [d["metadata"]["name"] for d in render(pathlib.Path(folder))
                         if d["kind"] == "DeviceClass"]
                self.assertEqual(names, [device_class])
            (claim,) = pod["spec"]["resourceClaims"]
            self.assertEqual(claim["resourceClaimTemplateName"], template["metadata"]["name"])
            (container,) = pod["spec"]["containers"]
            self.assertEqual(container["resources"]["claims"], [{"name": claim["name"]}])


class Units(unittest.TestCase):
    def test_the_example_asks_for_the_units_that_the_plug_in_offers(self):
        (pod,) = read(pathlib.Path("device-plugin/pod.yaml"))
        (container,) = pod["spec"]["containers"]
        self.assertEqual(container["resources"]["limits"], {"gpumem.dev/memory-1GiB": 10})
        self.assertIn("10GiB", container["command"])
        self.assertNotIn("volumes", pod["spec"])
        self.assertIn("gpumem.dev/memory-1GiB: 10", DOCUMENTS["device-plugin"].read_text())
        for _, spec in pods(render(pathlib.Path("device-plugin"))):
            self.assertEqual(spec["containers"][0]["command"], ["gpumem-device-plugin"], "the defaults")


if __name__ == "__main__":
    unittest.main()
