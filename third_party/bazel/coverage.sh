# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# `./run coverage`: which lines and branches of daemon/core and client/pool the tests reach. Sourced
# by `run`.

readonly COVERAGE_TARGETS=(//daemon/core/... //client/pool/... //tests/simulation:simulation_test
  //tests/fake_cuda:pool_devices_test //tests/fake_cuda:stream_api_test)

run_coverage() {
  local listed=$TOOLS/uncovered.txt
  (($# == 0)) || die "coverage takes no arguments"
  setup "${CLANG_PACKAGES[@]}"
  command -v llvm-cov-14 >/dev/null || die "no llvm-cov-14 here (${CLANG_PACKAGES[*]})"
  ensure_home

  # The same folder each time: another one would have bazel analyse everything again.
  local counts=$HOME/.cache/gpumem/coverage
  rm -rf "$counts"
  mkdir -p "$counts"
  local -a flags=(--config=coverage-core)
  # The model is to go through its cases, not to search: a million calls take very long with counters.
  bazel test "${flags[@]}" --nocache_test_results --sandbox_writable_path="$counts" \
    --test_timeout=3600 --test_env=GPUMEM_MODEL_OPS=300000 \
    --test_env=LLVM_PROFILE_FILE="$counts/%4m.profraw" "${COVERAGE_TARGETS[@]}"

  local labels bin root
  labels=$(bazel_quietly query "tests(set(${COVERAGE_TARGETS[*]}))")
  bin=$(bazel_bin "${flags[@]}")
  root=$(execution_root)
  local -a programs
  mapfile -t programs < <(sed "s|^//|$bin/|; s|:|/|" <<<"$labels")
  llvm-profdata-14 merge -o "$counts/profdata" "$counts"/*.profraw
  "$TOOLS/coverage.py" "$ROOT" "$root" "$counts/profdata" "$listed" "${programs[@]}"
}
