# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2153,SC2164  # `run` sets ROOT and `set -e`
# ./run reproduce: builds the last commit twice from nothing, and compares the bytes. Sourced by `run`.

# The second build has another folder, home, time zone, locale, umask and environment, and its packers
# have a date 40 days ahead. As root it also has another user and host name.
run_reproduce() {
  local -a what=("$@")
  (($#)) || what=(dist)
  setup git dpkg-dev faketime diffoscope-minimal
  require_cuda
  [[ -z $(changes) ]] || say "only the last commit is built, without the changes since then"
  local work=${GPUMEM_REPRODUCE_HOME:-} epoch
  if [[ -n $work ]]; then mkdir -p "$work"; else work=$(mktemp -d /var/tmp/gpumem-reproduce-XXXXXX); fi
  epoch=$(unset SOURCE_DATE_EPOCH && source_date_epoch)
  local one=$work/one other=$work/another-with-a-longer-name
  local -a common=(env -i PATH="$PATH" CUDA_HOME="$(cuda_home)" GPUMEM_HOST_ONLY="${GPUMEM_HOST_ONLY:-}"
    SOURCE_DATE_EPOCH="$epoch")
  local -a first=("${common[@]}" HOME="$one/home" USER="$(id -un)" LC_ALL=C.UTF-8 TZ=UTC)
  local -a second=("${common[@]}" HOME="$other/home" USER=nobody PATH="$other/bin:$PATH"
    TZ=Pacific/Kiritimati LANG=tr_TR.UTF-8 LC_ALL=C TAR_OPTIONS=--verbose COLUMNS=40)
  ((EUID != 0)) || second+=(unshare --uts "$BASH" -c
    'hostname elsewhere && exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"' -)

  checkout "$one" && checkout "$other"
  fake_dates "$other/bin"
  chmod 755 "$work"
  ((EUID != 0)) || chown -R nobody:nogroup "$other"
  local failed=0
  (umask 022 && cd "$one/tree" && build_once "${first[@]}") &&
    (umask 002 && cd "$other/tree" && build_once "${second[@]}") || failed=1
  ((failed == 0)) || die "a build has failed; its files are in $work"
  compare_builds || die "the builds differ; their files are in $work"
  [[ -n ${GPUMEM_REPRODUCE_HOME:-} ]] || remove_tree "$work"
}

# checkout FOLDER: puts the last commit into FOLDER/tree, with a home beside it.
checkout() {
  rm -rf "$1/tree" # an earlier home may stay
  mkdir -p "$1/tree" "$1/home"
  checkout_git archive HEAD | tar -x -C "$1/tree"
  # Whatever the machine's bazelrc says: nothing comes from an earlier build.
  echo "build --disk_cache= --remote_cache= --noremote_accept_cached" >"$1/home/.bazelrc"
}

# fake_dates BIN: programs in BIN that pack with another date.
fake_dates() {
  local tool
  mkdir -p "$1"
  for tool in ar dpkg-buildpackage gzip tar; do
    printf '#!/bin/sh\nexec faketime -f +40d %s "$@"\n' "$(command -v "$tool")" >"$1/$tool"
    chmod 755 "$1/$tool"
  done
}

# build_once COMMAND...: builds $what in the present folder, by a command that sets the environment.
build_once() {
  local each
  for each in "${what[@]}"; do
    case $each in
      dist | deb) "$@" ./run "$each" || return ;;
      *) "$@" bazel build --config=dist-static "$each" || return ;;
    esac
  done
  "$@" bazel info bazel-bin --config=dist 2>/dev/null >.bazel-bin
  "$@" bazel shutdown
}

# Compares what was built: the folders dist, and each file that Bazel has made.
compare_builds() {
  local status=0 bin_one bin_other
  read -r bin_one <"$one/tree/.bazel-bin"
  read -r bin_other <"$other/tree/.bazel-bin"
  compare_folders "objects and programs" "$bin_one" "$bin_other" || status=1
  [[ ! -d $one/tree/dist ]] || compare_folders "dist" "$one/tree/dist" "$other/tree/dist" || status=1
  return $status
}

# compare_folders NAME ONE OTHER: names the files that differ, and shows how the first does.
compare_folders() {
  local differing
  differing=$(diff <(sums_below "$2") <(sums_below "$3") | awk '/^[<>]/ {print $3}' | sort -u || true)
  if [[ -z $differing ]]; then
    say "$1: $(sums_below "$2" | wc -l) files have the same bytes"
    return 0
  fi
  say "$1: these differ:" "$(head -n 20 <<<"$differing" | paste -s -d ' ')"
  diffoscope --max-text-report-size 4000 "$2/${differing%%$'\n'*}" "$3/${differing%%$'\n'*}" >&2 || true
  return 1
}

# sums_below FOLDER: checksums by name. Manifests of runfiles have absolute paths, and are not packed.
# A .buildinfo is there to record date and environment of its build, and .changes has its checksum.
sums_below() {
  (cd "$1" && find . -type f ! -iname '*manifest' ! -name '*.buildinfo' ! -name '*.changes' -print0 |
    sort -z | xargs -0r sha256sum)
}

# remove_tree FOLDER: Bazel write-protects its outputs.
remove_tree() {
  chmod -R u+w "$1"
  rm -rf "$1"
}
