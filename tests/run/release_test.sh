#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# release_test.sh RUN: tests `./run release` in a small checkout, whose builds only write files: what it
# refuses, what it collects, and that it makes the same bytes for the same commit.
set -euo pipefail
shopt -s inherit_errexit

readonly TEST=release_test
# shellcheck source=tests/support/shell_test.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
RUN=$(readlink -f "$1")
readonly RUN
CHECKOUT=$WORK/checkout
export HOME=$WORK GIT_CONFIG_NOSYSTEM=1 GPUMEM_HOST_ONLY=1

in_checkout() { git -C "$CHECKOUT" -c user.name=test -c user.email=test@test.invalid "$@" >/dev/null; }

make_checkout() {
  mkdir -p "$CHECKOUT"/{common,deploy/debian}
  copy_run "$RUN" "$CHECKOUT"
  echo '#define GPUMEM_VERSION "1.2.3"' >"$CHECKOUT/common/version.h"
  printf '# Changelog\n\n## [1.2.3] - 2026-11-23\n' >"$CHECKOUT/CHANGELOG.md"
  printf 'gpumem (1.2.3-1) unstable; urgency=medium\n\n  * It.\n\n -- A <a@b.invalid>  Sat, 21 Nov 2026 12:00:00 +0000\n' \
    >"$CHECKOUT/deploy/debian/changelog"
  mkdir -p "$CHECKOUT/client/web/page"
  echo '{"packages": {"": {}, "node_modules/part": {"version": "1.0.0", "license": "MIT",
    "integrity": "sha512-AAAA"}, "node_modules/tool": {"dev": true}}}' >"$CHECKOUT/client/web/page/package-lock.json"
  echo dist >"$CHECKOUT/.gitignore"
  cat >>"$CHECKOUT/deploy/release/release.sh" <<'END_OF_BUILDS'
run_dist() {
  rm -rf "$DIST"
  mkdir -p "$DIST"/{bin,lib/gpumem}
  echo program >"$DIST/bin/gpumemd"
  pack_folder "$DIST" gpumem >"$DIST/gpumem-$(version)-linux-x86_64.tar.gz"
  echo "wheel $(cat "$ROOT/../noise" 2>/dev/null)" >"$DIST/libgpumem-$(version)-any.whl"
}
run_deb() { mkdir "$DIST/deb" && echo deb | tee "$DIST/deb/gpumemd.deb" >"$DIST/deb/gpumem-1.2.3-deb.spdx.json"; }
run_rpm() { mkdir "$DIST/rpm" && echo rpm >"$DIST/rpm/gpumem.rpm"; }
run_image() { echo image >"$DIST/gpumem-$(version)-image.tar"; }
dist_libraries() { echo libc6; }
setup() { :; }
END_OF_BUILDS
  in_checkout init --quiet
  in_checkout add .
  in_checkout commit --quiet -m "A tree"
}

# Git makes the tag, and wants a name for it.
declare -a tagger=(GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@test.invalid)

release() {
  status=0
  env "${tagger[@]}" "$CHECKOUT/run" release "$@" >"$WORK/output" 2>&1 </dev/null || status=$?
}

expect_refusal() {
  release "${@:2}"
  ((status == 1)) || fail "exit status $status, and not refused: $1"
  grep -qF -- "$1" "$WORK/output" || fail "it does not say: $1"
  [[ ! -e $CHECKOUT/dist ]] || fail "it has begun: $1"
}

make_checkout
expect_refusal "release takes the version"
expect_refusal "is no version" 1.2
expect_refusal "common/version.h says 1.2.3" 1.2.4
touch "$CHECKOUT/new"
expect_refusal "not committed" 1.2.3
rm "$CHECKOUT/new"

sed -i 's/1.2.3/1.2.2/' "$CHECKOUT/CHANGELOG.md"
in_checkout commit --quiet -am "No changes"
expect_refusal "CHANGELOG.md has no section" 1.2.3
in_checkout reset --quiet --hard HEAD~
sed -i 's/1.2.3/1.2.2/' "$CHECKOUT/deploy/debian/changelog"
in_checkout commit --quiet -am "No changes of the packages"
expect_refusal "deploy/debian/changelog" 1.2.3
in_checkout tag v1.2.3
in_checkout reset --quiet --hard HEAD~
expect_refusal "of another commit" 1.2.3
in_checkout tag --delete v1.2.3
# A user's setting must not hide a file from it.
in_checkout config status.showUntrackedFiles no
touch "$CHECKOUT/new"
expect_refusal "not committed" 1.2.3
rm "$CHECKOUT/new"

