#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run_test.sh RUN: tests the script `run` on a machine with a GPU and no CUDA toolkit. Its copy
# works in a temporary folder, with programs in front of PATH that build and install nothing.
set -euo pipefail
shopt -s inherit_errexit

readonly TEST=run_test
# shellcheck source=tests/support/shell_test.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
RUN=$(readlink -f "$1")
readonly RUN

make_folders() {
  mkdir -p "$WORK"/{checkout/common,empty,home} "$WORK/toolkit/include" "$WORK/gpu/proc/driver/nvidia"
  copy_run "$RUN" "$WORK/checkout"
  echo '#define GPUMEM_VERSION "0.1.0"' >"$WORK/checkout/common/version.h"
  echo '#define CUDA_VERSION 13000' >"$WORK/toolkit/include/cuda.h"
  touch "$WORK/gpu/proc/driver/nvidia/version"

  # Every package is installed, and a build notes that it was begun, and fails. The variables are those
  # of the programs.
  # shellcheck disable=SC2016
  {
    echo 'echo installed' | program dpkg-query
    echo 'echo "bazel $1 host_only=${GPUMEM_HOST_ONLY:-} ${*: -1}" >>"$WORK/begun"; exit 1' | program bazel
    echo 'echo "apt-get $*" >>"$WORK/begun"; exit 1' | program apt-get
    echo 'echo 0.1.0-1' | program dpkg-parsechangelog
    echo 'cat "$WORK/description"' | program dpkg-deb
  }
}

# run DRIVER TOOLKIT ARGUMENT...: sets its exit status in $status, its output in output, and the
# builds that it began in begun.
run() {
  : >"$WORK/begun"
  status=0
  env -u GPUMEM_HOST_ONLY "${environment[@]}" PATH="$WORK/bin:$PATH" HOME="$WORK/home" \
    GPUMEM_DRIVER_ROOT="$WORK/$1" CUDA_HOME="$WORK/$2" \
    "$WORK/checkout/run" "${@:3}" >"$WORK/output" 2>&1 </dev/null || status=$?
}

says() { grep -qF -- "$1" "$WORK/output"; }
begun() { grep -q -- "$1" "$WORK/begun"; }

check_refused() {
  ((status == 1)) || fail "$1: exit status $status"
  says "run: error: " || fail "$1: no error"
  says "CUDA toolkit" || fail "$1: it does not name what is missing"
  says "--host-only" || fail "$1: it does not name the way to want it"
  says "GPUMEM_HOST_ONLY=1" || fail "$1: it does not name the variable"
  [[ ! -s $WORK/begun ]] || fail "$1: it has begun: $(cat "$WORK/begun")"
}

declare -a environment=()
make_folders

for command in dist deb image; do
  run gpu empty "$command"
  check_refused "$command with a driver and no toolkit"
  says "https://developer.nvidia.com/cuda-downloads" || fail "$command: it does not say how to get it"
  says "CUDA_HOME" || fail "$command: it does not say how to name the folder"
done

for command in dist deb; do
  run gpu empty "$command" --host-only
  begun "bazel build host_only=1" || fail "$command --host-only does not build for the host"
  says "host backend, built without CUDA" || fail "$command --host-only does not say what it makes"

  environment=(GPUMEM_HOST_ONLY=1)
  run gpu toolkit "$command"
  begun "bazel build host_only=1" || fail "GPUMEM_HOST_ONLY=1 $command does not build for the host"
  environment=()

  run gpu toolkit "$command"
  begun "bazel build host_only= " || fail "$command with the toolkit does not build"
  ! says "without CUDA" || fail "$command with the toolkit says that it is without"

  run empty empty "$command"
  begun "bazel build host_only= " || fail "$command without a driver does not build"
  says "host backend, built without CUDA" || fail "$command without a driver does not say what it makes"
done

for command in demo test; do
  run gpu empty "$command"
  begun "bazel .* host_only= " || fail "$command with a driver and no toolkit does not go on"
  says "host backend, built without CUDA" || fail "$command does not say what it builds"
  run gpu toolkit "$command"
  ! says "without CUDA" || fail "$command with the toolkit says that it is without"
done
run gpu empty test //some:target --host-only
begun "bazel test host_only=1 //some:target" || fail "test --host-only hands the option to bazel"

# For an image counts how its packages were built.
mkdir -p "$WORK/checkout/dist/deb"
touch "$WORK/checkout/dist/deb/gpumemd_0.1.0-1_amd64.deb"
echo " This build: host backend, built without CUDA." >"$WORK/description"
run gpu toolkit image
check_refused "image of packages without CUDA"
run gpu empty image --host-only
! says "CUDA toolkit" || fail "image --host-only is refused"
echo " This build: CUDA 13.0." >"$WORK/description"
run gpu empty image
! says "CUDA toolkit" || fail "image of packages with CUDA is refused"

# From any directory, and by a link.
ln -s "$WORK/checkout/run" "$WORK/bin/gpumem-run"
(cd / && "$WORK/bin/gpumem-run" help) >"$WORK/output" 2>&1 || fail "help by a link fails"
says "usage: ./run COMMAND" || fail "help by a link shows no usage"

echo "run_test: ok"
