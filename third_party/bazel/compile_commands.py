#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile_commands.py CHECKOUT EXECROOT <AQUERY >compile_commands.json, for clangd and editors.

AQUERY is `bazel aquery --output=jsonproto` of the CppCompile actions. Commands run in Bazel's
EXECROOT, where generated headers are, but name the files of the CHECKOUT. A unit of several sources
(units.bzl), which has to be built, gives a command for each.
"""
import json
import os
import re
import sys

# Flags that only gcc knows.
GCC_FLAGS = ("-fno-canonical-system-headers", "-Wno-free-nonheap-object")


LINE = re.compile(r'^#line 1 "(.*)"$', re.M)


def sources_of(checkout, execroot, compiled):
    if os.path.exists(os.path.join(checkout, compiled)):
        return [compiled]
    path = os.path.join(execroot, compiled)
    if not os.path.exists(path):
        return []
    with open(path) as unit:
        return LINE.findall(unit.read())


def main():
    checkout, execroot = sys.argv[1:]
    entries = {}
    for action in json.load(sys.stdin).get("actions", []):
        arguments = [arg for arg in action["arguments"] if arg not in GCC_FLAGS]
        compiled = arguments[arguments.index("-c") + 1]
        for source in sources_of(checkout, execroot, compiled):
            path = os.path.join(checkout, source)
            entries[path] = {
                "directory": execroot,
                "file": path,
                "arguments": [arguments[0], "-iquote", checkout] +
                             [path if arg == compiled else arg for arg in arguments[1:]],
            }
    json.dump(list(entries.values()), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
