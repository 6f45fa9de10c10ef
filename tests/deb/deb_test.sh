#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deb_test.sh FOLDER: proves that the Debian packages made by `./run deb` are right.
#
#  1. lintian finds no error in them, they say whether they are built with CUDA, and the shells load
#     the completions.
#  2. On a clean Debian they install, work, upgrade, can be removed and purged, and leave nothing.
#  3. With systemd running there, the memory that the daemon keeps outlives an upgrade.
#
# 2 and 3 need root, namespaces and a mirror; without, they are skipped, and it says so.
set -euo pipefail
shopt -s inherit_errexit
export LC_ALL=C.UTF-8

SELF=$(readlink -f "$0")
HERE=$(dirname "$SELF")
DEBS=
WORK=
MACHINE=
GROUP=
readonly SELF HERE
readonly OLD_VERSION=0.0.1-1
readonly ALL=(gpumemd gpumem-tools gpumem-slurm gpumem-kubernetes gpumem-web libgpumem1 libgpumem-dev)

say() { echo "deb: $*"; }

fail() {
  echo "deb: failed: $*" >&2
  exit 1
}

# Also on failure: no process, mount, control group or folder stays.
clean_up() {
  shut_down
  [[ -z $WORK ]] || rm -rf "$WORK"
}

deb_of() { echo "$DEBS/$1"_*.deb; }

# --- 1: on this machine --------------------------------------------------------------------------

# Each package's description has the daemon's own statement of CUDA support.
check_descriptions() {
  local package built
  dpkg-deb -x "$(deb_of gpumemd)" "$WORK/gpumemd"
  built=$("$WORK/gpumemd/usr/sbin/gpumemd" --version | sed 's/.*(\(.*\))/\1/')
  [[ $built == "CUDA "[0-9]* || $built == "host backend, built without CUDA" ]] ||
    fail "gpumemd --version does not say what it is built with: \"$built\""
  for package in "${ALL[@]}"; do
    dpkg-deb -f "$(deb_of "$package")" Description | grep -qxF " This build: $built." ||
      fail "the description of $package does not say \"This build: $built.\""
  done
  say "their descriptions say what they are: $built"
}

