#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# rpm_test.sh RPM VERSION: proves the RPM package made by `./run rpm`: what it needs, its units and
# scripts; and that it is installed into an empty root, runs, and is removed without a rest. Only the
# last takes root.
set -euo pipefail
shopt -s inherit_errexit

readonly TEST="rpm: failed"
# shellcheck source=tests/support/shell_test.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
RPM=$(readlink -f "$1")
readonly RPM

# rpm with another root.
root_rpm() {
  rpm --root "$WORK/root" --dbpath /var/lib/rpm --nodeps --noscripts --nosignature "$@" >"$WORK/log" 2>&1 ||
    { cat "$WORK/log" >&2 && fail "rpm $*"; }
}

check_needs() {
  local name
  # The newest that RHEL 9 has.
  for name in GLIBC_2.34 GLIBCXX_3.4.29; do
    [[ $(rpm -qp --requires "$RPM" | grep -o "${name%%_*}_[0-9.]*" | sort -V | tail -n 1) == "$name" ]] ||
      fail "it does not need $name, or something newer"
  done
  ! rpm -qp --requires "$RPM" | grep -E 'absl|grpc|protobuf|pkg-?config' || fail "it needs a library that is inside"
  ! rpm -qp --provides "$RPM" | grep -E 'absl|grpc|protobuf' || fail "it provides a library of others"
  rpm -qp --scripts "$RPM" | sed '/scriptlet (using/d; /^postuninstall program/d' | sh -n ||
    fail "its scripts are no scripts"
  rpm -qp --configfiles "$RPM" | grep -qx /etc/gpumem/gpumemd.toml || fail "its configuration is not marked"
}

check_files() {
  local name
  (mkdir "$WORK/files" && cd "$WORK/files" && rpm2cpio "$RPM" | cpio -id --quiet)
  [[ $("$WORK/files/usr/bin/gpumemd" --version) == "gpumemd $1 "* ]] || fail "gpumemd does not run"
  "$WORK/files/usr/bin/gpumem-keeper" --version >/dev/null || fail "gpumem-keeper does not run"
  "$WORK/files/usr/bin/gpumem-web" --version >/dev/null || fail "gpumem-web does not run"
  "$WORK/files/usr/bin/gpumemctl" --help >/dev/null || fail "gpumemctl does not run"
  grep -qx 'ExecStart=/usr/bin/gpumemd --config /etc/gpumem/gpumemd.toml' \
    "$WORK/files/usr/lib/systemd/system/gpumemd.service" || fail "the unit has other paths"
  for name in libgpumem.so libgpumem.so.1 gpumem pkgconfig/gpumem.pc; do
    [[ -e $WORK/files/usr/lib64/$name ]] || fail "RHEL does not find $name"
  done
  [[ -f $WORK/files/usr/share/gpumem/schema/status.json ]] || fail "it has no schemas of gpumemctl's JSON"
  echo "rpm: its programs run, and need what RHEL 9 has"
}

check_life() {
  mkdir -p "$WORK/root"
  root_rpm -i "$RPM"
  (cd "$WORK/root" && find . ! -type d ! -path './var/lib/rpm/*' | sort) >"$WORK/installed"
  (cd "$WORK/files" && find . ! -type d | sort) | diff - "$WORK/installed" >&2 || fail "it installs other files"
  root_rpm -e gpumem
  find "$WORK/root" \( ! -type d -o -path '*gpumem*' \) ! -path '*/var/lib/rpm/*' >"$WORK/output"
  [[ ! -s $WORK/output ]] || fail "removed, it leaves something"
  echo "rpm: it is installed, and removed without a rest"
}

check_needs
check_files "$2"
if ((EUID == 0)); then
  check_life
else
  echo "rpm: SKIPPED the installation: it takes root"
fi
