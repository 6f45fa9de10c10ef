#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# parts_test.sh DOCUMENT LOCK MACHINE_SH DIST_SH: compares the table of parts in docs/supply-chain.md
# with the packages that a build on this machine links, and with the page's lock file of npm.
set -euo pipefail
shopt -s inherit_errexit

readonly TEST=parts_test
# shellcheck source=tests/support/shell_test.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
readonly DOCUMENT=$1 LOCK=$2
# shellcheck source=third_party/bazel/machine.sh
source "$3"
# shellcheck source=deploy/release/dist.sh
source "$4"

# upstream VERSION: without epoch and Debian's revision.
upstream() { sed 's/^[0-9]*://; s/-[^-]*$//' <<<"$1"; }

# listed PART: prints its version in the table.
listed() { awk -F ' [|] ' -v part="| $1" '$1 == part {print $2}' "$DOCUMENT"; }

# check_part PART VERSION
check_part() {
  local version
  version=$(listed "$1")
  [[ -n $version ]] || fail "$1 $2 has no row in docs/supply-chain.md: look for its known vulnerabilities"
  [[ $(upstream "$version") == "$(upstream "$2")" ]] ||
    fail "$1 is $2 here, and $version in docs/supply-chain.md: look for known vulnerabilities again"
  dpkg --compare-versions "$2" ge "$version" ||
    fail "$1 is $2 here, and $version in docs/supply-chain.md has later fixes"
}

command -v dpkg-query >/dev/null || { echo "parts_test: SKIPPED: this is no Debian" && exit 0; }
mapfile -t linked < <(dist_libraries)
# shellcheck disable=SC2016  # dpkg-query's variables
parts=$(dpkg-query -W -f '${source:Package} ${source:Version}\n' "${linked[@]}" "${INSIDE_PACKAGES[@]}" | sort -u)
while read -r part version; do
  check_part "$part" "$version"
done <<<"$parts"
npm=$(jq -r '.packages | to_entries[] | select(.key != "" and (.value.dev | not)) |
  "\(.key | sub(".*node_modules/"; "")) \(.value.version)"' "$LOCK")
while read -r part version; do
  [[ $(listed "$part") == "$version" ]] || fail "docs/supply-chain.md has another version of $part than $version"
done <<<"$npm"
# No row of something that is gone.
while read -r part; do
  grep -q "^$part " <<<"$parts"$'\n'"$npm" || fail "docs/supply-chain.md has $part, which is not linked"
done < <(sed -n '/^## Parts/,/^## Known/s/^| \([a-z0-9.-]*\) | [0-9].*/\1/p' "$DOCUMENT")
echo "parts_test: $(wc -l <<<"$parts"$'\n'"$npm") parts are as docs/supply-chain.md lists them"
