# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./run image: a container image in dist/. Sourced by `run`.

# Makes a container image from the packages of `./run deb` (deploy/container).
run_image() {
  local package
  if package=$(compgen -G "$DIST/deb/gpumemd_*.deb"); then
    # The packages may come from another machine: their build decides.
    if ! host_only && nvidia_driver &&
      [[ $(dpkg-deb -f "$package" Description) == *"$WITHOUT_CUDA"* ]]; then
      die "this machine has an NVIDIA driver, but the packages in dist/deb cannot use it" \
        "($WITHOUT_CUDA): make packages with the CUDA toolkit (./run deb). For an image that uses" \
        "host memory only, pass --host-only, or set GPUMEM_HOST_ONLY=1"
    fi
  else
    require_cuda
    die "dist/deb has no packages: make them with ./run deb"
  fi
  ((EUID == 0)) || die "./run image must run as root: it makes a Debian system and runs containers"
  setup "${IMAGE_PACKAGES[@]}" "${TIME_PACKAGES[@]}"
  ensure_home
  bazel build //tests/system:container_test
  local bin version
  bin=$(bazel_bin)
  version=$(version)
  reproducible_environment
  "$ROOT/deploy/container/build.sh" "$DIST/deb" "gpumem:$version" \
    "$DIST/gpumem-$version-image.tar" "$bin/tests/system/container_test"
  du -h "$DIST/gpumem-$version-image.tar"
}
