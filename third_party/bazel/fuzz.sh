# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# `./run fuzz`: runs fuzz targets by an engine that measures what they reach. Sourced by `run`.

# Prints the labels of all fuzz targets, or of those with the given names.
fuzz_labels() {
  local labels name
  labels=$(bazel_quietly query 'attr(tags, "\bfuzz\b", //...)')
  (($#)) || { echo "$labels" && return; }
  for name in "$@"; do
    grep -E ":${name%_fuzz}_fuzz\$" <<<"$labels" || die "no fuzz target '$name'; there are:" \
      "$(sed -E 's/.*:(.*)_fuzz/\1/' <<<"$labels" | sort | paste -sd' ')"
  done
}

run_fuzz() {
  local seconds=60 engine=libfuzzer jobs=1 home
  local -a names=()
  ensure_home
  home=$(realpath -m -- "${GPUMEM_FUZZ_HOME:-$HOME/.cache/gpumem/fuzz}")
  while (($#)); do
    case $1 in
      --time | --engine | --jobs)
        (($# > 1)) || die "$1 needs a value"
        case $1 in
          --time) seconds=$2 ;;
          --engine) engine=$2 ;;
          --jobs) jobs=$2 ;;
        esac
        shift
        ;;
      --totals)
        [[ -e $home/record ]] || die "no run of a fuzz target is recorded in $home"
        exec "$TOOLS/fuzz.py" --totals "$home"
        ;;
      -*) die "fuzz: no option '$1'" ;;
      *) names+=("$1") ;;
    esac
    shift
  done
  [[ $seconds =~ ^[1-9][0-9]*$ ]] || die "--time is a number of seconds for each target"
  [[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs is a number of processes"
  [[ $engine == libfuzzer || $engine == afl ]] || die "--engine is libfuzzer or afl"
  [[ $engine == libfuzzer || $jobs == 1 ]] || die "--jobs is for libfuzzer"

  setup "${CLANG_PACKAGES[@]}"
  [[ $engine != afl ]] || setup "${AFL_PACKAGES[@]}"
  command -v clang-14 >/dev/null || die "no clang-14 here, which has libFuzzer (${CLANG_PACKAGES[*]})"
  [[ $engine != afl || -e /usr/lib/afl/libAFLDriver.a ]] ||
    die "no /usr/lib/afl/libAFLDriver.a here, which AFL++ needs (${AFL_PACKAGES[*]})"

  local labels bin
  local -a targets
  labels=$(fuzz_labels "${names[@]}")
  mapfile -t targets <<<"$labels"
  bazel build --config="fuzz-$engine" "${targets[@]}"
  bin=$(bazel_bin --config="fuzz-$engine")
  [[ $home$bin != *[[:space:]]* ]] || die "no spaces in GPUMEM_FUZZ_HOME: libFuzzer does not quote them"
  mkdir -p "$home"
  # In place of this shell: a signal to it must reach what runs the engine.
  exec "$TOOLS/fuzz.py" --time "$seconds" --jobs "$jobs" "$ROOT" "$home" "$engine" "$bin" "${targets[@]}"
}
