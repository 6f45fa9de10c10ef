#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the page from its sources:
#
#   rebuild.sh [FOLDER]
#
# FOLDER is by default bundle/ beside this script, which is committed. Types are checked first. Works in
# a copy: packages never come into the checkout. Ends with 77 if the packages cannot be had.
set -euo pipefail
shopt -s inherit_errexit
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=client/web/page/packages.sh
source "$HERE/packages.sh"

mkdir -p "${1:-$HERE/bundle}"
out=$(cd "${1:-$HERE/bundle}" && pwd)
packages=$(install_packages "$HERE")
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -rL "$HERE/src" "$HERE/build.mjs" "$HERE/tsconfig.json" "$HERE/package.json" "$copy/"
ln -s "$packages/node_modules" "$copy/node_modules"
cd "$copy"
node node_modules/typescript/bin/tsc --noEmit -p .
node build.mjs "$copy/out"
cp "$copy"/out/{index.html,app.js,app.css,icon.svg} "$out/"
