# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./run rpm: an RPM package in dist/rpm/. Sourced by `run`.

# An RPM package (deploy/rpm) of the release, which has to be there: ./run dist.
run_rpm() {
  [[ -x $DIST/install.sh ]] || die "no release in dist: ./run dist"
  setup rpm cpio "${TIME_PACKAGES[@]}"
  local version
  version=$(version)
  rm -rf "$DIST/rpm"
  mkdir -p "$DIST/rpm"
  pack_rpm "$DIST" "$version" "$DIST/rpm"
  "$ROOT/tests/dist/rpm_test.sh" "$DIST/rpm/gpumem-$version-1.x86_64.rpm" "$version"
}

# pack_rpm DIST VERSION OUT: the same files make the same bytes.
pack_rpm() (
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # of now
  trap "rm -rf '$work'" EXIT
  reproducible_environment
  export HOME=$work # without the user's ~/.rpmmacros
  built=$("$1/bin/gpumemd" --version | sed 's/.*(\(.*\))/\1/')
  rpmbuild -bb --quiet --target x86_64 --define "_topdir $work" --define "_rpmdir $work" \
    --define "_dbpath $work/db" --define "release_dir $1" --define "release_version $2" \
    --define "built_with $built" --define "_buildhost reproducible" \
    --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
    "$ROOT/deploy/rpm/gpumem.spec" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
  install -m 644 "$work"/x86_64/*.rpm "$3/"
)
