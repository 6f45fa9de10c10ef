#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh DEBS NAME ARCHIVE TEST: makes the image NAME from the packages in the folder DEBS, without
# a registry: its base is a new Debian from the mirror. Tests the image by running TEST,
# container_test, in its root file system. Writes it to ARCHIVE, for `podman load` or `docker load`.
#
# Needs root, buildah, debootstrap and crun. Leaves no files but the archive. With SOURCE_DATE_EPOCH and
# the same packages in the mirror, the archive has the same bytes again.
set -euo pipefail
shopt -s inherit_errexit

HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
readonly HERE
# The mirror of this machine's packages. apt sets the variables in the format.
# shellcheck disable=SC2016
MIRROR=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
  awk '$2 == "bookworm" && $3 == "main" {print $1; exit}')}
readonly BASE=localhost/gpumem-base MIRROR
readonly DEBS=$1 NAME=$2 ARCHIVE=$3 TEST=$4
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(date +%s)}

# Layers are plain folders (vfs), which leaves no mounts behind.
WORK=$(mktemp -d)
readonly WORK
trap 'rm -rf "$WORK"' EXIT
printf '{"default": [{"type": "insecureAcceptAnything"}]}' >"$WORK/policy.json"
buildah() {
  command buildah --root "$WORK/store" --runroot "$WORK/run" --storage-driver vfs "$@"
}

# --- The base ------------------------------------------------------------------------------------

debootstrap --variant=minbase --include=ca-certificates bookworm "$WORK/base" "$MIRROR" \
  >"$WORK/log" || { cat "$WORK/log" >&2 && exit 1; }
rm -rf "$WORK/base"/var/lib/apt/lists/* "$WORK/base"/var/cache/apt/{*.bin,archives/*.deb} \
  "$WORK/base"/var/cache/ldconfig/aux-cache
find "$WORK/base/var/log" -type f -delete
# debootstrap copies these of this machine. The image gets its packages from the mirror of this machine,
# and names no mirror: an image that adds packages brings a list.
: >"$WORK/base/etc/hostname"
: >"$WORK/base/etc/resolv.conf"
mv "$WORK/base/etc/apt/sources.list" "$WORK/sources.list"
: >"$WORK/base/etc/apt/sources.list"
container=$(buildah from scratch)
cp -a "$WORK/base/." "$(buildah mount "$container")/"
rm -rf "$WORK/base"
buildah commit --quiet --timestamp "$SOURCE_DATE_EPOCH" --signature-policy "$WORK/policy.json" "$container" "$BASE" >/dev/null
buildah rm "$container" >/dev/null

# --- The image -----------------------------------------------------------------------------------

buildah bud --signature-policy "$WORK/policy.json" --isolation chroot --format docker --pull-never \
  --build-arg "BASE=$BASE" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
  --volume "$WORK/sources.list:/etc/apt/sources.list:ro" \
  --timestamp "$SOURCE_DATE_EPOCH" --tag "$NAME" --file "$HERE/Containerfile" "$DEBS" >"$WORK/log" 2>&1 ||
  { cat "$WORK/log" >&2 && exit 1; }

# --- The test ------------------------------------------------------------------------------------

container=$(buildah from --pull-never --signature-policy "$WORK/policy.json" "$NAME")
rootfs=$(buildah mount "$container")
for file in hostname resolv.conf apt/sources.list; do
  [[ ! -s $rootfs/etc/$file ]] || { echo "image: failed: it has this machine's /etc/$file" >&2 && exit 1; }
done
(cd "$HERE/../.." && GPUMEM_IMAGE_ROOTFS=$rootfs "$TEST" --gtest_brief=1) >"$WORK/log" 2>&1 ||
  { cat "$WORK/log" >&2 && exit 1; }
if grep -q SKIPPED "$WORK/log"; then
  echo "image: not tested: this machine cannot run containers" >&2
else
  echo "image: $(grep PASSED "$WORK/log")"
fi

buildah push --quiet --signature-policy "$WORK/policy.json" "$NAME" "docker-archive:$WORK/archive:$NAME"
"$HERE/fix_archive.py" "$WORK/archive" "$ARCHIVE"
