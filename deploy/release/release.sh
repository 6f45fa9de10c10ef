# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./run release VERSION: everything that is published of a version, in dist/release/. Sourced by `run`.

# For a commit that has the version's tag already, it compares the new files with those of before.
run_release() {
  (($# == 1)) || die "release takes the version: ./run release $(version)"
  local version=$1 before=''
  check_release "$version"
  require_cuda
  ((EUID == 0)) || die "release makes an image: as root"
  SOURCE_DATE_EPOCH=$(source_date_epoch)
  export SOURCE_DATE_EPOCH
  if is_tagged "$version" && [[ -e $DIST/release/SHA256SUMS ]]; then
    before=$(cat "$DIST/release/SHA256SUMS")
  fi

  # Each runs in a subshell: it sets variables, and removes files at its end.
  (run_dist)
  (run_deb)
  (run_rpm)
  (run_image)
  collect_release "$version" "$DIST/release"
  [[ -z $(git -C "$ROOT" status --porcelain) ]] || die "the tree has changed meanwhile"
  compare_release "$before"
  tag_release "$version"
  (cd "$DIST/release" && du -h -- *)
}

# Refuses what cannot be a release.
check_release() {
  local version=$1
  setup git dpkg-dev
  [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "'$version' is no version: MAJOR.MINOR.PATCH"
  git -C "$ROOT" rev-parse --quiet --verify HEAD >/dev/null || die "a release is made of a git checkout"
  [[ -z $(git -C "$ROOT" status --porcelain) ]] || die "the tree has changes that are not committed: git status"
  [[ $(version) == "$version" ]] || die "common/version.h says $(version), not $version"
  grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" "$ROOT/CHANGELOG.md" ||
    die "CHANGELOG.md has no section \"## [$version] - DATE\""
  [[ $(dpkg-parsechangelog -l "$ROOT/deploy/debian/changelog" -S Version) == "$version"-* ]] ||
    die "deploy/debian/changelog does not begin with version $version"
  is_tagged "$version" || [[ -z $(git -C "$ROOT" tag --list "v$version") ]] ||
    die "there is a tag v$version of another commit: a version is released once"
}

# True if the version's tag is of this commit.
is_tagged() {
  [[ $(git -C "$ROOT" rev-parse --quiet --verify "v$1^{commit}" || true) == "$(git -C "$ROOT" rev-parse HEAD)" ]]
}

# collect_release VERSION OUT
collect_release() {
  local version=$1 out=$2
  local -a linked
  rm -rf "$out"
  mkdir -p "$out"
  install -m 644 "$DIST/gpumem-$version-linux-x86_64.tar.gz" "$DIST"/libgpumem-*.whl "$DIST"/deb/*.deb \
    "$DIST"/rpm/*.rpm "$DIST/gpumem-$version-image.tar" "$out/"
  git -C "$ROOT" archive --format=tar --prefix="gpumem-$version/" HEAD | gzip -9n \
    >"$out/gpumem-$version-source.tar.gz"
  mapfile -t linked < <(dist_libraries)
  "$ROOT/deploy/release/sbom.py" "$DIST" "$version" "$SOURCE_DATE_EPOCH" "${linked[@]}" \
    >"$out/gpumem-$version.spdx.json"
  (cd "$out" && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)
}

# compare_release SUMS: names the files that differ from an earlier run for the same commit.
compare_release() {
  local differing
  [[ -n $1 ]] || return 0
  differing=$(diff <(echo "$1") "$DIST/release/SHA256SUMS" | awk '/^[<>]/ {print $3}' | sort -u || true)
  if [[ -z $differing ]]; then
    say "the files have the same bytes as those of the run before"
  else
    say "these files differ from those of the run before:" "$(paste -s -d ' ' <<<"$differing")"
  fi
}

# Tags the commit, with a signature if git has a key.
tag_release() {
  local version=$1
  local -a sign=(--no-sign)
  ! is_tagged "$version" || return 0
  [[ -z $(git -C "$ROOT" config user.signingkey) ]] || sign=(--sign)
  git -C "$ROOT" tag --annotate "${sign[@]}" -m "gpumem $version" "v$version"
  [[ ${sign[0]} == --sign ]] || say "the tag v$version has no signature: git has no key (user.signingkey)"
}
