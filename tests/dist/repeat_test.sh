#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# repeat_test.sh DIST: packs the built files of a release again, later and as others may have them on
# disk, and compares the archive and the wheel with those of `./run dist`, byte for byte.
set -euo pipefail
shopt -s inherit_errexit

readonly TEST="dist: failed"
# shellcheck source=tests/support/shell_test.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
ROOT=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/../..")
DIST=$(readlink -f "$1")
readonly ROOT DIST

# shellcheck source=deploy/release/files.sh
source "$ROOT/deploy/release/files.sh"
VERSION=$(version)
SOURCE_DATE_EPOCH=$(source_date_epoch)
export SOURCE_DATE_EPOCH

# The files with other times, modes and in another order.
cp -r "$DIST" "$WORK/dist"
chmod -R g+w "$WORK/dist"

name=gpumem-$VERSION-linux-x86_64
(umask 077 && pack_folder "$WORK/dist" "$name" >"$WORK/$name.tar.gz")
cmp "$DIST/$name.tar.gz" "$WORK/$name.tar.gz" >&2 || fail "the archive, packed again, has other bytes"

wheel=$(basename "$DIST"/libgpumem-*.whl)
python3 - "$DIST/$wheel" "$WORK/site" <<'END'
import os
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    for each in wheel.infolist():
        os.chmod(wheel.extract(each, sys.argv[2]), each.external_attr >> 16)
END
rm -r "$WORK"/site/*.dist-info
mv "$WORK/site/gpumem/lib/gpumem" "$WORK/libraries"
"$ROOT/client/python/make_wheel.sh" "$WORK/site" "$VERSION" "$WORK/again" "$DIST/licenses" \
  "$WORK"/libraries/* >/dev/null
cmp "$DIST/$wheel" "$WORK/again/$wheel" >&2 || fail "the wheel, packed again, has other bytes"
echo "dist: packed again, the archive and the wheel have the same bytes"
