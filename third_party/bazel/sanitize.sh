# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# `./run sanitize`: the test suite with sanitizers. Sourced by `run`.

# Threads are checked where all code is ours: Debian's gRPC is not instrumented, so whatever it hands
# from one thread to another would be a race.
readonly THREAD_TARGETS=(//daemon/core/... //client/pool/... //common/...)

run_sanitize() {
  local which=${1:-}
  [[ $which == address || $which == thread ]] || die "sanitize takes 'address' or 'thread'"
  setup "${CLANG_PACKAGES[@]}"
  command -v clang-14 >/dev/null || die "no clang-14 here (${CLANG_PACKAGES[*]})"
  case $which in
    address)
      run_test --config=asan "${@:2}"
      ;;
    thread)
      local argument
      local -a targets=("${THREAD_TARGETS[@]}")
      for argument in "${@:2}"; do
        [[ $argument == -* ]] || targets=()
      done
      run_test --config=tsan "${@:2}" "${targets[@]}"
      ;;
  esac
}
