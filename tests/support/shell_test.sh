# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Functions of the tests in bash. A test sets TEST, the beginning of its messages, and sources this file.

WORK=$(mktemp -d)
readonly WORK
trap 'rm -rf "$WORK"' EXIT

# Ends the test, and shows $WORK/output, where a test keeps what its program says.
fail() {
  echo "${TEST:-test}: $*" >&2
  if [[ -s $WORK/output ]]; then
    echo "--- it says" >&2
    cat "$WORK/output" >&2
  fi
  exit 1
}

# program NAME: makes the program $WORK/bin/NAME of the lines of bash that it reads.
program() {
  mkdir -p "$WORK/bin"
  { echo '#!/bin/bash' && printf 'WORK=%q\n' "$WORK" && cat; } >"$WORK/bin/$1"
  chmod 755 "$WORK/bin/$1"
}

# copy_run RUN CHECKOUT: copies the script RUN and the files that it sources.
copy_run() {
  local tree=${1%/*} file
  install -m 755 -D "$1" "$2/run"
  install -m 644 -D -t "$2/third_party/bazel" "$tree"/third_party/bazel/*.sh
  for file in "$tree"/deploy/release/*; do
    install -m 755 -D -t "$2/deploy/release" "$file"
  done
}
