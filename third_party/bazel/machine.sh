# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034  # the lists are for `run` and deploy/release
# What a build needs of this machine: Debian packages, a home directory, Bazel, CUDA. Sourced by
# `run`.

readonly BUILD_PACKAGES=(
  bazel-bootstrap g++ pkgconf python3 libpython3-dev
  protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev libabsl-dev
  libboost-dev libcli11-dev libtoml11-dev libspdlog-dev libssl-dev libxxhash-dev libcpp-httplib-dev
  libslurm-dev libzydis-dev nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev
)
# For the time of the tree's last change.
readonly TIME_PACKAGES=(dpkg-dev git)
readonly WHEEL_PACKAGES=(python3-pip python3-wheel)
readonly TEST_PACKAGES=(
  "${BUILD_PACKAGES[@]}" "${WHEEL_PACKAGES[@]}" binutils chromium crun curl dpkg-dev git iproute2 jq
  mypy munge nodejs npm prometheus python3-jsonpatch python3-jsonschema python3-numpy python3-pytest python3-yaml
  slurm-client slurmctld slurmd spin
)
# Even a program that is linked shared contains parts of these: headers or archives.
readonly INSIDE_PACKAGES=(
  libboost1.74-dev libcli11-dev libcpp-httplib-dev libfmt-dev libgrpc++-dev libspdlog-dev libssl-dev libtoml11-dev
  libxxhash-dev nlohmann-json3-dev
)
readonly DEB_PACKAGES=("${BUILD_PACKAGES[@]}" debhelper dpkg-dev lintian debootstrap man-db zsh fish)
readonly IMAGE_PACKAGES=("${BUILD_PACKAGES[@]}" buildah crun debootstrap iproute2)
readonly FORMAT_PACKAGES=(clang-format)
# The same clang as in third_party/bazel/clang.
readonly CLANG_PACKAGES=("${BUILD_PACKAGES[@]}" clang-14 libclang-rt-14-dev llvm-14)
readonly AFL_PACKAGES=(afl++)
readonly CHECK_PACKAGES=("${BUILD_PACKAGES[@]}" clang-format clang-tidy)

say() { echo "run: $*" >&2; }

die() {
  say "error: $*"
  exit 1
}

missing_packages() {
  local package provided
  # What installed packages stand for: a nodejs that is not Debian's contains npm.
  provided=$(dpkg-query -W -f='${db:Status-Status} ${Provides}\n' |
    sed -n 's/^installed //p' | tr ',' '\n' | awk '{print $1}')
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed* ]] ||
      grep -qxF -- "$package" <<<"$provided" || echo "$package"
  done
}

# Installs those of the given Debian packages that are missing.
setup() {
  if ! command -v dpkg-query >/dev/null; then
    say "no Debian here: hoping for the equivalents of $*"
    return
  fi
  local -a missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0

  local -a install=(env DEBIAN_FRONTEND=noninteractive
    apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 install
    "${missing[@]}")
  local -a update=(apt-get -q update)
  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null </dev/null; then
      die "missing packages; as root: apt-get update && apt-get install --no-install-recommends ${missing[*]}"
    fi
    install=(sudo -n "${install[@]}")
    update=(sudo -n "${update[@]}")
  fi

  say "installing ${missing[*]}"
  # The package lists may be absent or out of date; only then they are worth fetching.
  { "${install[@]}" --dry-run &>/dev/null && "${install[@]}" </dev/null >&2; } ||
    { "${update[@]}" </dev/null >&2 && "${install[@]}" </dev/null >&2; } ||
    die "could not install: ${missing[*]}"
}

# Bazel keeps its files below $HOME. A user without one gets a private directory instead.
ensure_home() {
  [[ -d ${HOME:-} && -w $HOME ]] && return
  export HOME=${TMPDIR:-/tmp}/gpumem-home-$EUID
  [[ -d $HOME ]] || mkdir -m 700 "$HOME"
  [[ -O $HOME ]] || die "$HOME belongs to another user"
}

bazel() {
  # Into a file or a CI log: a line now and then instead of a moving screen.
  local -a quiet=()
  [[ -t 2 ]] || quiet=(--color=no --curses=no --show_progress_rate_limit=30)
  (cd "$ROOT" && command bazel "$1" "${quiet[@]}" "${@:2}" </dev/null)
}

# For commands whose output something reads: only errors besides.
bazel_quietly() { bazel "$1" --noshow_progress --ui_event_filters=-info "${@:2}"; }

# Prints the directory of `bazel build`'s outputs with the given flags.
bazel_bin() { bazel_quietly info "$@" bazel-bin; }

execution_root() { bazel_quietly info execution_root; }

# --- CUDA --------------------------------------------------------------------------------------

readonly WITHOUT_CUDA="host backend, built without CUDA"

host_only() { [[ ${GPUMEM_HOST_ONLY:-} == 1 ]]; }

# The same as in third_party/system/repositories.bzl.
cuda_home() { echo "${CUDA_HOME:-/usr/local/cuda}"; }

builds_with_cuda() { ! host_only && [[ -e $(cuda_home)/include/cuda.h ]]; }

# GPUMEM_DRIVER_ROOT is for tests.
nvidia_driver() {
  [[ -e ${GPUMEM_DRIVER_ROOT:-}/proc/driver/nvidia/version || -e ${GPUMEM_DRIVER_ROOT:-}/dev/nvidiactl ]]
}

# Prints a note if the build cannot use a GPU.
note_backend() {
  builds_with_cuda && return
  if host_only; then
    say "$WITHOUT_CUDA, as asked for"
  else
    say "$WITHOUT_CUDA: there is no toolkit in $(cuda_home)"
  fi
}

# Refuses, unless asked to, to make files that leave this machine's GPU unused when installed.
require_cuda() {
  builds_with_cuda || host_only || ! nvidia_driver ||
    die "this machine has an NVIDIA driver, but no CUDA toolkit in $(cuda_home): the result could not" \
      "use the GPU. Install the toolkit (https://developer.nvidia.com/cuda-downloads; its header cuda.h" \
      "is enough), or name its folder with CUDA_HOME=FOLDER. For a build that uses host memory only," \
      "pass --host-only, or set GPUMEM_HOST_ONLY=1"
  note_backend
}