check_lintian() {
  local said status=0
  # Not in Debian, so it closes no wish for it there; and it is a first version.
  said=$(lintian --allow-root --no-cfg --fail-on error --suppress-tags \
    initial-upload-closes-no-bugs "$DEBS"/*.changes 2>&1) || status=$?
  [[ -z $said ]] || echo "$said"
  ((status == 0)) || fail "lintian finds errors"
  say "lintian finds no error"
}

check_completions() {
  local share=$WORK/tools/usr/share
  dpkg-deb -x "$(deb_of gpumem-tools)" "$WORK/tools"
  # shellcheck disable=SC2016  # each shell's own variables
  bash --norc -c 'source "$1" && complete -p gpumemctl' bash \
    "$share/bash-completion/completions/gpumemctl" >/dev/null || fail "bash: completion"
  fish --no-config -c "source $share/fish/vendor_completions.d/gpumemctl.fish
    complete -C 'gpumemctl quo'" | grep -q '^quota' || fail "fish: completion"
  "$HERE/zsh_completion.zsh" "$share/zsh/vendor-completions" "$WORK" || fail "zsh: completion"
  say "bash, fish and zsh complete gpumemctl's command line"
}

# --- 2: on a clean Debian ------------------------------------------------------------------------

# "MIRROR SUITE" of this machine's own Debian.
mirror() {
  local suite
  # shellcheck source=/dev/null
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  # shellcheck disable=SC2016  # apt's variables
  apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
    awk -v suite="$suite" '$2 == suite && $3 == "main" {print $1, $2; exit}'
}

# Runs a command in $WORK/root.
inside() {
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
    unshare --mount --pid --fork --kill-child "$SELF" --chroot "$WORK/root" "$@" </dev/null
}

# The part of `inside` that runs in new namespaces, so that no mount stays.
in_chroot() {
  mount --make-rprivate /
  mount -t proc proc "$1/proc"
  mount -t tmpfs tmpfs "$1/run"
  mount -t tmpfs tmpfs "$1/tmp"
  exec chroot "$@"
}

# inside, quietly unless it fails.
inside_quietly() {
  inside "$@" >"$WORK/log" 2>&1 || {
    cat "$WORK/log" >&2
    fail "$* (in the clean Debian)"
  }
}

expect_inside() {
  local expected=$1 got
  shift
  got=$(inside "$@" 2>&1) || fail "$* (in the clean Debian): $got"
  [[ $got == *"$expected"* ]] || fail "$* says \"$got\", and not \"$expected\""
}

make_root() {
  local -a from
  read -ra from < <(mirror)
  ((${#from[@]} == 2)) || return 1
  say "making a clean Debian from ${from[0]}"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,man-db "${from[1]}" "$WORK/root" \
    "${from[0]}" >"$WORK/log" 2>&1 || {
    tail -n 3 "$WORK/log" >&2
    return 1
  }
  cp /etc/resolv.conf /etc/hosts "$WORK/root/etc/"
  # Their dependencies, and the checks' tools, are there before: none of them is theirs.
  local depends package
  depends=$(for package in "${ALL[@]}"; do dpkg-deb -f "$(deb_of "$package")" Depends; done |
    tr ',' '\n' | grep -v gpumem | paste -s -d ,)
  inside_quietly apt-get -q update
  inside_quietly apt-get -q -y --no-install-recommends satisfy "$depends, g++, pkg-config"
}

# add_api_socket TREE: the socket unit that releases before protocol version 2 had. Its service is
# another one, since today's daemon refuses a socket of that name.
add_api_socket() {
  local units=$1/lib/systemd/system
  printf '[Socket]\nListenStream=/run/gpumem/api.sock\n[Install]\nWantedBy=sockets.target\n' \
    >"$units/gpumemd-api.socket"
  printf '[Service]\nExecStart=/bin/true\n' >"$units/gpumemd-api.service"
  cat >>"$1/DEBIAN/postinst" <<'END'
deb-systemd-helper enable gpumemd-api.socket >/dev/null
[ ! -d /run/systemd/system ] || deb-systemd-invoke start gpumemd-api.socket >/dev/null
END
}

# The packages again, as an older version would be.
make_old_packages() {
  local package tree
  mkdir -p "$WORK/root/debs/old" "$WORK/old"
  cp "$DEBS"/*.deb "$WORK/root/debs/"
  for package in "${ALL[@]}"; do
    tree=$WORK/old/$package
    dpkg-deb -R "$(deb_of "$package")" "$tree"
    sed -i -E "s/^Version: .*/Version: $OLD_VERSION/; s/(libgpumem1 \(= )[^)]*/\1$OLD_VERSION/" \
      "$tree/DEBIAN/control"
    [[ $package != gpumemd ]] || add_api_socket "$tree"
    dpkg-deb --root-owner-group -b "$tree" "$WORK/root/debs/old/" >/dev/null
  done
}

# All files but those that dpkg, apt and others write as they go.
files_inside() {
  (cd "$WORK/root" && find . -xdev ! -path './debs*' ! -path './proc/*' ! -path './var/log/*' \
    ! -path './var/cache/*' ! -path './var/lib/apt/*' ! -path './var/lib/dpkg/*-old' |
    grep -vxE './etc/(passwd|group|shadow|gshadow|subuid|subgid)-|./etc/.pwd.lock' | sort)
}

check_installed() {
  local package program version
  version=$(dpkg-deb -f "$(deb_of gpumemd)" Version)
  for program in gpumemd gpumem-{keeper,slurm,device-plugin,kubelet-plugin,dra-driver,web}; do
    expect_inside "$program ${version%-*}" "$program" --version
  done
  expect_inside "quota" gpumemctl --help
  expect_inside ": ok, " gpumemd --config /etc/gpumem/gpumemd.toml --check-config
  expect_inside "/var/lib/gpumem" getent passwd gpumem
  expect_inside "gpumem-admin" getent group gpumem-admin
  # Nothing of ours, and nothing said by systemd for others, but that there is no journal.
  inside_quietly systemd-analyze verify --man=yes --recursive-errors=no \
    gpumemd.service gpumemd-{session,admin,view}.socket \
    gpumem-{kubelet-plugin,dra-driver,web}.service gpumem-web.socket
  [[ ! -s $WORK/log ]] || fail "systemd-analyze verify: $(cat "$WORK/log")"
  [[ -z $(find "$WORK/root/etc/systemd" -name 'gpumem-*') ]] ||
    fail "units are enabled that an administrator has to choose"
  for package in "${ALL[@]}"; do
    inside dpkg -L "$package" | grep -vE '^/\.$|/libraries' >"$WORK/list"
    # Several packages share folders; only files count.
    (cd "$WORK/root" && while read -r file; do [[ -d .$file ]] || echo "$file"; done) \
      <"$WORK/list" | sed "s,/$(dpkg-architecture -qDEB_HOST_MULTIARCH)/,/MULTIARCH/," | sort \
      >"$WORK/$package.files"
    diff -u "$HERE/$package.files" "$WORK/$package.files" >&2 || fail "$package has other files"
  done
}

check_program_builds() {
  local header
  { for header in "$WORK"/root/usr/include/gpumem/*.h; do
    echo "#include <gpumem/${header##*/}>"
  done
  cat <<'END'
#include <iostream>
int main() {
  auto client = gpumem::Client::Connect();
  std::cout << (client.ok() ? "connected" : "nobody there") << std::endl;
}
END
  } >"$WORK/root/worker.cc"
  # shellcheck disable=SC2016  # inside
  expect_inside "nobody there" sh -c \
    'g++ -std=c++20 -Wall -Werror worker.cc $(pkg-config --cflags --libs gpumem) -o worker &&
     ldd worker | grep -q "libgpumem.so.1 => /" && GPUMEM_RUNTIME_DIR=/none ./worker'
  # shellcheck disable=SC2016
  expect_inside "nobody there" sh -c \
    'g++ -std=c++20 worker.cc -Wl,--as-needed $(pkg-config --cflags --libs --static gpumem |
       sed "s/-lgpumem /-l:libgpumem.a /") -o worker &&
     ! ldd worker | grep -q libgpumem && GPUMEM_RUNTIME_DIR=/none ./worker'
  rm "$WORK"/root/worker*
}

