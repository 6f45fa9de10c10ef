#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install_test.sh INSTALL UNIT…: tests the release's install.sh with a made-up release that has the
# given units of systemd.
set -euo pipefail
shopt -s inherit_errexit

readonly TEST=install_test
# shellcheck source=tests/support/shell_test.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
readonly PREFIX=/opt/gpu\ mem
readonly ROOT=$WORK/root

# make_release NAME VERSION: a release of tiny programs in $WORK/NAME.
make_release() {
  local release=$WORK/$1 program
  mkdir -p "$release"/{bin,etc,include/gpumem,lib/pkgconfig,lib/gpumem/c++,licenses,share/gpumem/systemd}
  install "$INSTALL" "$release/install.sh"
  install -m 644 "${INSTALL%/*}/install_checks.sh" "$release/share/gpumem/"
  install -m 644 "${UNITS[@]}" "$release/share/gpumem/systemd/"
  for program in gpumemd gpumem-keeper gpumemctl; do
    printf '#!/bin/sh\necho %s %s "$@"\n' "$program" "$2" >"$release/bin/$program"
    chmod 755 "$release/bin/$program"
  done
  echo "library $2" >"$release/lib/libgpumem.so.1"
  ln -s libgpumem.so.1 "$release/lib/libgpumem.so"
  echo "bundled" >"$release/lib/gpumem/libz.so.1"
  echo "runtime" >"$release/lib/gpumem/c++/libstdc++.so.6"
  echo "Version: $2" >"$release/lib/pkgconfig/gpumem.pc"
  echo "header" >"$release/include/gpumem/client.h"
  echo "configuration $2" >"$release/etc/gpumemd.toml"
  echo "terms" | tee "$release/LICENSE" >"$release/licenses/libz"
}

# install_from RELEASE ARGUMENT...: sets its exit status in $status, its output in output.
install_from() {
  status=0
  PATH="$WORK/bin:$PATH" "$WORK/$1/install.sh" "${@:2}" >"$WORK/output" 2>&1 </dev/null || status=$?
}

expect_install() {
  install_from "$@"
  ((status == 0)) || fail "$*: exit status $status"
}

expect_refusal() {
  local said=$1
  shift
  install_from "$@"
  ((status == 1)) || fail "$*: exit status $status, not refused"
  grep -qF -- "$said" "$WORK/output" || fail "$*: does not say \"$said\""
}

# All files below a folder, with modes and sums.
listing() {
  (cd "$1" && find . -printf '%P %M %l\n' | sort && find . -type f -print0 | sort -z | xargs -0r sha256sum)
}

# prefixed ARGUMENT...: install.sh's arguments for a place of this test.
args=(--destdir "$ROOT" --prefix "$PREFIX")

fresh_root() {
  rm -rf "$ROOT"
  mkdir -p "$ROOT$PREFIX/lib" "$ROOT/etc"
  echo "another's" >"$ROOT$PREFIX/lib/other.so"
  listing "$ROOT" >"$WORK/before"
}

expect_as_before() {
  listing "$ROOT" >"$WORK/after"
  diff "$WORK/before" "$WORK/after" >"$WORK/output" || fail "$1 leaves something, or takes too much"
}

