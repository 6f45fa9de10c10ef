#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py OUT FILE...: writes the page's files as a C++ source, for bundle.h.

The same files make the same bytes: compressed files have no time in them.
"""
import gzip
import hashlib
import os
import sys

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEAD = """// Written by embed.py.
#include "client/web/server/bundle.h"

namespace gpumem::web {
namespace {

%s
const File kFiles[] = {
%s};

}  // namespace

const File* FindFile(absl::string_view path) {
  for (const File& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

}  // namespace gpumem::web
"""


def array(name, data):
    """Returns the definition of an array of these bytes."""
    lines = [", ".join(str(byte) for byte in data[at:at + 32]) for at in range(0, len(data), 32)]
    return "constexpr unsigned char %s[] = {\n%s};\n" % (name, ",\n".join(lines))


def main():
    arrays, files = "", ""
    for number, path in enumerate(sys.argv[2:]):
        with open(path, "rb") as source:
            data = source.read()
        packed = gzip.compress(data, 9, mtime=0)
        arrays += array("kPlain%d" % number, data) + array("kGzip%d" % number, packed)
        name = os.path.basename(path)
        files += '  {"/%s", "%s", "W/\\"%s\\"",\n' % (
            "" if name == "index.html" else name, TYPES[os.path.splitext(name)[1]],
            hashlib.sha256(data).hexdigest()[:32])
        files += "   {reinterpret_cast<const char*>(kPlain%d), sizeof(kPlain%d)},\n" % (
            number, number)
        files += "   {reinterpret_cast<const char*>(kGzip%d), sizeof(kGzip%d)}},\n" % (
            number, number)
    with open(sys.argv[1], "w") as out:
        out.write(HEAD % (arrays, files))


if __name__ == "__main__":
    main()