# What would fail at the tag, after all builds.
(
  tagger=(GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=user.useConfigOnly GIT_CONFIG_VALUE_0=true)
  expect_refusal "who makes the tag" 1.2.3
)
in_checkout config user.signingkey none
in_checkout config gpg.program /bin/false
expect_refusal "cannot sign" 1.2.3
in_checkout config --unset user.signingkey

if ((EUID != 0)); then
  echo "release_test: ok, but for the release itself: it takes root"
  exit
fi
release 1.2.3
((status == 0)) || fail "exit status $status"
grep -q "has no signature" "$WORK/output" || fail "it does not say that the tag has no signature"
[[ $(git -C "$CHECKOUT" cat-file -t v1.2.3) == tag ]] || fail "there is no tag"
diff <(git -C "$CHECKOUT" tag --list --format='%(contents:body)' v1.2.3 | sed '/^$/d') \
  "$CHECKOUT/dist/release/SHA256SUMS" >"$WORK/output" || fail "the tag has other checksums"
files=$(cd "$CHECKOUT/dist/release" && echo *)
[[ $files == "SHA256SUMS gpumem-1.2.3-deb.spdx.json gpumem-1.2.3-image.tar gpumem-1.2.3-linux-x86_64.tar.gz gpumem-1.2.3-source.tar.gz\
 gpumem-1.2.3.spdx.json gpumem.rpm gpumemd.deb libgpumem-1.2.3-any.whl" ]] || fail "it collects $files"
(cd "$CHECKOUT/dist/release" && sha256sum --quiet --check SHA256SUMS) || fail "the checksums are wrong"
python3 - "$CHECKOUT/dist/release/gpumem-1.2.3.spdx.json" <<'END_OF_CHECK' || fail "the list of contents is wrong"
import json
import sys
made = json.load(open(sys.argv[1], encoding="utf-8"))
assert made["spdxVersion"] == "SPDX-2.3"
assert [each["fileName"] for each in made["files"]] == ["./bin/gpumemd"], made["files"]
assert [each["name"] for each in made["packages"]] == ["gpumem", "libc6", "part"], made["packages"]
assert {(each["relationshipType"], each["relatedSpdxElement"]) for each in made["relationships"]} == {
    ("DESCRIBES", "SPDXRef-Package-gpumem"), ("STATIC_LINK", "SPDXRef-Package-libc6"),
    ("CONTAINS", "SPDXRef-Npm-part")}, made["relationships"]
END_OF_CHECK

expect_same() {
  ((status == 0)) || fail "$1: exit status $status"
  grep -q "the same bytes" "$WORK/output" || fail "$1: the bytes are not compared, or differ"
}

release 1.2.3
expect_same "the second time"
rm -r "$CHECKOUT/dist"
release 1.2.3
expect_same "after a run that failed halfway"
umask 077
TAR_OPTIONS=--verbose LC_ALL=$(locale -a | grep -m 1 -i 'en_US' || echo C) SOURCE_DATE_EPOCH=1 TZ=Asia/Tokyo release 1.2.3
expect_same "with other settings"
umask 022
in_checkout config tar.umask 0077
in_checkout config core.abbrev 12
git clone --quiet "$CHECKOUT" "$WORK/a clone"
(
  CHECKOUT="$WORK/a clone"
  chmod -R g+w "$CHECKOUT"
  # Where this machine's namespace has no other user, this clone is root's.
  chown -R 12345 "$CHECKOUT" 2>/dev/null || true
  release 1.2.3
  expect_same "in the clone of another user"
)
in_checkout branch v1.2.3 HEAD
echo noise >"$WORK/noise"
release 1.2.3
((status == 1)) || fail "with other bytes: exit status $status"
grep -q "differ.* libgpumem-1.2.3-any.whl$" "$WORK/output" || fail "it does not name the file that differs"
echo "release_test: ok"
