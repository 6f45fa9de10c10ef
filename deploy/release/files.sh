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
    xargs ar qcsD "$2/libgpumem.a")
}

# The libraries that unmodified programs are run with (gpumemctl run).
readonly PRELOAD_TARGETS=(//client/preload:libgpumem-preload.so
  //client/preload/accountant:libgpumem-accountant.so
  //client/preload/injection:libgpumem-relocator.so)

# install_preload BIN DIR: installs them, of the build BIN.
install_preload() {
  install -D -t "$2" "$1/client/preload/libgpumem-preload.so" \
    "$1/client/preload/accountant/libgpumem-accountant.so" \
    "$1/client/preload/injection/libgpumem-relocator.so"
  drop_build_folders "$2/libgpumem-accountant.so"
}

# drop_build_folders FILE...: removes Bazel's folders from the path in which a program or library looks
# for its libraries. They lead out of the release, where another user may be able to put a library.
drop_build_folders() {
  local program path kept
  for program in "$@"; do
    path=$(objdump -p "$program" | awk '$1 ~ /^R(UN)?PATH$/ {print $2}')
    kept=$(tr : '\n' <<<"$path" | sed '/_solib_/d' | paste -s -d :)
    [[ $kept == "$path" ]] || chrpath --replace "$kept" "$program" >/dev/null
  done
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
Libs.private: -laddress_sorting -lre2 -lupb -lcares -lz -lcrypto
END
}

# install_reference SHARE ZSH REFERENCE: the man pages, and completion for shells. gpumemctl's are
# written by the program REFERENCE; ZSH is zsh's folder below SHARE.
install_reference() {
  local page
  mkdir -p "$1"/man/man{1,5,8} "$1"/{bash-completion/completions,"$2",fish/vendor_completions.d}
  for page in "$ROOT"/deploy/man/*.[58]; do
    install -m 644 "$page" "$1/man/man${page##*.}/"
  done
  "$3" man >"$1/man/man1/gpumemctl.1"
  "$3" bash >"$1/bash-completion/completions/gpumemctl"
  "$3" zsh >"$1/$2/_gpumemctl"
  "$3" fish >"$1/fish/vendor_completions.d/gpumemctl.fish"
}

# install_schemas DIR: installs the JSON Schemas of the objects that gpumemctl prints.
install_schemas() { install -D -m 644 -t "$1" "$ROOT"/client/cli/schema/*.json; }

# git in this checkout, which may be another user's: `run` runs the files of that user anyway.
checkout_git() { git -c safe.directory="$ROOT" -C "$ROOT" "$@"; }

# Prints the time of this tree: of its last commit, or of the version's changelog in an unpacked archive.
source_date_epoch() {
  if [[ -n ${SOURCE_DATE_EPOCH:-} ]]; then
    echo "$SOURCE_DATE_EPOCH"
  elif [[ -e $ROOT/.git ]]; then
    checkout_git log -1 --no-show-signature --format=%ct
  else
    dpkg-parsechangelog -l "$ROOT/deploy/debian/changelog" -S Timestamp
  fi
}

# Sets what the bytes of packed files could depend on, beside the files: time, order, modes, options.
reproducible_environment() {
  umask 022
  unset TAR_OPTIONS GZIP XZ_OPT XZ_DEFAULTS DEB_BUILD_OPTIONS DEB_BUILD_PROFILES
  export LC_ALL=C.UTF-8 TZ=UTC
  SOURCE_DATE_EPOCH=$(source_date_epoch)
  export SOURCE_DATE_EPOCH
}

# pack_folder FOLDER NAME: prints an archive of the folder, as NAME. The same files make the same
# bytes for every user, at every time.
pack_folder() {
  tar -C "$1" --sort=name --mtime="@$(source_date_epoch)" --owner=0 --group=0 --numeric-owner \
    --mode=u+rwX,go+rX,go-w --format=gnu --exclude=./"*.tar*" --exclude=./"*.whl" --exclude=./"*.spdx.json" --exclude=./deb \
    --exclude=./rpm --exclude=./release --transform="flags=r;s,^\.,$2," --create . | gzip -9n
}

# install_licenses DIR PACKAGE...: installs the licences of these libraries.
install_licenses() {
  local package
  mkdir -p "$1"
  for package in "${@:2}"; do
    install -m 644 "/usr/share/doc/$package/copyright" "$1/$package"
  done
}
