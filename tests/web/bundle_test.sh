#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The committed page is what its sources build, byte by byte, and is small enough. Where the packages
# cannot be had, only the size is checked, and the test says so.
set -euo pipefail
shopt -s inherit_errexit
readonly PAGE=client/web/page
readonly MOST=$((100 * 1024)) # bytes, compressed
FILES=(index.html app.js app.css icon.svg)

size=0
for file in "${FILES[@]}"; do
  ((size += $(gzip -9 -n -c "$PAGE/bundle/$file" | wc -c)))
done
echo "the page has $size bytes compressed, of at most $MOST"
((size <= MOST))

# Nothing but the lock's hashes says where packages are from: that is each machine's setting.
for lock in "$PAGE/package-lock.json" tests/web/package-lock.json; do
  if grep -n 'https\?://' "$lock" | grep -v '"url": "https\?://\(github\.com\|opencollective\.com\)'; then
    echo "$lock names hosts" >&2
    exit 1
  fi
done
if grep -nE "(src|href|url)[=(:] *[\"']?(https?:)?//" "$PAGE/bundle/index.html" "$PAGE/bundle/app.css"; then
  echo "the page refers to other hosts" >&2
  exit 1
fi

built=$(mktemp -d "${TEST_TMPDIR:-/tmp}/bundle.XXXXXX")
status=0
"$PAGE/rebuild.sh" "$built" || status=$?
if ((status == 77)); then
  echo "bundle_test: skipped the comparison with a rebuild"
  exit 0
fi
((status == 0))
for file in "${FILES[@]}"; do
  cmp "$PAGE/bundle/$file" "$built/$file" || {
    echo "$PAGE/bundle is not what its sources build: run $PAGE/rebuild.sh" >&2
    exit 1
  }
done
echo "the page is what its sources build"
