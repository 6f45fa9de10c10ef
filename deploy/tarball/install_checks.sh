# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154  # install.sh sets the options
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

# --- The list of installed files ---
# A line is `f SHA256 PATH`, `l TARGET PATH` for a link, or `d - PATH`. Paths are without --destdir.
declare -A owned=() # path -> the sums or targets that were installed there, with blanks between
declare -a owned_folders=()

read_manifest() {
  [[ -e $destdir$MANIFEST ]] || return 0
  local type sum path
  while read -r type sum path; do
    if [[ $type == d ]]; then owned_folders+=("$path"); else owned[$path]+=" $sum"; fi
  done <"$destdir$MANIFEST"
  # Its paths may be those of another installation.
  [[ -n ${owned[$prefix/share/gpumem/install.sh]:-} ]] ||
    die "$destdir$MANIFEST is of another prefix: it was installed with --destdir, or moved"
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
  [[ -L $destdir$1 || -f $destdir$1 ]] && [[ " ${owned[$1]:-} " == *" $(sum_of "$destdir$1") "* ]]
}

# True if the path is the configuration, changed by an administrator.
keeps() { [[ $1 == "$CONFIGURATION" ]] && exists "$1" && ! unchanged "$1"; }

write_manifest() {
  local path sum
  {
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
