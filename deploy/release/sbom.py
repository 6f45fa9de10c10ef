#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom.py FOLDER LOCK VERSION EPOCH PACKAGE... [--dynamic PACKAGE...]: prints what a release or the
Debian packages contain, as SPDX 2.3 in JSON.

It has the files of FOLDER, and the packages of npm in gpumem-web's page, which the lock file LOCK
names. Of Debian it has the PACKAGEs, parts of which are linked into the programs, and the packages
of the shared libraries in FOLDER/lib/gpumem. The dynamic ones are used where they are installed; their
versions are those of the build. The same files give the same text.
"""
import base64
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid

LICENCE = "Apache-2.0"
# Of Debian's source packages, as their files debian/copyright describe the parts that are used.
LICENCES = {
    "abseil": "Apache-2.0", "benchmark": "Apache-2.0", "boost1.74": "BSL-1.0", "c-ares": "MIT",
    "cli11": "BSD-3-Clause", "cpp-httplib": "MIT", "fmtlib": "MIT",
    "gcc-12": "GPL-3.0-or-later WITH GCC-exception-3.1", "glibc": "LGPL-2.1-or-later",
    "googletest": "BSD-3-Clause", "grpc": "Apache-2.0", "nlohmann-json3": "MIT", "openssl": "Apache-2.0",
    "protobuf": "BSD-3-Clause", "re2": "BSD-3-Clause", "spdlog": "MIT", "toml11": "MIT",
    "xxhash": "BSD-2-Clause", "zlib": "Zlib", "zycore-c": "MIT", "zydis": "MIT",
}
# Not of the release's archive.
LEFT_OUT = re.compile(r"\.(tar|tar\.gz|whl|spdx\.json|changes|buildinfo)$")
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
    if path.endswith(".deb"):
        return "ARCHIVE"
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
        "licenseDeclared": LICENCES.get(source, "NOASSERTION"),
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": url}],
    }


def page_packages(lock):
    """Returns the entries of the packages of npm whose code is in the page."""
    with open(lock, encoding="utf-8") as file:
        locked = json.load(file)["packages"]
    entries = []
    for path, package in sorted(locked.items()):
        if not path or package.get("dev"):
            continue
        name = path.rpartition("node_modules/")[2]
        kind, _, digest = package["integrity"].partition("-")
        entries.append({
            "SPDXID": spdx_id("Npm", name),
            "name": name,
            "versionInfo": package["version"],
            "supplier": "NOASSERTION",
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "checksums": [{"algorithm": kind.upper(), "checksumValue": base64.b64decode(digest).hex()}],
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": package["license"],
            "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": "pkg:npm/%s@%s" % (name.replace("@", "%40"), package["version"])}],
        })
    return entries


def document(dist, lock, version, epoch, linked, dynamic):
    """Returns the whole list; `linked` are the packages whose code is in the programs."""
    bundled = packages_of_libraries(dist)
    page = page_packages(lock)
    files = [file_entry(dist, path) for path in files_below(dist)]
    debian = [debian_package(name) for name in sorted(bundled | set(linked) | set(dynamic))]
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
        if each["name"] in dynamic:
            relations.append(relation("DYNAMIC_LINK", each["SPDXID"]))
    relations += [relation("CONTAINS", each["SPDXID"]) for each in page]
    made = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "gpumem-" + version,
        "creationInfo": {
            "created": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: gpumem-sbom-" + version],
        },
        "packages": [gpumem] + debian + page,
        "files": files,
        "relationships": relations,
    }
    # Unique to this content, as SPDX asks.
    made["documentNamespace"] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(made, sort_keys=True)).urn
    return made


def main():
    folder, lock, version, epoch = *sys.argv[1:4], int(sys.argv[4])
    packages = sys.argv[5:]
    at = packages.index("--dynamic") if "--dynamic" in packages else len(packages)
    json.dump(document(folder, lock, version, epoch, packages[:at], packages[at + 1:]), sys.stdout,
              indent=2, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
