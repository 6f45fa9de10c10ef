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

# A disk that is full, and a kill, in the middle of a file.
check_partial_file() {
  fresh_root
  # shellcheck disable=SC2016  # the program's variables
  echo '[[ ${*: -1} == */libgpumem.so.1* ]] || exec /bin/cp "$@"; echo part >"${*: -1}"; exit 1' | program cp
  install_from old "${args[@]}"
  ((status != 0)) || fail "an installation goes on after a failure"
  rm "$WORK/bin/cp"
  [[ -z $(find "$ROOT" -name '*.gpumem-new') ]] || fail "a failure leaves a part of a file"
  echo part >"$ROOT$PREFIX/lib/libgpumem.so.1.gpumem-new"
  expect_install old "${args[@]}" --uninstall
  expect_as_before "--uninstall after a kill"
}

# Where the list cannot be written, nothing is installed, and no folder stays.
check_full_disk() {
  fresh_root
  echo 'exit 1' | program sha256sum
  install_from old "${args[@]}"
  ((status != 0)) || fail "an installation goes on without a list"
  rm "$WORK/bin/sha256sum"
  expect_as_before "an installation that failed at its list"
}

check_incomplete_release() {
  fresh_root
  expect_install old "${args[@]}"
  listing "$ROOT" >"$WORK/before"
  cp -r "$WORK/new" "$WORK/part"
  rm -r "$WORK/part/bin"
  expect_refusal "not complete" part "${args[@]}"
  expect_as_before "a refusal of a part of a release"
}

# A file that cannot be read may have been changed.
check_unreadable_files() {
  fresh_root
  expect_install old "${args[@]}"
  echo 'exit 1' | program sha256sum
  install_from old "${args[@]}" --uninstall
  rm "$WORK/bin/sha256sum"
  [[ -e $ROOT$PREFIX/bin/gpumemctl ]] || fail "--uninstall removes a file that it could not read"
}

# A user who can write below the prefix can write the list, too.
check_hostile_list() {
  local list=$ROOT$PREFIX/share/gpumem/manifest sum line
  fresh_root
  echo "precious" >"$ROOT/etc/precious"
  sum=$(sha256sum <"$ROOT/etc/precious" | cut -d ' ' -f 1)
  mkdir "$ROOT/empty"
  expect_install old "${args[@]}"
  cp "$list" "$WORK/list"
  for line in "f $sum /etc/precious" "f $sum $PREFIX/../../etc/precious" "f $sum" "x - /etc"; do
    { cat "$WORK/list" && echo "$line"; } >"$list"
    expect_refusal "names" old "${args[@]}" --uninstall
    [[ -e $ROOT/etc/precious ]] || fail "--uninstall obeys the line \"$line\""
  done
  { cat "$WORK/list" && echo "d - /empty" && echo "d" && echo "d - $PREFIX/../../empty"; } >"$list"
  expect_install old "${args[@]}" --uninstall
  [[ -e $ROOT/empty ]] || fail "--uninstall removes a folder of others"
}

# The links of an image lead to places of this machine.
check_links_of_destdir() {
  fresh_root
  mkdir "$WORK/outside"
  rm -r "${ROOT:?}/opt"
  ln -s "$WORK/outside" "$ROOT/opt"
  expect_refusal "out of $ROOT" old "${args[@]}"
  [[ -z $(ls -A "$WORK/outside") ]] || fail "it installs out of --destdir"
  rm "$ROOT/opt"
  mkdir "$ROOT/srv"
  ln -s srv "$ROOT/opt"
  expect_install old "${args[@]}"
  [[ -x $ROOT/srv/gpu\ mem/bin/gpumemctl ]] || fail "it does not follow a link inside of --destdir"
  expect_install old "${args[@]}" --uninstall
  [[ -z $(ls -A "$ROOT/srv") ]] || fail "--uninstall by a link leaves something"
}

# Another user could replace what root installs, or have root write elsewhere.
check_folders_of_others() {
  local place=$WORK/shared
  ((EUID == 0)) || return 0
  mkdir -p "$place/inner"
  chmod 777 "$place"
  expect_refusal "every user can write" old --prefix "$place/gpumem" --keeper
  expect_refusal "every user can write" old --prefix "$place/inner/gpumem" --keeper
  chmod 1777 "$place"
  expect_install old --prefix "$place/inner/gpumem" --keeper
  chmod 755 "$place"
  # Where this machine's namespace has no other user, the rest cannot be tried.
  chown 12345 "$place/inner" 2>/dev/null || return 0
  expect_refusal "belongs to another user" old --prefix "$place/inner/gpumem" --uninstall
  [[ -x $place/inner/gpumem/bin/gpumemctl ]] || fail "a refusal removes files"
  expect_refusal "belongs to another user" old --prefix "$place/inner/other" --keeper
  ln -s "$place/inner" "$place/link"
  expect_refusal "belongs to another user" old --prefix "$place/link/other" --keeper
  [[ ! -e $place/inner/other ]] || fail "a refusal leaves something"
}

