#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# RMM over gpumem's memory resource (rmm_test.cc), with an RMM that the user has:
#
#   rmm_test.sh LIBGPUMEM GPUMEMD [FOLDER]
#
# $GPUMEM_RMM is the folder that has RMM's and rapids-logger's wheels:
#
#   pip install --no-deps --target DIR librmm-cu13 rapids-logger
#
# Without it the test is skipped. CUDA's headers and its static runtime are those of $CUDA_HOME
# (default: /usr/local/cuda). With FOLDER it builds there only, for a machine with a GPU: carry the
# folder, and run its run.sh.
set -euo pipefail
shopt -s inherit_errexit
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
CUDA=${CUDA_HOME:-/usr/local/cuda}

skip() {
  echo "rmm_test: skipped: $*"
  exit 0
}

# build FOLDER: makes program, libraries and run.sh in it.
build() {
  local folder=$1 library=$2 daemon=$3 file
  mkdir -p "$folder/lib"
  install "$daemon" "$folder/gpumemd"
  install "$library" "$folder/lib/libgpumem.so.1"
  install -t "$folder/lib" "$RMM/librmm/lib64/librmm.so" \
    "$RMM/rapids_logger/lib64/librapids_logger.so"
  g++ -std=c++20 -O1 -Wall -Wextra -Werror -Wno-missing-field-initializers "$HERE/rmm_test.cc" -o "$folder/gpumem_rmm_test" \
    -I"$HEADERS" -isystem "$RMM/librmm/include" -isystem "$RMM/librmm/include/rapids" \
    -isystem "$RMM/rapids_logger/include" -isystem "$CUDA/include" \
    -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE \
    -L"$folder/lib" -l:libgpumem.so.1 -lrmm -lrapids_logger -lgtest \
    -L"$CUDA/lib64" -lcudart_static -lrt -ldl -lpthread \
    $(pkg-config --libs absl_status absl_statusor absl_time absl_strings) \
    -Wl,--disable-new-dtags,-rpath,'$ORIGIN/lib',-rpath-link,"$folder/lib"
  # All but the C library.
  for file in $(ldd "$folder/gpumem_rmm_test" "$folder/gpumemd" | awk '$2 == "=>" {print $3}' | sort -u); do
    case ${file##*/} in
      libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.*) ;;
      *) [[ -e $folder/lib/${file##*/} ]] || install "$file" "$folder/lib/" ;;
    esac
  done
  cat >"$folder/run.sh" <<'END'
#!/bin/bash
# Starts the gpumemd beside it, runs the tests with the arguments, and ends it.
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
export GPUMEM_RUNTIME_DIR LD_LIBRARY_PATH=$HERE/lib
GPUMEM_RUNTIME_DIR=$(mktemp -d /tmp/gpumem-rmm.XXXXXX)
"$HERE/gpumemd" --backend "${BACKEND:-auto}" --runtime-dir "$GPUMEM_RUNTIME_DIR" \
  --state-dir "$GPUMEM_RUNTIME_DIR/state" &>"$GPUMEM_RUNTIME_DIR/log" &
daemon=$!
trap 'kill $daemon; wait $daemon; rm -rf "$GPUMEM_RUNTIME_DIR"' EXIT
"$HERE/gpumem_rmm_test" "$@" || { status=$?; tail "$GPUMEM_RUNTIME_DIR/log"; exit $status; }
END
  chmod 755 "$folder/run.sh"
}

[[ -n ${GPUMEM_RMM:-} ]] || skip 'no $GPUMEM_RMM'
RMM=$(readlink -f "$GPUMEM_RMM")
[[ -d $RMM/librmm/include/rmm ]] || skip "no RMM in $GPUMEM_RMM"
[[ -e $CUDA/include/cuda_runtime_api.h ]] || skip "no CUDA toolkit in $CUDA"
HEADERS=$HERE/../../client/include
if [[ -n ${3:-} ]]; then
  build "$3" "$1" "$2"
  exit
fi
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
build "$WORK" "$1" "$2"
"$WORK/run.sh"
