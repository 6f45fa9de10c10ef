#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Python package and its frameworks on a machine with a GPU: our tests, the frameworks' own, the
# examples and the benchmarks. Run it as root from a release that was unpacked:
#
#   share/gpumem/python/run.sh [PART ...]       # $OUT: where the logs go (default: a new folder)
#
# or from the source, with RELEASE=the folder of a release. It installs the wheel into a new folder and
# takes nothing from the network. --limit SECONDS (1800) ends it early. See runner.py for the parts.
set -uo pipefail
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
RELEASE=${RELEASE:-$(readlink -f "$HERE/../../..")}
[[ -x $RELEASE/bin/gpumemd ]] || RELEASE=$HERE/../../../dist
RELEASE=$(readlink -f "$RELEASE")
OUT=${OUT:-$(mktemp -d /tmp/gpumem-python-logs.XXXXXX)}
mkdir -p "$OUT"
PYTHON=${PYTHON:-python3}
WORK=$(mktemp -d /tmp/gmp.XXXXXX)
trap 'rm -rf "$WORK"' EXIT

wheel=$(find "$RELEASE" -name 'libgpumem-*.whl' 2>/dev/null | head -1)
if [[ -n $wheel ]]; then
  "$PYTHON" -m pip install --quiet --no-deps --no-index --target "$WORK/site" "$wheel" ||
    "$PYTHON" -m zipfile -e "$wheel" "$WORK/site" || exit 1
elif [[ -d $RELEASE/python/gpumem ]]; then
  mkdir -p "$WORK/site" && cp -r "$RELEASE/python/gpumem" "$WORK/site/" || exit 1
else
  echo "run.sh: no wheel in $RELEASE" >&2
  exit 1
fi
echo "run.sh: release $RELEASE, package from ${wheel:-$RELEASE/python}, logs in $OUT/logs.tgz"
export PYTHONPATH=$WORK/site:$HERE PYTHONDONTWRITEBYTECODE=1
mkdir "$WORK/logs"
"$PYTHON" "$HERE/runner.py" --gpumemd "$RELEASE/bin/gpumemd" --out "$WORK/logs" --work "$WORK" "$@" |
  tee "$OUT/python.txt"
status=${PIPESTATUS[0]}
tar -C "$WORK/logs" -czf "$OUT/logs.tgz" .
exit "$status"
