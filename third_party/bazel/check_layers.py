#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_layers.py CHECKOUT <QUERY: does every source include only what its layer and target may?

QUERY is `bazel query --output=xml //...`. Three rules:
1. A directory depends only on the directories that LAYERS gives it.
2. It includes nothing from outside that FORBIDDEN denies it.
3. A target that includes a header depends directly on the library that has it.
"""
import collections
import os
import re
import sys
import xml.etree.ElementTree as ET

# Directory -> what it may use beside itself: a directory, all below one ("/..."), or one header.
# The longest directory that holds a file counts, and one below daemon/ without an entry is an error.
LAYERS = {
    "proto": (),
    "common": ("proto",),
    "common/cuda": ("common",),
    "common/kubernetes": (),
    "common/mapping": ("common", "common/cuda", "common/trace"),
    "common/trace": ("common",),
    "client": ("client/...", "common/...", "proto"),
    "client/include": (),
    "client/session": ("client/include", "common/...", "proto"),
    "client/mapping": ("client/include", "client/session", "common/...", "proto"),
    "client/pool": ("client/include", "client/mapping", "client/session", "common/...", "proto"),
    "client/events": ("client/include", "client/mapping", "client/session", "common/...", "proto"),
    "client/files": ("client/include", "client/mapping/kind.h", "common/..."),
    "client/c_api": ("client/include", "common/..."),
    "client/python": ("client/include", "common/..."),
    "client/kubernetes": ("client/cli/commands/connection.h", "client/kubernetes/api",
                          "client/kubernetes/facts", "common", "common/kubernetes", "proto"),
    "client/kubernetes/api": ("common", "common/kubernetes"),
    "client/kubernetes/device_plugin": ("client/kubernetes", "client/kubernetes/api", "common",
                                        "proto"),
    "client/kubernetes/dra": ("client/cli/commands/connection.h", "client/kubernetes",
                              "client/kubernetes/api", "common", "common/kubernetes", "proto"),
    "client/kubernetes/facts": ("client/kubernetes", "client/kubernetes/api", "common",
                                "common/kubernetes", "proto"),
    "client/preload": (),
    "client/preload/accountant": ("client/include", "client/preload"),
    "client/preload/injection": ("client/preload",),
    "client/slurm": ("client/cli/commands/connection.h", "client/slurm/spank/option.h", "common",
                     "proto"),
    "client/slurm/spank": ("common/preload_library.h",),
    "client/testing": ("common/...", "proto"),
    "client/web": ("client/web/...", "common"),
    "client/web/feed": ("client/cli/commands/connection.h", "client/cli/commands/read_snapshot.h",
                        "client/cli/text/json.h", "client/cli/views/holdings.h",
                        "client/cli/views/snapshot.h", "common", "proto"),
    "daemon/device": ("common/...",),
    "daemon/core": ("common", "common/trace", "daemon/core/...", "daemon/device/device.h", "proto"),
    "daemon/core/audit": ("common", "daemon/core/ids.h"),
    "daemon/core/broker": ("common", "common/trace", "daemon/core/...", "daemon/device/device.h",
                           "daemon/device/metadata.h"),
    "daemon/core/identity": ("common/kubernetes",),
    "daemon/core/journal": ("common", "daemon/core/ids.h", "daemon/core/mutant.h",
                            "daemon/device/device.h"),
    "daemon/core/quota": ("common", "daemon/device/device.h"),
    "daemon/log": ("common",),
    "daemon/audit": ("common", "daemon/core/audit", "daemon/core/ids.h",
                     "daemon/log/ready_write.h"),
    "daemon/tier": ("common", "daemon/device"),
    "daemon/config": ("common/...", "daemon/core/...", "daemon/device/device.h"),
    "daemon/restart": ("common/...", "daemon/core/...", "daemon/restart/fd_store",
                       "daemon/transport/peer", "proto"),
    "daemon/restart/fd_store": ("common",),
    "daemon/keeper": ("common",),
    "daemon/metrics": ("common/...", "daemon/core/...", "daemon/device/device.h", "proto"),
    "daemon/transport": ("common/...", "daemon/core/...", "daemon/device/device.h", "daemon/log",
                         "daemon/transport/...", "proto"),
    "daemon/transport/meter": ("common/...", "proto"),
    "daemon/transport/peer": ("common/...", "daemon/core/audit", "daemon/core/identity", "proto"),
    "daemon/transport/service": ("common/...", "daemon/core/...", "daemon/device/device.h",
                                 "daemon/transport/...", "proto"),
    "daemon/unbrokered": ("common/...", "daemon/config", "daemon/core/...", "daemon/device",
                          "daemon/transport/peer"),
    "daemon/server": ("common/...", "daemon/...", "proto"),
    "daemon": ("common/...", "daemon/...", "proto"),
    "tests": ("client/...", "common/...", "daemon/...", "proto"),
}
# Unit tests put a part of the daemon together with real neighbours.
DAEMON_TESTS = "tests of the daemon"
LAYERS[DAEMON_TESTS] = ("common/...", "daemon/...", "proto")
CLIENT_TESTS = "tests of the client"
LAYERS[CLIENT_TESTS] = ("client/...", "common/...", "proto")

# The core has no I/O: messages, but no services, sockets or devices.
FORBIDDEN = {
    "daemon/core": re.compile(
        r"grpc|cuda|^(poll|unistd|fcntl|netinet/.*|sys/(epoll|eventfd|mman|poll|socket|un))\.h$"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)
OURS = re.compile(r"(client|common|daemon|gpumem|proto|tests)/")


def layer_of(path):
    directory = os.path.dirname(path)
    while directory and directory not in LAYERS:
        directory = os.path.dirname(directory)
    return directory


def may_use(layer, path):
    return layer_of(path) == layer or any(
        path == allowed or layer_of(path) == allowed or
        allowed.endswith("/...") and path.startswith(allowed[:-len("...")])
        for allowed in LAYERS[layer])


def path_of(label):
    """//client:cli/main.cc or //client/cli:main.cc -> client/cli/main.cc"""
    package, name = label[2:].split(":")
    return os.path.join(package, name)


