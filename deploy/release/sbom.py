#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom.py DIST VERSION EPOCH PACKAGE...: prints what a release contains, as SPDX 2.3 in JSON.

That is the files of the folder DIST, and the Debian packages whose code is inside: the PACKAGEs,
parts of which are linked into the programs, and those of the shared libraries in DIST/lib/gpumem.
The same release gives the same text.
"""
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid

LICENCE = "Apache-2.0"
# Not of the release's archive.
LEFT_OUT = re.compile(r"\.(tar|tar\.gz|whl)$")
LEFT_OUT_FOLDERS = {"deb", "rpm", "release"}


def output_of(*command):
    """Returns the standard output of a command."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def spdx_id(kind, name):
    """Returns an identifier, whose characters SPDX restricts."""
    return "SPDXRef-%s-%s" % (kind, re.sub(r"[^A-Za-z0-9.-]+", "-", name))


def files_below(folder):
    """Yields the paths of all files, relative to the folder, in order."""
    for here, folders, names in os.walk(folder):
        if here == folder:
            folders[:] = [each for each in folders if each not in LEFT_OUT_FOLDERS]
        folders.sort()
        for name in sorted(names):
            path = os.path.join(here, name)
            if not os.path.islink(path) and not (here == folder and LEFT_OUT.search(name)):
                yield os.path.relpath(path, folder)


def kind_of(path):
    """Returns SPDX's type of a file of the release."""
    if path.startswith(("bin/", "lib/")) and not path.endswith(".pc"):
        return "ARCHIVE" if path.endswith(".a") else "BINARY"
    return "SOURCE" if path.endswith((".h", ".py", ".sh")) else "TEXT"


def file_entry(dist, path):
    """Returns the entry of a file of the release."""
    with open(os.path.join(dist, path), "rb") as file:
        data = file.read()
    bundled = path.startswith("lib/gpumem/") and not path.startswith("lib/gpumem/libgpumem-")
    return {
        # The number keeps paths apart that differ in other characters alone.
        "SPDXID": "%s-%s" % (spdx_id("File", path), hashlib.sha1(path.encode()).hexdigest()[:8]),
        "fileName": "./" + path,
        "fileTypes": [kind_of(path)],
        "checksums": [{"algorithm": name.upper(), "checksumValue": hashlib.new(name, data).hexdigest()}
                      for name in ("sha1", "sha256")],
        "licenseConcluded": "NOASSERTION",
        "licenseInfoInFiles": ["NOASSERTION"] if bundled else [LICENCE],
        "copyrightText": "NOASSERTION",
    }


def verification_code(files):
    """Returns the code of SPDX 2.3, clause 7.9: the sum of the sorted sums."""
    sums = sorted(each["checksums"][0]["checksumValue"] for each in files)
    return hashlib.sha1("".join(sums).encode()).hexdigest()


def packages_of_libraries(dist):
    """Returns the Debian packages of the shared libraries that the release has copies of."""
    names = [os.path.basename(path) for path in files_below(os.path.join(dist, "lib/gpumem"))]
    patterns = ["*/" + name for name in names if not name.startswith("libgpumem")]
    if not patterns:
        return set()
    # Lines are "PACKAGE:ARCHITECTURE: PATH".
    return {line.split(":")[0] for line in output_of("dpkg-query", "--search", *patterns).splitlines()}


def debian_package(name):
    """Returns the entry of an installed package."""
    form = "${Version}\t${Architecture}\t${source:Package}\t${source:Version}\t${Homepage}\n"
    version, architecture, source, source_version, homepage = output_of(
        "dpkg-query", "--show", "--showformat", form, name).splitlines()[0].split("\t")
    url = "pkg:deb/debian/%s@%s?arch=%s" % (name.replace("+", "%2B"), version.replace("+", "%2B"), architecture)
    return {
        "SPDXID": spdx_id("Package", name.replace("+", "p")),
        "name": name,
        "versionInfo": version,
        "supplier": "Organization: Debian",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "homepage": homepage or "NOASSERTION",
        "sourceInfo": "built from Debian's source package %s %s" % (source, source_version),
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": url}],
    }


def document(dist, version, epoch, linked):
    """Returns the whole list; `linked` are the packages whose code is in the programs."""
    bundled = packages_of_libraries(dist)
    files = [file_entry(dist, path) for path in files_below(dist)]
    debian = [debian_package(name) for name in sorted(bundled | set(linked))]
    gpumem = {
        "SPDXID": "SPDXRef-Package-gpumem",
        "name": "gpumem",
        "versionInfo": version,
        "supplier": "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": True,
        "packageVerificationCode": {"packageVerificationCodeValue": verification_code(files)},
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": LICENCE,
        "licenseInfoFromFiles": [LICENCE, "NOASSERTION"],
        "copyrightText": "NOASSERTION",
        "primaryPackagePurpose": "APPLICATION",
        "hasFiles": [each["SPDXID"] for each in files],
    }

    def relation(kind, other):
        return {"spdxElementId": gpumem["SPDXID"], "relationshipType": kind, "relatedSpdxElement": other}

    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                  "relatedSpdxElement": gpumem["SPDXID"]}]
    for each in debian:
        if each["name"] in linked:
            relations.append(relation("STATIC_LINK", each["SPDXID"]))
        if each["name"] in bundled:
            relations.append(relation("CONTAINS", each["SPDXID"]))
    made = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "gpumem-" + version,
        "creationInfo": {
            "created": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: gpumem-sbom-" + version],
        },
        "packages": [gpumem] + debian,
        "files": files,
        "relationships": relations,
    }
    # Unique to this content, as SPDX asks.
    made["documentNamespace"] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(made, sort_keys=True)).urn
    return made


def main():
    dist, version, epoch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    json.dump(document(dist, version, epoch, sys.argv[4:]), sys.stdout, indent=2, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
