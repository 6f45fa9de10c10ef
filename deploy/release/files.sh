# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Files that the release and the Debian packages both have. Sourced by `run`.

version() { sed -n 's/^#define GPUMEM_VERSION "\(.*\)"$/\1/p' "$ROOT/common/version.h"; }

# install_library BIN DIR: installs the client library of the build BIN, shared and static.
install_library() {
  local bin=$1 soname execroot
  soname=$(objdump -p "$bin/client/libgpumem.so" | awk '$1 == "SONAME" {print $2}')
  install "$bin/client/libgpumem.so" "$2/$soname"
  ln -s "$soname" "$2/libgpumem.so"

  # The archive has only the objects of the shared library itself. A program that links it also links
  # its version of gRPC and Abseil (gpumem.pc).
  execroot=$(execution_root)
  (cd "$execroot" && grep '\.o$' "$bin/client/libgpumem.so-2.params" |
    xargs ar qcs "$2/libgpumem.a")
}

install_headers() { install -m 644 -t "$1" "$ROOT"/client/include/gpumem/*; }

# pkg_config_file VERSION PREFIX LIBDIR: prints gpumem.pc.
pkg_config_file() {
  cat <<END
prefix=$2

Name: gpumem
Description: Client library of gpumemd, which shares GPU memory between processes
Version: $1
Requires: absl_span absl_status absl_statusor absl_strings absl_time
Requires.private: grpc++_unsecure protobuf absl_synchronization absl_flat_hash_map
Cflags: -I\${prefix}/include
Libs: -L\${prefix}/$3 -lgpumem
Libs.private: -laddress_sorting -lre2 -lupb -lcares -lz
END
}

# install_licenses DIR PACKAGE...: installs the licences of these libraries.
install_licenses() {
  local package
  mkdir -p "$1"
  for package in "${@:2}"; do
    install -m 644 "/usr/share/doc/$package/copyright" "$1/$package"
  done
}