check_life() {
  fresh_root
  expect_install old "${args[@]}" --keeper
  [[ $("$ROOT$PREFIX/bin/gpumemctl") == "gpumemctl 1.0" ]] || fail "gpumemctl is not as in the release"
  [[ $(readlink "$ROOT$PREFIX/lib/libgpumem.so") == libgpumem.so.1 ]] || fail "a link is not installed"
  [[ -f $ROOT$PREFIX/etc/gpumem/gpumemd.toml ]] || fail "no configuration"
  grep -qF "'$PREFIX/bin/gpumem-keeper' -- '$PREFIX/bin/gpumemd'" "$ROOT$PREFIX/bin/gpumemd-kept" ||
    fail "gpumemd-kept does not run the keeper"
  sh -n "$ROOT$PREFIX/bin/gpumemd-kept" || fail "gpumemd-kept is no script"
  listing "$ROOT" >"$WORK/once"

  expect_install old "${args[@]}"
  listing "$ROOT" >"$WORK/twice"
  diff "$WORK/once" "$WORK/twice" >"$WORK/output" || fail "to install twice differs from once"

  expect_install old "${args[@]}" --uninstall --dry-run
  expect_install new "${args[@]}" --dry-run
  listing "$ROOT" >"$WORK/twice"
  diff "$WORK/once" "$WORK/twice" >"$WORK/output" || fail "--dry-run changes something"

  expect_install old "${args[@]}" --uninstall
  expect_as_before "--uninstall"
  expect_refusal "nothing is installed" old "${args[@]}" --uninstall
}

check_upgrade() {
  fresh_root
  expect_install old "${args[@]}" --keeper
  rm "$WORK/new/include/gpumem/client.h"
  echo "new" >"$WORK/new/include/gpumem/new.h"
  expect_install new "${args[@]}"
  [[ $("$ROOT$PREFIX/bin/gpumemctl") == "gpumemctl 2.0" ]] || fail "an upgrade leaves the old program"
  [[ ! -e $ROOT$PREFIX/include/gpumem/client.h ]] || fail "an upgrade leaves an old file"
  [[ -e $ROOT$PREFIX/include/gpumem/new.h ]] || fail "an upgrade lacks a new file"
  grep -q 2.0 "$ROOT$PREFIX/etc/gpumem/gpumemd.toml" || fail "an upgrade leaves an old configuration"
  [[ -e $ROOT$PREFIX/bin/gpumemd-kept ]] || fail "an upgrade forgets --keeper"

  # Without --destdir it would take the paths of the list for those of this machine.
  if "$ROOT$PREFIX/share/gpumem/install.sh" --uninstall >"$WORK/output" 2>&1; then
    fail "the installed copy uninstalls without --destdir"
  fi
  # The copy that is installed uninstalls, with no word about the prefix.
  "$ROOT$PREFIX/share/gpumem/install.sh" --uninstall --destdir "$ROOT" >"$WORK/output" ||
    fail "the installed copy does not uninstall"
  expect_as_before "the installed copy's --uninstall"
}

check_changed_files() {
  fresh_root
  expect_install old "${args[@]}"
  echo "changed" >"$ROOT$PREFIX/etc/gpumem/gpumemd.toml"
  expect_install new "${args[@]}"
  [[ $(cat "$ROOT$PREFIX/etc/gpumem/gpumemd.toml") == changed ]] || fail "an upgrade changes the configuration"
  grep -q 2.0 "$ROOT$PREFIX/share/gpumem/gpumemd.toml" || fail "the new configuration is not put aside"
  echo "changed" >"$ROOT$PREFIX/bin/gpumemctl"
  expect_install new "${args[@]}" --uninstall
  grep -qF "left $ROOT$PREFIX/bin/gpumemctl" "$WORK/output" || fail "it does not name what it leaves"
  (cd "$ROOT$PREFIX" && find . -type f | sort) >"$WORK/output"
  [[ $(cat "$WORK/output") == $'./bin/gpumemctl\n./etc/gpumem/gpumemd.toml\n./lib/other.so' ]] ||
    fail "it removes files that were changed, or leaves others"
}

check_foreign_files() {
  fresh_root
  echo "another's" >"$ROOT$PREFIX/lib/libgpumem.so.1"
  listing "$ROOT" >"$WORK/before"
  expect_refusal "$PREFIX/lib/libgpumem.so.1" old "${args[@]}"
  expect_as_before "a refusal"
}

