# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./run dist: a release in dist/. Sourced by `run`.

run_dist() {
  require_cuda
  setup "${BUILD_PACKAGES[@]}" "${WHEEL_PACKAGES[@]}" "${TIME_PACKAGES[@]}" binutils chrpath
  ensure_home
  local version
  version=$(version)
  rm -rf "$DIST"
  reproducible_environment
  mkdir -p "$DIST"/{bin,etc,include/gpumem,lib/gpumem/c++,lib/pkgconfig,licenses}

  dist_programs
  dist_library "$version"
  dist_bundled_libraries
  dist_deployment
  dist_licenses

  local name=gpumem-$version-linux-x86_64
  pack_folder "$DIST" "$name" >"$ROOT/$name.tar.gz.new"
  mv "$ROOT/$name.tar.gz.new" "$DIST/$name.tar.gz"
  dist_contents "$version" >"$ROOT/$name.spdx.json.new"
  mv "$ROOT/$name.spdx.json.new" "$DIST/gpumem-$version.spdx.json"
  dist_wheel "$version"

  "$ROOT/tests/dist/dist_test.sh" "$DIST"
  "$ROOT/tests/dist/repeat_test.sh" "$DIST"
  "$DIST/bin/gpumemd" --version | sed 's/^/dist: /'
  du -sh "$DIST" | awk '{print "dist: " $1 " in " $2}'
}

# The daemon, its keeper, gpumemctl and gpumem-web contain their libraries. The other programs use the copies of
# Debian's shared libraries in lib/gpumem.
dist_programs() {
  bazel build --config=dist-static //daemon:gpumemd //daemon/keeper:gpumem-keeper \
    //client/cli:gpumemctl //client/cli:gpumemctl_reference //client/web:gpumem-web
  local bin
  bin=$(bazel_bin --config=dist-static)
  install "$bin/daemon/gpumemd" "$bin/daemon/keeper/gpumem-keeper" "$bin/client/cli/gpumemctl" \
    "$bin/client/web/gpumem-web" "$DIST/bin/"
  install_reference "$DIST/share" zsh/site-functions "$bin/client/cli/gpumemctl_reference"
  install_schemas "$DIST/share/gpumem/schema"

  bazel build --config=dist-bundled //client:libgpumem.so "${PRELOAD_TARGETS[@]}" \
    //tests/preload:{async,async_work,bench,brokered,holder,physical,ways_dlsym} \
    //tests/bench:gpumem_bench //tests/wakeups:gpumem_handoffs //tests/demo:gpumem_demo \
    //tests/foreign:gpumem_foreign //tests/gpu:gpumem_gpu_test
  bin=$(bazel_bin --config=dist-bundled)
  install "$bin/tests/bench/gpumem_bench" "$bin/tests/wakeups/gpumem_handoffs" \
    "$bin/tests/demo/gpumem_demo" "$bin/tests/foreign/gpumem_foreign" "$bin/tests/gpu/gpumem_gpu_test" "$DIST/bin/"
  drop_build_folders "$DIST"/bin/gpumem_{bench,handoffs,demo,foreign,gpu_test}
  install -D -t "$DIST/share/gpumem/preload" "$ROOT"/tests/gpu/preload/*.py \
    "$bin"/tests/preload/{async,async_work,bench,brokered,holder,physical,ways_dlsym}
  drop_build_folders "$DIST"/share/gpumem/preload/{async,async_work,bench,brokered,holder,physical,ways_dlsym}
  install -D "$ROOT/tests/foreign/foreign.py" "$DIST/share/gpumem/foreign.py"
  install -t "$DIST/share/gpumem" "$ROOT"/tests/gpu/{frameworks,framework_parts,gpumem_library}.py
  install -D -t "$DIST/share/gpumem/python" "$ROOT"/tests/gpu/python/*.{py,sh}
  install -D -t "$DIST/share/gpumem/examples" "$ROOT"/client/python/examples/*.py
  install_library "$bin" "$DIST/lib"
  install_preload "$bin" "$DIST/lib/gpumem"
  ln -s gpumemctl "$DIST/bin/gpumem"
}

# Installs the public headers, as <gpumem/...>, and the pkg-config file.
dist_library() {
  install_headers "$DIST/include/gpumem"
  # shellcheck disable=SC2016  # pkg-config's variable
  pkg_config_file "$1" '${pcfiledir}/../..' lib >"$DIST/lib/pkgconfig/gpumem.pc"
}

# The installer, and what it installs beside programs and libraries.
dist_deployment() {
  local deploy=$ROOT/deploy share=$DIST/share/gpumem
  install "$deploy/tarball/install.sh" "$DIST/"
  install -m 644 "$deploy/tarball/install_checks.sh" "$share/"
  install -m 644 "$ROOT/LICENSE" "$DIST/"
  install -m 644 "$deploy/gpumemd.toml" "$DIST/etc/"
  install -D -m 644 -t "$share/systemd" "$deploy"/systemd/*.{service,socket,conf}
  install -D -m 644 -t "$share/systemd/drop-ins" "$deploy"/systemd/drop-ins/*
  install -D -m 644 -t "$share/prometheus" "$deploy"/prometheus/*
  install -D -m 644 -t "$share/grafana" "$deploy"/grafana/*
}

# Copies the shared libraries that the programs and the library need, except those of the C library.
dist_bundled_libraries() {
  local path paths
  paths=$(ldd "$DIST"/bin/* "$DIST/lib/libgpumem.so" "$DIST/lib/gpumem/libgpumem-relocator.so" |
    awk '$2 == "=>" {print $3}' | sort -u)
  for path in $paths; do
    case ${path##*/} in
      libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.*) ;;
      libstdc++.so.* | libgcc_s.so.*) install -m 644 "$path" "$DIST/lib/gpumem/c++/" ;;
      *) install -m 644 "$path" "$DIST/lib/gpumem/" ;;
    esac
  done
}