class Library:
    """A cc_* rule: its labels, by attribute."""

    def __init__(self, rule):
        self.label = rule.get("name")
        self.is_test = rule.get("class") == "cc_test" or any(
            flag.get("name") == "testonly" and flag.get("value") == "true"
            for flag in rule.findall("boolean"))
        self.attributes = {
            attribute.get("name"): [item.get("value") for item in attribute.findall("label")]
            for attribute in rule.findall("list")
        }

    def files(self, *attributes):
        return [path_of(label) for name in attributes for label in self.attributes.get(name, ())
                if label.startswith("//")]


def main():
    checkout = sys.argv[1]
    rules = [rule for rule in ET.parse(sys.stdin).getroot().iter("rule")]
    units = {rule.get("name"): Library(rule) for rule in rules if rule.get("class") == "_units"}
    libraries = [Library(rule) for rule in rules if rule.get("class").startswith("cc_")]
    for library in libraries:  # the sources of units (units.bzl) are the library's own
        for label in list(library.attributes.get("srcs", ())):
            if label in units:
                library.attributes["srcs"] += units[label].attributes["srcs"]

    owners = collections.defaultdict(set)  # header -> libraries
    for library in libraries:
        for header in library.files("hdrs"):
            owners[header].add(library.label)
    for rule in rules:
        if rule.get("class") == "_grpc_cc_sources":  # of grpc_cc_libraries
            package = rule.get("name").split(":")[0]
            for proto in Library(rule).files("srcs"):
                stem = proto[:-len(".proto")]
                owners[stem + ".pb.h"].add(package + ":messages")
                owners[stem + ".grpc.pb.h"].add(package + ":services")

    problems = set()
    for library in libraries:
        direct = set(library.attributes.get("deps", ())) | {library.label}
        own = library.files("srcs", "hdrs")
        for path in own:
            layer = layer_of(path)
            if not os.path.exists(os.path.join(checkout, path)):
                continue  # generated
            if layer == "daemon" and os.path.dirname(path) != "daemon":
                problems.add("%s: no layer for this directory in check_layers.py" % path)
                continue
            if library.is_test and path.startswith("daemon/"):
                layer = DAEMON_TESTS
            if library.is_test and path.startswith("client/"):
                layer = CLIENT_TESTS
            with open(os.path.join(checkout, path)) as source:
                included = INCLUDE.findall(source.read())
            for header in included:
                header = re.sub("^gpumem/", "client/include/gpumem/", header)
                for below, denied in FORBIDDEN.items():
                    if (layer + "/").startswith(below + "/") and denied.search(header):
                        problems.add("%s: %s may not use <%s>" % (path, layer, header))
                if not OURS.match(header):
                    continue
                if not may_use(layer, header):
                    problems.add("%s: %s may not use %s" % (path, layer, header))
                elif header not in own and not owners[header] & direct:
                    problems.add("%s: %s needs a direct dependency on %s for %s" % (
                        path, library.label, " or ".join(sorted(owners[header])) or "a library",
                        header))
    for problem in sorted(problems):
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