# An upgrade without options takes the configuration's folder, too.
check_sysconfdir() {
  local place=(--destdir "$ROOT" --prefix /opt/gpumem)
  fresh_root
  expect_install old "${place[@]}" --sysconfdir /srv/etc --systemd
  echo "changed" >"$ROOT/srv/etc/gpumem/gpumemd.toml"
  expect_install new "${place[@]}"
  grep -q ' --config /srv/etc/gpumem/gpumemd.toml$' "$ROOT/etc/systemd/system/gpumemd.service" ||
    fail "an upgrade forgets --sysconfdir"
  [[ ! -e $ROOT/opt/gpumem/etc ]] || fail "an upgrade makes a second configuration"
  [[ $(cat "$ROOT/srv/etc/gpumem/gpumemd.toml") == changed ]] || fail "an upgrade changes the configuration"
  echo "configuration 1.0" >"$ROOT/srv/etc/gpumem/gpumemd.toml"
  expect_install new "${place[@]}" --uninstall
  expect_as_before "--uninstall with another --sysconfdir"
}

# The installed copy finds its list where a link leads to the prefix.
check_linked_prefix() {
  mkdir -p "$WORK/disk"
  ln -s disk "$WORK/link"
  expect_install old --prefix "$WORK/link/gpumem" --keeper
  "$WORK/link/gpumem/share/gpumem/install.sh" --uninstall >"$WORK/output" 2>&1 ||
    fail "the installed copy does not uninstall below a link"
  [[ -z $(ls -A "$WORK/disk") ]] || fail "--uninstall below a link leaves something"
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

# verified_units ROOT UNIT...: prints what systemd has to say about the units below ROOT. It says nothing
# if they are right, and their programs are there.
verified_units() {
  systemd-analyze verify --man=no --recursive-errors=no --root="$1" "${@:2}" 2>&1 || echo "exit status $?"
}

# Has systemd read the units of the installation.
check_units_by_systemd() {
  local units=$ROOT/etc/systemd/system said
  printf '[Service]\nExecStart=/opt/gpumem/bin/gpumemctl\n' >"$units/plain.service"
  said=$(verified_units "$ROOT" plain.service)
  rm "$units/plain.service"
  if [[ -n $said ]]; then
    echo "install_test: SKIPPED the check of the units by systemd-analyze: $said"
    return
  fi
  verified_units "$ROOT" gpumemd.service gpumemd-{session,admin,view}.socket >"$WORK/output"
  [[ ! -s $WORK/output ]] || fail "systemd finds mistakes in the units"
  mv "$ROOT/opt/gpumem/bin/gpumemd" "$WORK/gpumemd"
  [[ $(verified_units "$ROOT" gpumemd.service) == *"/opt/gpumem/bin/gpumemd"* ]] ||
    fail "the check of the units finds no mistake"
  mv "$WORK/gpumemd" "$ROOT/opt/gpumem/bin/gpumemd"
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
  check_units_by_systemd
  expect_install old --destdir "$ROOT" --prefix /opt/gpumem --uninstall
  expect_as_before "--uninstall with units"
  install -D /dev/null "$ROOT/usr/lib/systemd/system/gpumemd.service"
  expect_refusal "a package has installed" old --destdir "$ROOT" --prefix /opt/gpumem --systemd
}

check_options() {
  local option
  install_from old --unknown
  ((status == 2)) || fail "an unknown option: exit status $status"
  expect_refusal "absolute path" old --prefix relative
  expect_refusal "absolute path" old --prefix
  fresh_root
  for option in --uninstall=no --dry-run=0 --keeper=x --help=y; do
    install_from old "${args[@]}" "$option"
    ((status == 2)) || fail "$option: exit status $status"
  done
  expect_as_before "a wrong option"
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
check_partial_file
check_full_disk
check_incomplete_release
check_unreadable_files
check_hostile_list
check_links_of_destdir
check_folders_of_others
check_sysconfdir
check_linked_prefix
check_machines
check_units
check_options
echo "install_test: ok"
