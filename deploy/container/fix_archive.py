#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fix_archive.py FROM TO: copies an archive of `buildah push docker-archive:`, without the names of the
containers in which the image was built, which are other ones each time. The files for Docker before
1.10 (2016) go with them.
"""
import hashlib
import io
import json
import sys
import tarfile


def compact(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def add(archive, name, data, size):
    """Adds a file with the same times and owner each time."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o444
    archive.addfile(entry, data)


def main():
    with tarfile.open(sys.argv[1]) as old, tarfile.open(sys.argv[2], "w", format=tarfile.GNU_FORMAT) as new:
        manifest = json.load(old.extractfile("manifest.json"))
        for image in manifest:
            config = json.load(old.extractfile(image["Config"]))
            config.pop("container", None)
            for key in {"config", "container_config"} & config.keys():
                config[key]["Hostname"] = ""
            text = compact(config)
            image["Config"] = hashlib.sha256(text).hexdigest() + ".json"
            for layer in image["Layers"]:
                member = old.getmember(layer)
                add(new, layer, old.extractfile(member), member.size)
            add(new, image["Config"], io.BytesIO(text), len(text))
        text = compact(manifest)
        add(new, "manifest.json", io.BytesIO(text), len(text))


if __name__ == "__main__":
    main()