check_life() {
  files_inside >"$WORK/before"
  inside_quietly sh -c 'dpkg -i /debs/old/*.deb'
  # shellcheck disable=SC2016  # dpkg-query's variable
  expect_inside "$OLD_VERSION" dpkg-query -W -f '${Version}' gpumemd
  say "they install"
  # Changes that an administrator and the daemon make.
  sed -i 's/^log_level = .*/log_level = "debug"/' "$WORK/root/etc/gpumem/gpumemd.toml"
  install -D /dev/null "$WORK/root/var/lib/gpumem/quotas"

  inside_quietly sh -c 'dpkg -i /debs/*.deb'
  grep -qx 'log_level = "debug"' "$WORK/root/etc/gpumem/gpumemd.toml" ||
    fail "an upgrade changes the configuration"
  [[ -z $(find "$WORK"/root/etc/systemd "$WORK"/root/var/lib/systemd -name 'gpumemd-api*') ]] ||
    fail "an upgrade leaves the links of an older release's socket"
  say "they upgrade, and keep the configuration"
  check_installed
  check_program_builds
  say "they work, and programs build with the library"

  inside_quietly dpkg -r "${ALL[@]}"
  [[ -f $WORK/root/etc/gpumem/gpumemd.toml && -f $WORK/root/var/lib/gpumem/quotas ]] ||
    fail "removing takes away the configuration or the state"
  [[ ! -e $WORK/root/usr/sbin/gpumemd ]] || fail "removing leaves the daemon"
  inside_quietly dpkg -P "${ALL[@]}"
  files_inside >"$WORK/after"
  diff "$WORK/before" "$WORK/after" >&2 || fail "purging leaves something"
  say "removing keeps configuration and state, purging leaves nothing"
}

# --- 3: with systemd -----------------------------------------------------------------------------

# Process 1 of $1, before it becomes systemd.
in_machine() {
  mount --make-rprivate /
  mount --bind "$1" "$1"
  cd "$1"
  mount -t proc proc proc
  mount -t sysfs -o ro sysfs sys
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  mount -t tmpfs -o mode=755 tmpfs dev
  mkdir dev/pts dev/shm
  local device
  for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
  done
  mount -t tmpfs -o mode=755 tmpfs run
  mount -t tmpfs tmpfs tmp
  mkdir -p .old
  pivot_root . .old
  umount -l .old
  rmdir .old
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=lxc /lib/systemd/systemd --system \
    --unit=basic.target --log-target=console --show-status=no
}

# Runs a command in the machine.
there() {
  local init
  # Its only child, in a line without an end.
  read -r init <"/proc/$MACHINE/task/$MACHINE/children" || [[ -n $init ]] || return 1
  nsenter -t "$init" -m -p -C -i -u -n -r -w -- \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@" </dev/null
}

