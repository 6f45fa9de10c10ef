#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks gpumem's own driver on a real cluster, through kubectl.

  kubectl apply -k deploy/kubernetes/overlays/dra   # or an overlay of your own
  tests/kubernetes/cluster_check.py --image gpumem:0.1.0 --size 2GiB

It makes a namespace with Pod Security "restricted", puts pods with claims into it, and removes it
again. The node needs twice --size of free GPU memory. With --crash it also kills gpumemd, the
driver and gpumemd's pod, whose clients then lose their memory: for test clusters.
"""
import argparse
import json
import subprocess
import sys
import time

NAMESPACE = "gpumem-check"
DEADLINE = 180
failures = 0


def kubectl(*command, text=None, check=True):
    done = subprocess.run(
        ["kubectl", *command], input=text, capture_output=True, text=True, timeout=DEADLINE
    )
    if check and done.returncode != 0:
        sys.exit(f"kubectl {' '.join(command)}: {done.stderr}")
    return done


def check(what, succeeded):
    global failures
    failures += not succeeded
    print(f"{'ok' if succeeded else 'FAILED'}: {what}", flush=True)


def eventually(what, condition):
    """Checks a condition until it holds, DEADLINE seconds at most."""
    start = time.monotonic()
    while not (held := condition()) and time.monotonic() - start < DEADLINE:
        time.sleep(1)
    check(f"{what} ({time.monotonic() - start:.0f} s)", held)


def parse(size):
    return int(size.removesuffix("GiB")) << 30 if size.endswith("GiB") else int(size.removesuffix("MiB")) << 20


def template(size):
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "share"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
            "deviceClassName": "gpumem.dev", "capacity": {"requests": {"memory": str(size)}}}}]}}},
    }


def pod(name, image, command):
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": False, "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "share"}],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001,
                                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "worker", "image": image, "command": command,
                "securityContext": {"allowPrivilegeEscalation": False,
                                    "capabilities": {"drop": ["ALL"]}},
                "resources": {"claims": [{"name": "gpu"}]},
            }],
        },
    }


def apply(document):
    kubectl("apply", "-n", NAMESPACE, "-f", "-", text=json.dumps(document))


def get(name):
    return json.loads(kubectl("get", "pod", "-n", NAMESPACE, name, "-o", "json").stdout)


def phase(name):
    return get(name)["status"].get("phase")


def log(name):
    return kubectl("logs", "-n", NAMESPACE, name, "-c", "worker", check=False).stdout


def tenants(node):
    """Returns {name: row} of gpumemd on a node."""
    pods = json.loads(kubectl(
        "get", "pods", "-n", "gpumem", "-l", "app.kubernetes.io/name=gpumemd", "-o", "json").stdout)
    (name,) = [p["metadata"]["name"] for p in pods["items"] if p["spec"]["nodeName"] == node]
    listed = kubectl("exec", "-n", "gpumem", name, "-c", "gpumemd", "--",
                     "gpumemctl", "quota", "list", "--json", check=False)
    if listed.returncode != 0:
        return {}
    usages = [row["usage"] for row in json.loads(listed.stdout)["tenants"]]
    return {usage["tenant"]: usage for usage in usages}


def bounds(node, pod_uid):
    """Returns (limit, guarantee) of a pod's tenant on each GPU with a guarantee."""
    usage = tenants(node).get(f"pod-{pod_uid}", {"devices": []})
    return [(d["limit_bytes"], d["guarantee_bytes"]) for d in usage["devices"] if d["guarantee_bytes"]]


def check_limits(image, size):
    """Returns the node and the uid of the pod "fits", which goes on."""
    apply(pod("fits", image, ["gpumemctl", "hold", "--size", str(size)]))
    apply(pod("over", image, ["gpumemctl", "hold", "--size", str(size + (2 << 20))]))
    eventually("a pod with a claim runs", lambda: phase("fits") == "Running")
    eventually("it gets all of its share", lambda: "Holding" in log("fits"))
    eventually("a pod that asks for 2 MiB more fails", lambda: phase("over") == "Failed")
    code = get("over")["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    check("by its quota: gpumemctl's exit code is 5", code == 5)
    fits = get("fits")
    node, uid = fits["spec"]["nodeName"], fits["metadata"]["uid"]
    check("limit and guarantee are the claim's", bounds(node, uid) == [(size, size)])
    # The pod has ended, and its claim with it.
    eventually("the failed pod's tenant has ended",
               lambda: bounds(node, get("over")["metadata"]["uid"]) == [])
    for what, command in {
        "a client cannot use the operators' socket": ["gpumemctl", "drain"],
        "a client cannot write to the folder of the sockets": ["touch", "/run/gpumem/x"],
    }.items():
        done = kubectl("exec", "-n", NAMESPACE, "fits", "--", *command, check=False)
        check(what, done.returncode != 0)
    return node, uid


def check_crashes(node, uid, size):
    for what, label, victim in (("gpumemd", "gpumemd", "gpumemd"),
                                ("the driver", "gpumem-dra-driver", "gpumem-dra-driver")):
        name = kubectl("get", "pods", "-n", "gpumem", "-l", f"app.kubernetes.io/name={label}",
                       "--field-selector", f"spec.nodeName={node}", "-o", "name").stdout.strip()
        kill = ('for p in /proc/[0-9]*; do [ "$(cat $p/comm)" = "$0" ] && '
                'kill -9 "${p#/proc/}" && echo killed; done')
        killed = kubectl("exec", "-n", "gpumem", name, "--", "sh", "-c", kill, victim[:15], check=False)
        check(f"{what} is found", "killed" in killed.stdout)
        eventually("it is killed, and the tenant is there", lambda: bounds(node, uid) == [(size, size)])
    check("the client has its memory", phase("fits") == "Running")
    usage = tenants(node)[f"pod-{uid}"]
    check("and is charged for it", usage["charged_bytes"] == size)
    kubectl("delete", "pod", "-n", "gpumem", "-l", "app.kubernetes.io/name=gpumemd",
            "--field-selector", f"spec.nodeName={node}", "--grace-period=5")
    eventually("gpumemd's pod is replaced, and the tenant is made again",
               lambda: bounds(node, uid) == [(size, size)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--image", default="gpumem:0.1.0", help="with gpumemctl")
    parser.add_argument("--size", default="2GiB", type=parse, help="of each claim, in MiB or GiB")
    parser.add_argument("--crash", action="store_true", help="kill gpumemd and the driver, too")
    arguments = parser.parse_args()
    kubectl("create", "namespace", NAMESPACE)
    try:
        kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        apply(template(arguments.size))
        node, uid = check_limits(arguments.image, arguments.size)
        if arguments.crash:
            check_crashes(node, uid, arguments.size)
        kubectl("delete", "pod", "-n", NAMESPACE, "fits")
        eventually("a deleted pod's tenant ends", lambda: f"pod-{uid}" not in tenants(node))
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    print(f"cluster check: {failures} failed")
    sys.exit(1 if failures else 0)


main()
