#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile_commands.py CHECKOUT EXECROOT <AQUERY >compile_commands.json, for clangd and editors.

AQUERY is `bazel aquery --output=jsonproto` of the CppCompile actions. Commands run in Bazel's
EXECROOT, where generated headers are, but name the files of the CHECKOUT.
"""
import json
import os
import sys

# Flags that only gcc knows.
GCC_FLAGS = ("-fno-canonical-system-headers", "-Wno-free-nonheap-object")


def main():
    checkout, execroot = sys.argv[1:]
    entries = {}
    for action in json.load(sys.stdin).get("actions", []):
        arguments = [arg for arg in action["arguments"] if arg not in GCC_FLAGS]
        source = arguments[arguments.index("-c") + 1]
        path = os.path.join(checkout, source)
        if not os.path.exists(path):
            continue  # generated
        arguments = [path if arg == source else arg for arg in arguments]
        arguments[1:1] = ["-iquote", checkout]
        entries[path] = {"directory": execroot, "file": path, "arguments": arguments}
    json.dump(list(entries.values()), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
