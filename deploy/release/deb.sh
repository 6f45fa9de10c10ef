# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2153,SC2164  # `run` sets ROOT and `set -e`
# ./run deb: Debian packages in dist/deb/. Sourced by `run`.

# Makes the Debian packages (deploy/debian): debhelper packs the programs that Bazel builds.
run_deb() {
  require_cuda
  setup "${DEB_PACKAGES[@]}" "${TIME_PACKAGES[@]}" binutils chrpath
  ensure_home
  local version
  version=$(version)
  [[ $(dpkg-parsechangelog -l "$ROOT/deploy/debian/changelog" -S Version) == "$version"-* ]] ||
    die "deploy/debian/changelog has no entry for version $version (common/version.h)"

  bazel build --config=dist-deb //daemon:gpumemd //daemon/keeper:gpumem-keeper \
    //client/cli:gpumemctl //client/cli:gpumemctl_reference //client:libgpumem.so \
    //client/kubernetes/device_plugin:gpumem-device-plugin \
    //client/slurm:gpumem-slurm //client/slurm/spank:spank_gpumem.so \
    //client/kubernetes:gpumem-kubelet-plugin //client/kubernetes/dra:gpumem-dra-driver \
    //client/web:gpumem-web \
    "${PRELOAD_TARGETS[@]}"
  local bin work package
  bin=$(bazel_bin --config=dist-deb)
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # the present value
  trap "rm -rf '$work'" EXIT
  pack_debs "$work/once" "$bin" "$version"
  pack_debs "$work/twice" "$bin" "$version"
  for package in "$work"/once/*.deb; do
    cmp "$package" "$work/twice/${package##*/}" >&2 || die "${package##*/}, packed again, has other bytes"
  done

  rm -rf "$DIST/deb"
  mkdir -p "$DIST/deb"
  install -m 644 "$work"/once/*.{deb,changes,buildinfo} "$DIST/deb/"
  deb_contents "$version" >"$work/contents"
  install -m 644 "$work/contents" "$DIST/deb/gpumem-$version-deb.spdx.json"
  "$ROOT/tests/deb/deb_test.sh" "$DIST/deb"
  "$bin/daemon/gpumemd" --version | sed 's/^/deb: /'
  (cd "$DIST/deb" && du -h -- *.deb)
}

# pack_debs WORK BIN VERSION: makes the packages in the folder WORK. The same files make the same bytes.
pack_debs() {
  reproducible_environment
  mkdir -p "$1/gpumem"
  cp -r "$ROOT/deploy/debian" "$1/gpumem/debian"
  deb_root "$1/gpumem/root" "$2" "$3"
  (cd "$1/gpumem" && dpkg-buildpackage -b -us -uc >"$1/log" 2>&1) ||
    { cat "$1/log" >&2 && die "the packages could not be made"; }
}

# deb_contents VERSION: prints what the packages contain, and the libraries that they use, as SPDX.
deb_contents() {
  local package
  local -a used
  mapfile -t used < <(for package in "$DIST"/deb/*.deb; do
    dpkg-deb -f "$package" Depends | tr , '\n' | awk '$1 ~ /^lib/ && $1 !~ /^libgpumem|-dev$/ {print $1}'
  done | sort -u)
  "$ROOT/deploy/release/sbom.py" "$DIST/deb" "$ROOT/client/web/page/package-lock.json" "$1" \
    "$SOURCE_DATE_EPOCH" "${INSIDE_PACKAGES[@]}" --dynamic "${used[@]}"
}

# deb_root ROOT BIN VERSION: lays out the packages' files below ROOT.
deb_root() {
  local root=$1 bin=$2 lib package
  lib=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
  mkdir -p "$root"/usr/{bin,sbin,include/gpumem,share/gpumem} \
    "$root/usr/lib/"{sysusers,tmpfiles}.d "$root/lib/systemd/system" "$root/$lib/pkgconfig"
  install "$bin/daemon/gpumemd" "$bin/daemon/keeper/gpumem-keeper" "$root/usr/sbin/"
  install "$bin/client/cli/gpumemctl" "$root/usr/bin/"
  ln -s gpumemctl "$root/usr/bin/gpumem"
  install_library "$bin" "$root/$lib"
  install_preload "$bin" "$root/$lib/gpumem"
  install_headers "$root/usr/include/gpumem"
  pkg_config_file "$3" /usr "${lib#usr/}" >"$root/$lib/pkgconfig/gpumem.pc"

  cd "$ROOT/deploy"
  install -D -m 644 gpumemd.toml "$root/etc/gpumem/gpumemd.toml"
  # An unchanged copy, for comparison and for a new start.
  install -m 644 gpumemd.toml "$root/usr/share/gpumem/"
  install -m 644 systemd/gpumemd* "$root/lib/systemd/system/"
  install -m 644 systemd/sysusers.conf "$root/usr/lib/sysusers.d/gpumemd.conf"
  install -m 644 systemd/tmpfiles.conf "$root/usr/lib/tmpfiles.d/gpumemd.conf"
  install -D -m 644 -t "$root/usr/share/doc/gpumemd/examples" systemd/drop-ins/[!g]*
  install -D -m 644 -t "$root/usr/share/gpumem/prometheus" prometheus/*
  rm "$root"/usr/share/gpumem/prometheus/*_test.yml
  install -D -m 644 -t "$root/usr/share/gpumem/grafana" grafana/*

  install_slurm "$root" "$bin"
  install_kubernetes "$root" "$bin"
  install_device_plugin "$root" "$bin"
  install_web "$root" "$bin"
  install_reference "$root/usr/share" zsh/vendor-completions "$bin/client/cli/gpumemctl_reference"
  install_schemas "$root/usr/share/gpumem/schema"
  # The licences of libraries without a shared object: the programs contain their code.
  for package in gpumemd gpumem-tools gpumem-slurm gpumem-kubernetes gpumem-web libgpumem1; do
    install_licenses "$root/usr/share/doc/$package/libraries" "${INSIDE_PACKAGES[@]}"
  done
  cd "$ROOT"
}

# install_device_plugin ROOT BIN: the device plug-in of nodes. install_kubernetes has its manifests.
install_device_plugin() {
  install "$2/client/kubernetes/device_plugin/gpumem-device-plugin" "$1/usr/sbin/"
  install -D -m 644 -t "$1/usr/share/man/man8" \
    "$ROOT/deploy/kubernetes/device-plugin/gpumem-device-plugin.8"
}

# install_web ROOT BIN: the program of the page, and its units. install_reference has its man page.
install_web() {
  install "$2/client/web/gpumem-web" "$1/usr/sbin/"
  install -D -m 644 -t "$1/lib/systemd/system" "$ROOT"/deploy/systemd/gpumem-web.*
  install -D -m 644 "$ROOT/deploy/systemd/web-sysusers.conf" \
    "$1/usr/lib/sysusers.d/gpumem-web.conf"
  install -D -m 644 -t "$1/usr/share/doc/gpumem-web/examples" \
    "$ROOT"/deploy/systemd/drop-ins/gpumem-web-*
}

# install_slurm ROOT BIN: the plug-in of Slurm, its program, and examples that Slurm does not read from
# there: as soon as it reads plugstack.conf, no job starts without the plug-in.
install_slurm() {
  local share=$1/usr/share/gpumem/slurm
  install -D "$2/client/slurm/gpumem-slurm" "$1/usr/libexec/gpumem/gpumem-slurm"
  ln -s ../libexec/gpumem/gpumem-slurm "$1/usr/sbin/gpumem-slurm"
  install -D -m 644 "$2/client/slurm/spank/spank_gpumem.so" "$1/usr/lib/gpumem/spank_gpumem.so"
  install -D -m 644 -t "$share" "$ROOT"/deploy/slurm/*.{conf,lua}
  install -m 755 "$ROOT"/deploy/slurm/*.sh "$share/"
  install -D -m 644 "$ROOT/deploy/slurm/gpumem-slurm.8" "$1/usr/share/man/man8/gpumem-slurm.8"
}

# install_kubernetes ROOT BIN: the programs of nodes, their units, and their manifests as examples.
install_kubernetes() {
  local kubernetes=$ROOT/deploy/kubernetes manifest
  install "$2/client/kubernetes/gpumem-kubelet-plugin" \
    "$2/client/kubernetes/dra/gpumem-dra-driver" "$1/usr/sbin/"
  (cd "$kubernetes" && find . -name '*.yaml') | while read -r manifest; do
    install -D -m 644 "$kubernetes/$manifest" "$1/usr/share/gpumem/kubernetes/$manifest"
  done
  install -D -m 644 -t "$1/usr/share/man/man8" "$kubernetes"/{plugin,dra}/*.8
  install -D -m 644 -t "$1/lib/systemd/system" "$kubernetes"/systemd/*.service
  install -D -m 644 "$kubernetes/systemd/kubernetes.env" "$1/etc/gpumem/kubernetes.env"
  install -D -m 644 "$kubernetes/systemd/sysusers.conf" \
    "$1/usr/lib/sysusers.d/gpumem-kubernetes.conf"
}