expect_there() {
  local expected=$1 got
  shift
  got=$(there "$@" 2>&1) || fail "$* (under systemd): $got"
  [[ $got == *"$expected"* ]] || fail "$* says \"$got\", and not \"$expected\""
}

# Boots with separate control groups, so that none stays behind.
boot() {
  local hierarchy
  hierarchy=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
  [[ -n $hierarchy ]] || return 1
  GROUP=$hierarchy/gpumem-deb-$$
  mkdir "$GROUP" 2>/dev/null || return 1
  (
    echo "$BASHPID" >"$GROUP/cgroup.procs"
    exec unshare --mount --pid --cgroup --ipc --uts --net --fork --mount-proc --kill-child \
      "$SELF" --machine "$WORK/root"
  ) </dev/null >"$WORK/console" 2>&1 &
  MACHINE=$!
  local deadline=$((SECONDS + 60))
  # It prints "running" when all is started; other words before that are no error.
  until [[ $(there systemctl is-system-running 2>/dev/null || true) == running ]]; do
    ((SECONDS < deadline)) && kill -0 "$MACHINE" 2>/dev/null || return 1
    sleep 0.2
  done
}

shut_down() {
  if [[ -n $MACHINE ]]; then
    kill -KILL "$MACHINE" 2>/dev/null || true
    wait "$MACHINE" 2>/dev/null || true
    MACHINE=
  fi
  if [[ -n $GROUP ]]; then
    # Process 1 is gone, and all others go with it, but not in the same moment.
    local deadline=$((SECONDS + 30))
    until find "$GROUP" -depth -type d -exec rmdir {} + 2>/dev/null || ((SECONDS > deadline)); do
      sleep 0.1
    done
    GROUP=
  fi
}

# property NAME [UNIT]
property() { there systemctl show --value -p "$1" "${2:-gpumemd.service}"; }

check_upgrade_under_systemd() {
  if ! boot; then
    cat "$WORK/console" >&2
    say "SKIPPED the upgrade under systemd: this machine does not let one run"
    return
  fi
  expect_there "" sh -c 'dpkg -i /debs/old/*.deb'
  expect_there active systemctl is-active gpumemd.service gpumemd-api.socket
  there head -c 5000000 /dev/urandom >"$WORK/root/model.bin"
  expect_there "" gpumemctl publish weights --file /model.bin
  local before after socket
  before=$(property MainPID)
  socket=$(property ActiveEnterTimestamp gpumemd-session.socket)

  expect_there "" sh -c 'dpkg -i /debs/*.deb'
  after=$(property MainPID)
  [[ $after != "$before" && $after != 0 ]] || fail "an upgrade does not restart the daemon"
  [[ $(property ActiveEnterTimestamp gpumemd-session.socket) == "$socket" ]] ||
    fail "an upgrade restarts the sockets, too: who connects meanwhile is refused"
  expect_there active systemctl is-active gpumemd.service gpumemd-session.socket
  [[ $(property ActiveState gpumemd-api.socket) == inactive ]] ||
    fail "an upgrade leaves the socket unit of an older release"
  there test ! -e /run/gpumem/api.sock || fail "an upgrade leaves the socket of an older release"
  expect_there "" gpumemctl verify weights
  say "memory outlives an upgrade"

  expect_there "" dpkg -r gpumemd
  [[ $(property ActiveState) == inactive ]] || fail "removing leaves the daemon running"
  there test ! -e /run/gpumem/session.sock || fail "removing leaves a socket"
  expect_there "" dpkg -P gpumemd
  say "removing stops it"
}

# --- All -----------------------------------------------------------------------------------------

main() {
  DEBS=$(readlink -f "$1")
  trap clean_up EXIT
  WORK=$(mktemp -d)
  chmod 755 "$WORK"
  check_lintian
  check_descriptions
  check_completions
  if ((EUID != 0)); then
    say "SKIPPED what needs a clean Debian: making one takes root"
  elif ! unshare --mount --pid --fork true 2>/dev/null; then
    say "SKIPPED what needs a clean Debian: this machine does not permit namespaces"
  elif ! make_root; then
    say "SKIPPED what needs a clean Debian: debootstrap cannot make one, see above"
  else
    make_old_packages
    check_life
    check_upgrade_under_systemd
  fi
}

case $1 in
  --chroot) in_chroot "${@:2}" ;;
  --machine) in_machine "$2" ;;
  *) main "$1" ;;
esac
