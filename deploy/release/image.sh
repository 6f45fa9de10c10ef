# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./run image: a container image in dist/. Sourced by `run`.

# A container image of the packages (deploy/container), which have to be there: ./run deb.
run_image() {
  local package
  if package=$(compgen -G "$DIST/deb/gpumemd_*.deb"); then
    # How they were built decides, perhaps on another machine.
    if ! host_only && nvidia_driver &&
      [[ $(dpkg-deb -f "$package" Description) == *"$WITHOUT_CUDA"* ]]; then
      die "here is an NVIDIA driver, and the packages in dist/deb are of the $WITHOUT_CUDA: make" \
        "others with the CUDA toolkit (./run deb). If host memory is what you want, say so:" \
        "--host-only, or GPUMEM_HOST_ONLY=1"
    fi
  else
    require_cuda
    die "no packages in dist/deb: ./run deb"
  fi
  ((EUID == 0)) || die "image makes a Debian and runs containers: as root"
  setup "${IMAGE_PACKAGES[@]}"
  ensure_home
  bazel build //tests/system:container_test
  local bin version
  bin=$(bazel_bin)
  version=$(version)
  "$ROOT/deploy/container/build.sh" "$DIST/deb" "gpumem:$version" \
    "$DIST/gpumem-$version-image.tar" "$bin/tests/system/container_test"
  du -h "$DIST/gpumem-$version-image.tar"
}