# Where a copy fails halfway, both ways out are open.
check_interruption() {
  fresh_root
  # shellcheck disable=SC2016  # the program's variables
  echo '[[ ! ${*: -1} == */libgpumem.so.1* ]] && exec /bin/cp "$@"' | program cp
  install_from old "${args[@]}"
  ((status != 0)) || fail "an installation goes on after a failure"
  rm "$WORK/bin/cp"
  cp -a "$ROOT" "$WORK/half"
  expect_install old "${args[@]}" --uninstall
  expect_as_before "--uninstall of a half installation"
  rm -rf "$ROOT"
  mv "$WORK/half" "$ROOT"
  expect_install old "${args[@]}"
  listing "$ROOT" >"$WORK/twice"
  diff "$WORK/once" "$WORK/twice" >"$WORK/output" || fail "the second try differs from one that goes well"
}

check_machines() {
  local here=(--prefix "$WORK/home/.local" --keeper)
  echo 'echo aarch64' | program uname
  expect_refusal "this machine is aarch64" old "${here[@]}"
  echo 'echo x86_64' | program uname
  echo 'echo glibc 2.31' | program getconf
  expect_refusal "this system has 2.31" old "${here[@]}"
  echo 'exit 1' | program getconf
  expect_refusal "another C library" old "${here[@]}"
  [[ ! -e $WORK/home ]] || fail "a refusal leaves something"

  # Of a user, in the home, with a C++ runtime of the system's.
  echo 'echo glibc 2.35' | program getconf
  expect_install old "${here[@]}"
  [[ -e $WORK/home/.local/bin/gpumemd && ! -e $WORK/home/.local/lib/gpumem/c++ ]] ||
    fail "with glibc 2.35 the C++ runtime is installed, or nothing is"
  [[ $("$WORK/home/.local/bin/gpumemd-kept" --flag) == "gpumem-keeper 1.0 -- $WORK/home/.local/bin/gpumemd \
--config $WORK/home/.local/etc/gpumem/gpumemd.toml --flag" ]] || fail "gpumemd-kept does not run the keeper"
  expect_install old "${here[@]}" --uninstall
  [[ ! -e $WORK/home ]] || fail "--uninstall in a home leaves something"
  rm "$WORK/bin"/{uname,getconf}
}

check_units() {
  local units=$ROOT/etc/systemd/system
  fresh_root
  expect_refusal "no access" old --destdir "$ROOT" --prefix /home/user/.local --systemd
  expect_refusal "cannot name" old "${args[@]}" --systemd
  expect_install old --destdir "$ROOT" --prefix /opt/gpumem --systemd
  grep -qx 'ExecStart=/opt/gpumem/bin/gpumemd --config /opt/gpumem/etc/gpumem/gpumemd.toml' \
    "$units/gpumemd.service" || fail "the unit has other paths"
  ! grep -q /usr/sbin "$units"/* || fail "a unit names /usr/sbin"
  [[ -f $units/gpumemd-session.socket && -f $ROOT/etc/sysusers.d/gpumemd.conf ]] || fail "units are missing"
  expect_install old --destdir "$ROOT" --prefix /opt/gpumem --uninstall
  expect_as_before "--uninstall with units"
  install -D /dev/null "$ROOT/usr/lib/systemd/system/gpumemd.service"
  expect_refusal "a package has installed" old --destdir "$ROOT" --prefix /opt/gpumem --systemd
}

check_options() {
  install_from old --unknown
  ((status == 2)) || fail "an unknown option: exit status $status"
  expect_refusal "absolute path" old --prefix relative
  expect_refusal "absolute path" old --prefix
  expect_install old --help
  grep -q "^usage:" "$WORK/output" || fail "--help says no usage"
}

INSTALL=$(readlink -f "$1")
readonly INSTALL
UNITS=("${@:2}")
mkdir "$WORK/bin"
make_release old 1.0
make_release new 2.0
check_life
check_upgrade
check_changed_files
check_foreign_files
check_interruption
check_machines
check_units
check_options
echo "install_test: ok"