# dist_wheel VERSION: makes the Python package, which contains the client library and its libraries.
dist_wheel() {
  bazel build --config=dist-bundled //client/python:site
  local bin path
  local -a libraries=()
  bin=$(bazel_bin --config=dist-bundled)
  for path in $(ldd "$DIST/lib/libgpumem.so" | awk '$2 == "=>" {print $3}' | sort -u); do
    path=$DIST/lib/gpumem/${path##*/}
    [[ ! -e $path ]] || libraries+=("$path")
  done
  "$ROOT/client/python/make_wheel.sh" "$bin/client/python/site" "$1" "$DIST" "$DIST/licenses" \
    "${libraries[@]}"
}

# Prints the Debian packages of the libraries that the release contains, in whole or in part.
dist_libraries() {
  local package
  printf '%s\n' libboost1.74-dev libc-ares-dev libfmt-dev libgrpc-dev libre2-dev libzycore-dev zlib1g-dev libstdc++6
  for package in "${BUILD_PACKAGES[@]}"; do
    case $package in
      # The release contains no part of these; libboost-dev only names the package of Boost's headers.
      libpython3-dev | libslurm-dev | libcpp-httplib-dev | libboost-dev) ;;
      lib* | *-dev) echo "$package" ;;
    esac
  done
}

# dist_contents VERSION: prints what the release's archive contains, as SPDX.
dist_contents() {
  local -a linked
  mapfile -t linked < <(dist_libraries)
  "$ROOT/deploy/release/sbom.py" "$DIST" "$ROOT/client/web/page/package-lock.json" "$1" \
    "$SOURCE_DATE_EPOCH" "${linked[@]}"
}

# Installs the licences of the libraries that the release contains.
dist_licenses() {
  local -a libraries
  mapfile -t libraries < <(dist_libraries)
  install_licenses "$DIST/licenses" "${libraries[@]}"
}
