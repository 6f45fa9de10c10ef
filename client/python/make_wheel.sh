#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make_wheel.sh SITE VERSION OUT LICENSES [LIBRARY…]: packs the folder of the package
# (//client/python:site) as a wheel into the folder OUT. The wheel is named libgpumem (gpumem in
# Python's index is another project's). It contains the libraries that libgpumem.so needs, where its
# DT_RPATH finds them, and the licenses of its contents (the files of a folder, or "" for ours
# alone). Prints the wheel's name.
set -euo pipefail

site=$1 version=$2 out=$3 licenses=$4
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# The oldest Python and the oldest C library supported: tests/dist/dist_test.sh checks the latter.
tag=cp39-abi3-manylinux_2_34_$(uname -m)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
cp -rL "$site" "$work/wheel"
chmod -R u+w "$work/wheel"
if (($# > 4)); then
  install -m 644 -D -t "$work/wheel/gpumem/lib/gpumem" "${@:5}"
fi

info=$work/wheel/libgpumem-$version.dist-info
mkdir "$info"
cat >"$info/WHEEL" <<END
Wheel-Version: 1.0
Generator: gpumem
Root-Is-Purelib: false
Tag: $tag
END
cat >"$info/METADATA" <<END
Metadata-Version: 2.1
Name: libgpumem
Version: $version
Summary: GPU memory that a node's daemon owns and several processes share
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

END
cat "$here/README.md" >>"$info/METADATA"

cat >"$info/entry_points.txt" <<END
[vllm.general_plugins]
gpumem = gpumem._plugins:vllm

[sglang.srt.plugins]
gpumem = gpumem._plugins:sglang
END

install -m 644 "$here/../../LICENSE" "$info/LICENSE"
if [[ -n $licenses ]]; then
  install -m 644 -D -t "$info/licenses" "$licenses"/*
fi

mkdir -p "$out"
# Debian's: whichever python3 comes first may have no wheel.
/usr/bin/python3 -m wheel pack --dest-dir "$out" "$work/wheel" >/dev/null
echo "libgpumem-$version-$tag.whl"
