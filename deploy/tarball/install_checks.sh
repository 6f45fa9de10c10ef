# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2153,SC2154  # install.sh has the options and constants
# The checks of install.sh, and its list of installed files. Sourced by install.sh.

# --- What it refuses ---
glibc_of_machine() { getconf GNU_LIBC_VERSION 2>/dev/null | awk '{print $2}' || true; }

# older A B: true if version A is older than B.
older() { [[ $1 != "$2" && $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

check_machine() {
  # A package or an image is for another machine.
  [[ -z $destdir ]] || return 0
  local machine glibc
  machine=$(uname -m)
  [[ $machine == "$MACHINE" ]] || die "this release is for $MACHINE, and this machine is $machine"
  glibc=$(glibc_of_machine)
  [[ -n $glibc ]] || die "this release needs glibc $GLIBC or newer, and this system has another C library"
  ! older "$glibc" "$GLIBC" || die "this release needs glibc $GLIBC or newer, and this system has $glibc"
}

check_service() {
  [[ $service == systemd ]] || return 0
  [[ -n $destdir ]] || ((EUID == 0)) || die "--systemd installs for the machine: as root, or take --keeper"
  ! hidden_from_unit "$prefix" ||
    die "the unit of systemd has no access to $prefix: take another --prefix, or --keeper"
  local plain='^[A-Za-z0-9/._+-]*$'
  [[ $prefix$sysconfdir =~ $plain ]] || die "a unit of systemd cannot name $prefix or $sysconfdir"
  [[ ! -e $destdir/lib/systemd/system/gpumemd.service && ! -e $destdir/usr/lib/systemd/system/gpumemd.service ]] ||
    die "a package has installed gpumemd.service: remove the package first, or take --no-service"
}

# Refuses before anything is changed.
check_collisions() {
  local path
  local -a foreign=()
  for path in "${paths[@]}"; do
    if exists "$path" && [[ -z ${owned[$path]:-} && $path != "$CONFIGURATION" ]]; then
      foreign+=("  $destdir$path")
    fi
  done
  ((${#foreign[@]} == 0)) || die "these files are there, and this script did not install them: move them" \
    "away, or take another --prefix"$'\n'"$(printf '%s\n' "${foreign[@]}")"
}

# Refuses folders in which another user could replace files, or that lead out of --destdir.
check_folders() {
  local path folder real root
  local -A seen=()
  root=$(realpath -m -- "$destdir/")
  for path in "${paths[@]}" "${!owned[@]}" "$MANIFEST"; do
    folder=${path%/*}
    [[ -z ${seen[$folder]:-} ]] || continue
    seen[$folder]=1
    real=$(realpath -m -- "$destdir$folder")
    if [[ -n $destdir ]]; then
      [[ $real/ == "${root%/}"/* ]] || die "$destdir$folder leads to $real, out of $destdir"
    elif ((EUID == 0)); then
      check_owners "$real"
    fi
  done
}

# check_owners FOLDER: checks the folder and those above it, as far as they are there.
check_owners() {
  local folder=$1 owner mode system
  system=$(stat -c %u /) # not root where a namespace lacks that user
  while [[ -n $folder ]]; do
    if [[ -d $folder ]]; then
      read -r owner mode < <(stat -c '%u %a' -- "$folder")
      ((owner == EUID || owner == system)) ||
        die "$folder belongs to another user (uid $owner), who could replace the files:" \
          "run this as that user, or take another --prefix"
      # In a folder like /tmp, only its owner can replace a file.
      ((!(8#$mode & 8#0002) || 8#$mode & 8#1000)) ||
        die "every user can write to $folder, and could replace the files: take another --prefix"
    fi
    folder=${folder%/*}
  done
}

# --- The list of installed files ---
# A line is `f SHA256 PATH`, `l TARGET PATH` for a link, `d - PATH` for a folder, or `s - PATH` for
# --sysconfdir. Paths are without --destdir.
declare -A owned=() # path -> the sums or targets that were installed there, with blanks between
declare -a owned_folders=()
listed_sysconfdir=''

read_manifest() {
  [[ -e $destdir$MANIFEST ]] || return 0
  local list type sum path
  local -a folders=()
  list=$(cat "$destdir$MANIFEST")
  # Its paths may be those of another installation.
  [[ $list$'\n' == *" $prefix/share/gpumem/install.sh"$'\n'* ]] ||
    die "$destdir$MANIFEST is of another prefix: it was installed with --destdir, or moved"
  while read -r type sum path; do
    case $type in
      s) listed_sysconfdir=$path ;;
      d) folders+=("$path") ;;
      [fl]) may_own "$path" && owned[$path]+=" $sum" ;;
      *) false ;;
    esac || die "$destdir$MANIFEST names '$path', which no installation in $prefix has"
  done <<<"$list"
  for path in "${folders[@]}"; do
    ! may_own_folder "$path" || owned_folders+=("$path")
  done
}

# True if an installation below the prefix can have this file. The list may be the work of another user.
may_own() {
  [[ $1 == /* && $1/ != */../* ]] || return 1
  [[ $1 == "$prefix"/* || $1 == /*/gpumem/gpumemd.toml || $1 == "$UNITS"/gpumemd* ||
    $1 == "$UNITS"/gpumem-web.* || $1 == /etc/sysusers.d/gpumemd.conf || $1 == /etc/tmpfiles.d/gpumemd.conf ]]
}

# True if the folder is below the prefix, or contains a file of the list.
may_own_folder() {
  local path
  [[ $1 == /* && $1/ != */../* ]] || return 1
  [[ $1 != "$prefix"/* ]] || return 0
  for path in "${!owned[@]}"; do
    [[ $path != "$1"/* ]] || return 0
  done
  return 1
}

exists() { [[ -e $destdir$1 || -L $destdir$1 ]]; }
# sum_of FILE: its sum, or the target of a link.
sum_of() { if [[ -L $1 ]]; then readlink "$1"; else sha256sum <"$1" | cut -d ' ' -f 1; fi; }
# manifest_line FILE PATH
manifest_line() {
  local sum type=f
  sum=$(sum_of "$1")
  [[ ! -L $1 ]] || type=l
  echo "$type $sum $2"
}

# True if a file is there as it was installed.
unchanged() {
  local sum
  [[ -L $destdir$1 || -f $destdir$1 ]] && sum=$(sum_of "$destdir$1") && [[ " ${owned[$1]:-} " == *" $sum "* ]]
}

# True if the path is the configuration, changed by an administrator.
keeps() { [[ $1 == "$CONFIGURATION" ]] && exists "$1" && ! unchanged "$1"; }

write_manifest() {
  local path sum
  {
    echo "s - $sysconfdir"
    printf '%s\n' "${owned_folders[@]}" | sed -n 's/^./d - &/p'
    for path in "${paths[@]}"; do
      if keeps "$path"; then
        for sum in ${owned[$path]:-}; do echo "f $sum $path"; done
      else
        manifest_line "$destdir$path" "$path"
      fi
    done
  } | sort -u >"$destdir$MANIFEST.new"
  mv -f "$destdir$MANIFEST.new" "$destdir$MANIFEST"
}
