#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The page in a browser, with a gpumem-web that the tests make up (fake_server.mjs):
#
#   page_test.sh [TEST...]      such as views, use, hostile, load, units
#
# GPUMEM_WEB_SCREENSHOTS=FOLDER writes the pictures of the documents there (pictures.mjs).
set -euo pipefail
shopt -s inherit_errexit
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
# shellcheck source=client/web/page/packages.sh
source "$ROOT/client/web/page/packages.sh"

skip() {
  echo "page_test: skipped: $*"
  exit 0
}

command -v node >/dev/null || skip "there is no node (Debian package nodejs)"
(($(node -p 'process.versions.node.split(".")[0]') >= 18)) || skip "node is older than 18"
export GPUMEM_CHROMIUM=${GPUMEM_CHROMIUM:-$(command -v chromium || true)}
[[ -n $GPUMEM_CHROMIUM ]] || skip "there is no chromium (Debian package chromium)"
status=0
GPUMEM_WEB_PACKAGES=$(install_packages "$HERE") || status=$?
((status != NO_PACKAGES)) || skip "without the packages of $HERE/package-lock.json"
((status == 0)) || exit "$status"
GPUMEM_WEB_PAGE_PACKAGES=$(install_packages "$ROOT/client/web/page") || skip "without esbuild"
export GPUMEM_WEB_PACKAGES GPUMEM_WEB_PAGE_PACKAGES
# The browser writes into its user's folders.
HOME=$(mktemp -d "${TEST_TMPDIR:-/tmp}/home.XXXXXX")
export HOME
trap 'rm -rf "$HOME"' EXIT

failed=0
for name in "${@:-units views contents use hostile load}"; do
  for each in $name; do
    echo "== $each"
    node "$HERE/$each.test.mjs" || failed=1
  done
done
if [[ -n ${GPUMEM_WEB_SCREENSHOTS:-} ]]; then
  node "$HERE/pictures.mjs" "$GPUMEM_WEB_SCREENSHOTS" || failed=1
fi
exit $failed
