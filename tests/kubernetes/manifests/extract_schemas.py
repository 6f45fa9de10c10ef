#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes schemas.json: what Kubernetes's OpenAPI documents say of the kinds that our manifests have.

  pip download --no-deps kubernetes-validate==1.37.0 && unzip kubernetes_validate-*.whl -d FOLDER
  extract_schemas.py FOLDER/kubernetes_validate/kubernetes-json-schema >schemas.json

That package (Apache License 2.0) has the OpenAPI documents as JSON schemas. Its "strict" ones forbid
undefined fields. Left out here: descriptions, status, and volumes that no manifest has.
"""
import json
import pathlib
import sys

VERSIONS = ["1.34", "1.35", "1.36", "1.37"]
ROOTS = [
    "io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicy",
    "io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicyBinding",
    "io.k8s.api.admissionregistration.v1beta1.MutatingAdmissionPolicy",
    "io.k8s.api.admissionregistration.v1beta1.MutatingAdmissionPolicyBinding",
    "io.k8s.api.apps.v1.DaemonSet",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.Namespace",
    "io.k8s.api.core.v1.Pod",
    "io.k8s.api.core.v1.ServiceAccount",
    "io.k8s.api.rbac.v1.ClusterRole",
    "io.k8s.api.rbac.v1.ClusterRoleBinding",
    "io.k8s.api.resource.v1.DeviceClass",
    "io.k8s.api.resource.v1.ResourceClaimTemplate",
    "io.k8s.api.resource.v1.ResourceSlice",
]
VOLUMES = {"name", "configMap", "emptyDir", "hostPath", "image"}
LEFT_OUT = {"status", "managedFields", "ephemeralContainers"}


def trimmed(name, schema):
    """The schema without what this test does not need, with references into one document."""
    if name.endswith(".Volume"):
        schema["properties"] = {k: v for k, v in schema["properties"].items() if k in VOLUMES}
    for left_out in LEFT_OUT:
        schema.get("properties", {}).pop(left_out, None)

    def walk(value):
        if isinstance(value, list):
            return [walk(each) for each in value]
        if not isinstance(value, dict):
            return value
        out = {}
        for key, each in value.items():
            if key == "$ref":
                out[key] = "#/definitions/" + each.rsplit("/", 1)[1]
            elif not (key == "description" and isinstance(each, str)):
                out[key] = walk(each)
        return out

    return walk(schema)


def references(value):
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "$ref":
                yield each.rsplit("/", 1)[1]
            else:
                yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def needed(definitions):
    found, ahead = {}, [root for root in ROOTS if root in definitions]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found[name] = trimmed(name, definitions[name])
            ahead += references(found[name])
    return found


def main():
    out = {}
    for version in VERSIONS:
        file = pathlib.Path(sys.argv[1]) / f"v{version}.0-local-strict" / "_definitions.json"
        for name, schema in needed(json.loads(file.read_text())["$defs"]).items():
            forms = out.setdefault(name, [])
            for form in forms:
                if form["schema"] == schema:
                    form["versions"].append(version)
                    break
            else:
                forms.append({"versions": [version], "schema": schema})
    # A line for each definition: a diff shows what a version has changed.
    print('{"$comment": "Of the OpenAPI documents of Kubernetes (Apache License 2.0), by '
          'extract_schemas.py.",\n"definitions": {')
    print(",\n".join(f"{json.dumps(name)}: {json.dumps(out[name])}" for name in sorted(out)))
    print("}}")


main()
