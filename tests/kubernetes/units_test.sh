#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The units of gpumem-kubelet-plugin and gpumem-dra-driver: what they expose, and that the programs take
# their arguments. ./run deb verifies the installed units.
set -euo pipefail

readonly UNITS=deploy/kubernetes/systemd

# command_of UNIT: prints the command line, with the variables of the units' environment.
command_of() {
  sed -n '/^ExecStart=/,/[^\\]$/{s/^ExecStart=//; s/ *\\$//; p}' "$UNITS/$1" | paste -s -d ' ' |
    sed -e 's,\${API_SERVER},https://127.0.0.1:1,; s,\${TOKEN_FILE},/none/token,' \
      -e 's,\${CA_FILE},/none/ca.crt,; s,\$OPTIONS,--timeout 1s,; s,^/usr/sbin/[a-z-]*,,'
}

# expect_failure PROGRAM ARGUMENTS...: it takes its arguments, and fails for want of its peers.
expect_failure() {
  local status=0
  timeout 60 "$@" || status=$?
  ((status == 1)) || { echo "$* has ended with $status" >&2 && exit 1; }
}

read -ra plugin < <(command_of gpumem-kubelet-plugin.service)
expect_failure client/kubernetes/gpumem-kubelet-plugin "${plugin[@]}" --node n --once
read -ra driver < <(command_of gpumem-dra-driver.service)
expect_failure client/kubernetes/dra/gpumem-dra-driver "${driver[@]}" --node n \
  --registry /none/registry --driver-folder /none/folder

# All variables but NODE_NAME, which the programs read themselves, are in the commands.
for variable in $(sed -n 's/^#\?\([A-Z_]\+\)=.*/\1/p' "$UNITS/kubernetes.env"); do
  for unit in "$UNITS"/*.service; do
    [[ $variable == NODE_NAME ]] || grep -q "^[^#]*\$[{]\?$variable" "$unit" ||
      { echo "$unit does not use $variable" >&2 && exit 1; }
  done
done

command -v systemd-analyze >/dev/null || { echo "no systemd here: units are not judged" && exit 0; }
for unit in "$UNITS"/*.service; do
  systemd-analyze security --offline=true --threshold=20 "$unit" >"$TEST_TMPDIR/said" 2>&1 ||
    { cat "$TEST_TMPDIR/said" >&2 && exit 1; }
  grep -o 'Overall exposure level.*' "$TEST_TMPDIR/said"
done
