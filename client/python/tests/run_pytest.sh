#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run_pytest.sh FILE: runs one file of tests by Debian's pytest, with the package as it was built,
# and reports its cases to Bazel.
set -euo pipefail

root=$PWD
export GPUMEM_ROOT=$root PYTHONPATH=$root/client/python/site PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
for name in GPUMEM_GPUMEMD GPUMEM_KEEPER GPUMEM_GPUMEMCTL GPUMEM_MAKE_WHEEL; do
  export "$name=$root/${!name}"
done
# A sanitizer's runtime has to be the first library of a program, and Python's program has none.
# LeakSanitizer would report all memory that Python itself never frees, and a test wants the fault
# on read-only memory.
preload=()
case $(objdump -p "$root/client/python/site/gpumem/_gpumem.abi3.so") in
  *libclang_rt.asan-*)
    export ASAN_OPTIONS=detect_leaks=0:handle_segv=0
    preload=("LD_PRELOAD=$(clang-14 -print-file-name=libclang_rt.asan-"$(uname -m)".so):$(gcc -print-file-name=libstdc++.so.6)")
    ;;
  *libtsan.so*)
    echo "Python and its threads are not instrumented: --test_tag_filters=-no-tsan" >&2
    exit 1
    ;;
esac

# Not below $TEST_TMPDIR, where a socket's name would be too long.
work=$(mktemp -d /tmp/gpumem-pytest-XXXXXX)
trap 'rm -rf "$work"' EXIT
env "${preload[@]}" /usr/bin/python3 -m pytest -p no:cacheprovider -q --tb=short --rootdir "$root" --basetemp "$work/t" \
  ${XML_OUTPUT_FILE:+--junitxml="$XML_OUTPUT_FILE" -o junit_family=xunit1} "$@"
