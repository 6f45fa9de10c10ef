# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./run release VERSION: everything that is published of a version, in dist/release/. Sourced by `run`.

# For a commit that has the version's tag already, it compares the new files with those of the tag.
run_release() {
  (($# == 1)) || die "release takes the version: ./run release $(version)"
  local version=$1 before commit
  check_release "$version"
  require_cuda
  ((EUID == 0)) || die "release makes an image: as root"
  unset SOURCE_DATE_EPOCH # a release has the time of its commit
  reproducible_environment
  commit=$(checkout_git rev-parse HEAD)
  before=$(earlier_sums "$version")

  # Each runs in a subshell: it sets variables, and removes files at its end.
  (run_dist)
  (run_deb)
  (run_rpm)
  (run_image)
  collect_release "$version" "$DIST/release"
  [[ $(checkout_git rev-parse HEAD) == "$commit" && -z $(changes) ]] || die "the tree has changed meanwhile"
  (cd "$DIST/release" && du -h -- *)
  compare_release "$before"
  tag_release "$version"
}

# Prints the files that are not committed, whatever git's configuration says.
changes() { checkout_git status --porcelain --untracked-files=normal; }

# Refuses what cannot be a release.
check_release() {
  local version=$1
  setup git dpkg-dev
  [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "'$version' is no version: MAJOR.MINOR.PATCH"
  checkout_git rev-parse --quiet --verify HEAD >/dev/null || die "a release is made of a git checkout"
  [[ -z $(changes) ]] || die "the tree has changes that are not committed: git status"
  [[ $(version) == "$version" ]] || die "common/version.h says $(version), not $version"
  grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" "$ROOT/CHANGELOG.md" ||
    die "CHANGELOG.md has no section \"## [$version] - DATE\""
  [[ $(dpkg-parsechangelog -l "$ROOT/deploy/debian/changelog" -S Version) == "$version"-* ]] ||
    die "deploy/debian/changelog does not begin with version $version"
  is_tagged "$version" || [[ -z $(checkout_git tag --list "v$version") ]] ||
    die "there is a tag v$version of another commit: a version is released once"
  is_tagged "$version" || check_tagger
}

# Refuses to begin where git could not make the tag at the end.
check_tagger() {
  checkout_git var GIT_COMMITTER_IDENT >/dev/null ||
    die "git does not know who makes the tag: set user.name and user.email (git config)"
  # The commit that this makes has no name, and git removes it some day.
  ! signs || checkout_git commit-tree -S -m "A try of the key" "HEAD^{tree}" >/dev/null ||
    die "git cannot sign the tag with its key (user.signingkey)"
}

# True if git has a key for the tag.
signs() { [[ -n $(checkout_git config user.signingkey) || $(checkout_git config --bool tag.gpgSign) == true ]]; }

# True if the version's tag is of this commit.
is_tagged() {
  [[ $(checkout_git rev-parse --quiet --verify "refs/tags/v$1^{commit}" || true) == "$(checkout_git rev-parse HEAD)" ]]
}

# Prints the checksums of an earlier run for this commit, as the tag has them; else, those in dist/release.
earlier_sums() {
  is_tagged "$1" || return 0
  checkout_git tag --list --format='%(contents)' "v$1" | grep -E '^[0-9a-f]{64}  ' ||
    cat "$DIST/release/SHA256SUMS" 2>/dev/null || true
}

# collect_release VERSION OUT
collect_release() {
  local version=$1 out=$2
  rm -rf "$out"
  mkdir -p "$out"
  install -m 644 "$DIST/gpumem-$version-linux-x86_64.tar.gz" "$DIST"/libgpumem-*.whl "$DIST"/deb/*.deb \
    "$DIST"/rpm/*.rpm "$DIST/gpumem-$version-image.tar" "$out/"
  checkout_git -c tar.umask=0022 archive --format=tar --prefix="gpumem-$version/" HEAD | gzip -9n \
    >"$out/gpumem-$version-source.tar.gz"
  dist_contents "$version" >"$out/gpumem-$version.spdx.json"
  install -m 644 "$DIST"/deb/*.spdx.json "$out/"
  (cd "$out" && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)
}

# compare_release SUMS: fails, and names the files, if any differs from an earlier run for the same commit.
compare_release() {
  local differing
  [[ -n $1 ]] || return 0
  differing=$(diff <(echo "$1") "$DIST/release/SHA256SUMS" | awk '/^[<>]/ {print $3}' | sort -u || true)
  if [[ -z $differing ]]; then
    say "the files have the same bytes as those of the run before"
  else
    die "these files differ from those of the run before:" "$(paste -s -d ' ' <<<"$differing")"
  fi
}

# Tags the commit, with the checksums in the message, and with a signature if git has a key.
tag_release() {
  local version=$1
  local -a sign=(--no-sign)
  ! is_tagged "$version" || return 0
  ! signs || sign=(--sign)
  checkout_git tag --annotate "${sign[@]}" -m "gpumem $version" -m "$(cat "$DIST/release/SHA256SUMS")" "v$version" ||
    die "dist/release is complete, but git has not made the tag v$version"
  [[ ${sign[0]} == --sign ]] || say "the tag v$version has no signature: git has no key (user.signingkey)"
}
