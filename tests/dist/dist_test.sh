#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# dist_test.sh DIST: proves that a release made by `./run dist` is complete.
#
#  1. Its programs and libraries need no library but the C library's and those that it brings, and
#     nothing from the C library newer than glibc 2.34. Only the C++ runtime in lib/gpumem/c++ needs
#     glibc 2.36: with an older glibc, install.sh leaves that to the system.
#  2. Its headers stand on their own, and a program links against the library.
#  3. Its wheel is installed by pip, and works with its daemon.
#  4. install.sh installs it in a root directory that holds the C library and nothing else. Its programs
#     run there, and the demo succeeds. install.sh removes it, and leaves nothing. Where namespaces are
#     not permitted, this step is skipped, and says so.
set -euo pipefail
shopt -s inherit_errexit

DIST=$(readlink -f "$1")
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
readonly DIST HERE
readonly GLIBC=2.34
readonly GLIBC_OF_CXX=2.36
# The folders of the release in which its programs and libraries look for libraries.
# shellcheck disable=SC2016  # the loader's variable
readonly PATHS='^\$ORIGIN(/(\.\.(/lib(/gpumem(/c\+\+)?)?)?|gpumem))?$'
readonly LIBC=(libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 ld-linux-x86-64.so.2)

fail() {
  echo "dist: failed: $*" >&2
  exit 1
}

# check_glibc FILE VERSION: fails if the file needs a newer glibc.
check_glibc() {
  local newest
  newest=$({ objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' || true; } | sort -uV | tail -n 1)
  [[ $(printf '%s\n' "$newest" "GLIBC_$2" | sort -V | tail -n 1) == "GLIBC_$2" ]] ||
    fail "${1##*/} needs $newest"
}

check_needs() {
  local -a files
  mapfile -t files < <(find "$DIST/bin" "$DIST/lib" -type f ! -name '*.a' ! -name '*.pc')
  local known file name
  known=$(printf '%s\n' "${LIBC[@]}" "${files[@]##*/}")
  for file in "${files[@]}"; do
    for name in $(objdump -p "$file" | awk '$1 ~ /^(RPATH|RUNPATH)$/ {gsub(":", "\n", $2); print $2}'); do
      [[ $name =~ $PATHS ]] || fail "${file##*/} looks for libraries in $name"
    done
    for name in $(objdump -p "$file" | awk '$1 == "NEEDED" {print $2}'); do
      grep -qxF "$name" <<<"$known" || fail "${file##*/} needs $name"
    done
    if [[ $file == */lib/gpumem/c++/* ]]; then
      check_glibc "$file" "$GLIBC_OF_CXX"
    else
      check_glibc "$file" "$GLIBC"
    fi
  done
  echo "dist: ${#files[@]} programs and libraries need glibc $GLIBC and each other"
}

# A schema for each form of JSON that its gpumemctl prints.
check_schemas() {
  diff <(cd "$HERE/../../client/cli/schema" && ls) <(cd "$DIST/share/gpumem/schema" && ls) >&2 ||
    fail "its schemas are not those of client/cli/schema"
}

check_library() {
  local work header
  work=$(mktemp -d)
  for header in "$DIST"/include/gpumem/*.h; do
    echo "#include <gpumem/${header##*/}>"
  done >"$work/program.cc"
  echo 'int main() {}' >>"$work/program.cc"
  local -a flags
  read -ra flags < <(PKG_CONFIG_PATH=$DIST/lib/pkgconfig pkg-config --cflags --libs gpumem)
  g++ -std=c++20 -Wall -Wextra -Werror "$work/program.cc" "${flags[@]}" -Wl,--no-as-needed \
    -o "$work/program"
  LD_LIBRARY_PATH=$DIST/lib "$work/program"
  rm -r "$work"
  echo "dist: its headers compile and its library links"
}

check_wheel() {
  local work daemon file
  work=$(mktemp -d /tmp/gpumem-dist-XXXXXX)
  /usr/bin/python3 -m pip install --quiet --no-deps --no-index --no-cache-dir \
    --disable-pip-version-check --root-user-action=ignore --target "$work/site" "$DIST"/libgpumem-*.whl
  for file in "$work"/site/gpumem/*.so; do check_glibc "$file" "$GLIBC"; done
  "$DIST/bin/gpumemd" --backend=host --runtime-dir "$work/run" --state-dir "$work/state" \
    &>"$work/log" &
  daemon=$!
  if ! PYTHONPATH=$work/site timeout 60 /usr/bin/python3 - "$work/run" <<'END'; then
import sys
import time
import gpumem

for attempt in range(200):  # the daemon begins meanwhile
    try:
        client = gpumem.connect(sys.argv[1])
        break
    except gpumem.UnavailableError:
        time.sleep(0.05)
assert client.publish("wheel", b"bytes") == 1
assert bytes(memoryview(client.attach("wheel").value)) == b"bytes"
inside = [line for line in open("/proc/self/maps") if "libgrpc" in line or "libgpumem" in line]
assert inside and all("/site/gpumem/lib/" in line for line in inside), inside
END
    kill "$daemon"
    cat "$work/log" >&2
    fail "its wheel does not work"
  fi
  kill "$daemon"
  wait "$daemon" || true
  rm -r "$work"
  echo "dist: its wheel is installed and works"
}

# The part of check_bare_root that runs in new namespaces, so that no mount stays behind.
in_bare_root() {
  local root=$1 name
  local libs=$root/lib/x86_64-linux-gnu bin=/opt/gpumem/bin
  mount -t tmpfs bare "$root"
  mkdir -p "$libs" "$root"/{dev,lib64,opt,proc,run,tmp}
  for name in "${LIBC[@]}"; do
    cp -L "$(gcc -print-file-name="$name")" "$libs/"
  done
  mv "$libs"/ld-linux-x86-64.so.2 "$root/lib64/"
  find "$root" >"$root/tmp/before"
  "$DIST/install.sh" --destdir "$root" --prefix /opt/gpumem --keeper
  # These every container has.
  mount -t proc proc "$root/proc"
  for name in null random urandom zero; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
  done

  bare() { env -i PATH="$PATH" timeout 120 chroot "$root" "$@"; }
  bare $bin/gpumemd --version
  bare $bin/gpumem-keeper --version
  bare $bin/gpumem-web --version
  bare $bin/gpumemctl --help >/dev/null
  bare $bin/gpumem_demo --gpumemd $bin/gpumemd --gpumemctl $bin/gpumemctl
  "$root/opt/gpumem/share/gpumem/install.sh" --destdir "$root" --uninstall
  find "$root" -path "$root/proc/*" -prune -o -path "$root/dev/*" -prune -o -print >"$root/tmp/after"
  ! grep -vxFf "$root/tmp/before" "$root/tmp/after" | grep -v '/tmp/' ||
    fail "uninstalled, it leaves these files"
}

check_bare_root() {
  local -a unshare=(unshare --mount --pid --fork --kill-child)
  ((EUID == 0)) || unshare+=(--map-root-user)
  if ! "${unshare[@]}" true 2>/dev/null; then
    echo "dist: SKIPPED the run in a bare root: this machine does not permit namespaces"
    return
  fi
  local root
  root=$(mktemp -d)
  "${unshare[@]}" "$0" "$DIST" --in-bare-root "$root" || fail "it does not run in a bare root"
  rmdir "$root"
  echo "dist: installed in a root with nothing but the C library, the demo ran; uninstalled, nothing stays"
}

if [[ ${2:-} == --in-bare-root ]]; then
  in_bare_root "$3"
else
  check_needs
  check_schemas
  check_library
  check_wheel
  check_bare_root
fi
