# SPDX-License-Identifier: Apache-2.0
"""Reads deploy/kubernetes as kustomize does, and validates documents by Kubernetes's schemas."""
import json
import os
import pathlib

import jsonpatch
import jsonschema
import yaml

FOLDER = pathlib.Path("deploy/kubernetes")
SCHEMAS = json.loads(pathlib.Path("tests/kubernetes/manifests/schemas.json").read_text())["definitions"]
VERSIONS = ["1.34", "1.35", "1.36", "1.37"]
GROUPS = {"rbac.authorization": "rbac", "": "core"}


def read(path):
    """Returns the documents of a file of deploy/kubernetes."""
    return list(yaml.safe_load_all((FOLDER / path).read_text()))


def of_kind(documents, kind):
    """Returns the one document of a kind."""
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def identity(document):
    metadata = document["metadata"]
    return document["apiVersion"], document["kind"], metadata.get("namespace"), metadata["name"]


def beside(folder, name):
    """Returns the path of what a kustomization in a folder names. Links are not followed."""
    return pathlib.Path(os.path.normpath(folder / name))


def render(folder):
    """Returns the documents of a folder with a kustomization: resources, then components' patches.

    It knows what our kustomizations use, and refuses what it does not know.
    """
    (about,) = read(folder / "kustomization.yaml")
    assert set(about) <= {"apiVersion", "kind", "resources", "components"}, folder
    documents = []
    for each in about["resources"]:
        path = beside(folder, each)
        documents += render(path) if (FOLDER / path).is_dir() else read(path)
    names = [identity(document) for document in documents]
    assert len(names) == len(set(names)), f"{folder}: twice: {names}"
    for each in about.get("components", []):
        documents = component(beside(folder, each), documents)
    return documents


def component(folder, documents):
    (about,) = read(folder / "kustomization.yaml")
    assert set(about) == {"apiVersion", "kind", "patches"} and about["kind"] == "Component", folder
    for patch in about["patches"]:
        if "path" in patch:
            (change,) = read(folder / patch["path"])
            patched = [identity(document) == identity(change) for document in documents]
            documents = [merged(d, change) if hit else d for d, hit in zip(documents, patched)]
        else:
            operations = jsonpatch.JsonPatch(yaml.safe_load(patch["patch"]))
            patched = [document["kind"] == patch["target"]["kind"] for document in documents]
            documents = [operations.apply(d) if hit else d for d, hit in zip(documents, patched)]
        assert any(patched), f"{folder}: a patch of nothing"
    return documents


def merged(document, change):
    """A strategic merge without lists."""
    out = dict(document)
    for key, value in change.items():
        assert not isinstance(value, list), key
        out[key] = merged(out.get(key, {}), value) if isinstance(value, dict) else value
    return out


def definition(document):
    group, _, version = document["apiVersion"].rpartition("/")
    group = group.removesuffix(".k8s.io")
    return f"io.k8s.api.{GROUPS.get(group, group)}.{version}.{document['kind']}"


def schema(version):
    return {
        name: form["schema"]
        for name, forms in SCHEMAS.items()
        for form in forms
        if version in form["versions"]
    }


def versions(document):
    """Returns the versions of Kubernetes that have the document's kind."""
    return [version for version in VERSIONS if definition(document) in schema(version)]


def mistakes(document, version):
    """Returns the schema's complaints about a document."""
    whole = {"definitions": schema(version), "$ref": f"#/definitions/{definition(document)}"}
    return [error.message for error in jsonschema.Draft7Validator(whole).iter_errors(document)]


def pod_security(spec):
    """Returns the level of Pod Security that a pod's specification meets, and what the next lacks.

    Of the rules of https://kubernetes.io/docs/concepts/security/pod-security-standards (1.37) those
    that our manifests touch.
    """
    pod = spec.get("securityContext", {})
    containers = [
        {**pod, **container.get("securityContext", {})}
        for container in spec.get("initContainers", []) + spec["containers"]
    ]
    baseline, restricted = [], []
    for key in ("hostPID", "hostNetwork", "hostIPC"):
        if spec.get(key):
            baseline.append(key)
    for volume in spec.get("volumes", []):
        if "hostPath" in volume:
            baseline.append(f"hostPath {volume['hostPath']['path']}")
    for security in containers:
        if security.get("privileged"):
            baseline.append("privileged")
        added = set(security.get("capabilities", {}).get("add", []))
        # https://kubernetes.io/docs/concepts/security/pod-security-standards, "Capabilities"
        if added - {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
                    "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}:
            baseline.append("capabilities")
        if added - {"NET_BIND_SERVICE"} or security.get("capabilities", {}).get("drop") != ["ALL"]:
            restricted.append("capabilities")
        if security.get("allowPrivilegeEscalation") is not False:
            restricted.append("allowPrivilegeEscalation")
        if security.get("runAsNonRoot") is not True or security.get("runAsUser") == 0:
            restricted.append("runAsNonRoot")
        if security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            restricted.append("seccompProfile")
    if baseline:
        return "privileged", baseline
    return ("baseline", restricted) if restricted else ("restricted", [])
