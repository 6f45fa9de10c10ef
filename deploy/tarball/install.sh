#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh: installs the release whose folder it lies in (--help). Keeps a list of the files that it
# installs, and changes or removes no others.
set -euo pipefail
shopt -s inherit_errexit
umask 022

SOURCE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
readonly SOURCE
readonly GLIBC=2.34 GLIBC_OF_CXX=2.36 MACHINE=x86_64
readonly UNITS=/etc/systemd/system UNIT=/etc/systemd/system/gpumemd.service
# This file lies in the release's folder, or as an installed copy in PREFIX/share/gpumem.
if [[ -e $SOURCE/manifest ]]; then PARTS=$SOURCE; else PARTS=$SOURCE/share/gpumem; fi
readonly PARTS HIDDEN='^/(home|root|run/user|tmp|var/tmp)/'
# shellcheck source=deploy/tarball/install_checks.sh
source "$PARTS/install_checks.sh"

usage() {
  cat <<'END'
usage: install.sh [OPTIONS]

Installs gpumem for all users (as root), or for one user below a prefix that the user may write to.
Run again, or from a newer release, it upgrades. Files that others installed or changed stay as they
are.

  --prefix DIR       install below DIR (default: as root /usr/local, else ~/.local)
  --sysconfdir DIR   configuration (default: /etc for /usr and /usr/local, else PREFIX/etc; an upgrade
                     takes what there was)
  --systemd          also install systemd units, enable and start them
  --keeper           also install gpumemd-kept, which runs the daemon under gpumem-keeper
  --no-service       install neither
  --destdir DIR      install into DIR/PREFIX, to make a package or an image; start nothing
  --uninstall        remove the installation below the prefix
  --dry-run          print what would be done
  --help             print this text

The default is --systemd for root where systemd runs, else --keeper; an upgrade takes what there was.
END
}

say() { echo "install.sh: $*"; }
die() { say "error: $*" >&2; exit 1; }

# --- Options ---
prefix='' sysconfdir='' destdir='' service='' uninstall='' dry_run=''

read_options() {
  local option value
  while (($#)); do
    option=${1%%=*} value=''
    case $1 in
      --prefix | --prefix=* | --sysconfdir | --sysconfdir=* | --destdir | --destdir=*)
        [[ $1 != *=* ]] || value=${1#*=}
        [[ $1 == *=* ]] || { value=${2:-} && shift; }
        [[ $value == /* && $value != *$'\n'* ]] || die "$option needs an absolute path, not '$value'"
        value=$(realpath -ms -- "$value")
        [[ $value != / ]] || value='' # paths are appended to it
        [[ -n $value || $option == --destdir ]] || die "$option cannot be /"
        printf -v "${option#--}" %s "$value"
        ;;
      --systemd | --keeper | --no-service) service=${1#--} ;;
      --uninstall) uninstall=1 ;;
      --dry-run) dry_run=1 ;;
      --help | -h) usage && exit 0 ;;
      *) usage >&2 && exit 2 ;;
    esac
    shift
  done
}

set_prefix() {
  if [[ -z $prefix ]] && is_installed_copy; then
    # As it was given: a link may lead to it.
    prefix=$(sed -n 's,^f [0-9a-f]* \(/.*\)/share/gpumem/install\.sh$,\1,p' "$SOURCE/manifest" | sort -u)
    [[ $prefix == /* && $destdir$prefix/share/gpumem/manifest -ef $SOURCE/manifest ]] ||
      die "$SOURCE/manifest is of another prefix: it was installed with --destdir, or moved"
  elif [[ -n $prefix ]]; then
    :
  elif ((EUID == 0)); then
    prefix=/usr/local
  else
    prefix=${HOME:?name a folder with --prefix}/.local
  fi
  readonly MANIFEST=$prefix/share/gpumem/manifest
}

# Sets the folder of the configuration: by default that of the installation which is there.
set_sysconfdir() {
  sysconfdir=${sysconfdir:-$listed_sysconfdir}
  case $prefix in
    /usr | /usr/local) sysconfdir=${sysconfdir:-/etc} ;;
    *) sysconfdir=${sysconfdir:-$prefix/etc} ;;
  esac
  readonly CONFIGURATION=$sysconfdir/gpumem/gpumemd.toml
}

# True if this is PREFIX/share/gpumem/install.sh, which can only uninstall.
is_installed_copy() { [[ -e $SOURCE/manifest ]]; }

set_service() {
  [[ -z $service ]] || return 0
  if [[ -n ${owned[$UNIT]:-} ]]; then
    service=systemd
  elif [[ -e $destdir$MANIFEST && -z ${owned[$prefix/bin/gpumemd-kept]:-} ]]; then
    service=no-service
  elif ((EUID == 0)) && [[ -z $destdir ]] && systemd_runs && ! hidden_from_unit "$prefix"; then
    service=systemd
  else
    service=keeper
  fi
}

systemd_runs() { [[ -d /run/systemd/system ]]; } # sd_booted(3)
# True if ProtectHome= and PrivateTmp= hide the folder from the daemon.
hidden_from_unit() {
  local real=$1
  [[ -n $destdir ]] || real=$(realpath -m -- "$1")
  [[ $1/ =~ $HIDDEN || $real/ =~ $HIDDEN ]]
}

# --- The files of the release ---
declare -a paths=() # in the order of installing
declare -A from=()  # path -> file
stage=''
half='' # a file that is being written

# Removes the rest of an interrupted step, and the folders of an installation without a list.
clean_up() {
  [[ -z $stage ]] || rm -rf "$stage"
  [[ -z $half ]] || rm -f "$half"
  [[ -n $uninstall || -e $destdir$MANIFEST ]] || drop_folders
}

add() {
  paths+=("$2")
  from[$2]=$1
}

# add_tree FOLDER TARGET: adds all files of a folder of the release.
add_tree() {
  local file
  [[ -d $SOURCE/$1 ]] || die "this release is not complete: there is no $SOURCE/$1"
  while IFS= read -r -d '' file; do
    skips "$1/$file" || add "$SOURCE/$1/$file" "$2/$file"
  done < <(cd "$SOURCE/$1" && find . \( -type f -o -type l \) -printf '%P\0' | sort -z)
}

# True for the C++ runtime where glibc is too old for it: such a system has one that fits.
skips() { [[ $1 == lib/gpumem/c++/* && -z $destdir ]] && older "$(glibc_of_machine)" "$GLIBC_OF_CXX"; }

list_files() {
  local tree share=$prefix/share/gpumem
  for tree in bin include lib share; do add_tree "$tree" "$prefix/$tree"; done
  add_tree licenses "$prefix/share/doc/gpumem/licenses"
  add "$SOURCE/LICENSE" "$prefix/share/doc/gpumem/LICENSE"
  add "$SOURCE/install.sh" "$share/install.sh"
  # Unchanged: to compare with, and to begin again from.
  add "$SOURCE/etc/gpumemd.toml" "$share/gpumemd.toml"
  add "$SOURCE/etc/gpumemd.toml" "$CONFIGURATION"
  stage=$(mktemp -d)
  [[ $service != systemd ]] || list_units
  [[ $service != keeper ]] || list_keeper
}

# The units, with the paths of this installation.
list_units() {
  local file units=share/gpumem/systemd
  for file in "$SOURCE/$units"/gpumem{d*,-web}.{service,socket}; do
    sed -e "s,/usr/sbin/gpumem,$prefix/bin/gpumem," -e "s,/etc/gpumem/gpumemd.toml,$CONFIGURATION," \
      -e "s,/usr/share/doc/gpumem[a-z-]*/examples,$prefix/$units/drop-ins," "$file" >"$stage/${file##*/}"
    add "$stage/${file##*/}" "$UNITS/${file##*/}"
  done
  add "$SOURCE/$units/sysusers.conf" /etc/sysusers.d/gpumemd.conf
  add "$SOURCE/$units/tmpfiles.conf" /etc/tmpfiles.d/gpumemd.conf
}

# quoted TEXT: a word of a shell script.
quoted() { printf "'%s'" "${1//\'/\'\\\'\'}"; }
list_keeper() {
  cat >"$stage/gpumemd-kept" <<END
#!/bin/sh
# Runs gpumemd under gpumem-keeper, which starts it again when it dies and keeps its memory meanwhile.
# Arguments go to gpumemd. SIGTERM ends both; SIGUSR1 starts the daemon again, as after an upgrade.
exec $(quoted "$prefix/bin/gpumem-keeper") -- $(quoted "$prefix/bin/gpumemd") \\
  --config $(quoted "$CONFIGURATION") "\$@"
END
  chmod 755 "$stage/gpumemd-kept"
  add "$stage/gpumemd-kept" "$prefix/bin/gpumemd-kept"
}

# --- Steps ---
run() { if [[ -n $dry_run ]]; then echo "would run: $*"; else "$@"; fi; }
# Makes a folder and its parents, and notes those that were not there.
make_folder() {
  local folder=$1
  local -a missing=()
  [[ -z $destdir ]] || mkdir -p "$destdir"
  while [[ -n $folder && ! -d $destdir$folder ]]; do
    missing=("$folder" "${missing[@]}")
    folder=${folder%/*}
  done
  for folder in "${missing[@]}"; do
    owned_folders+=("$folder")
    [[ ! -e $destdir$MANIFEST ]] || echo "d - $folder" >>"$destdir$MANIFEST"
    # Not -p: in a folder like /tmp another user may make it first.
    mkdir "$destdir$folder"
  done
}

# Replaces a file in one step: a program may be running.
install_file() {
  local source=${from[$1]} new=$destdir$1.gpumem-new
  make_folder "${1%/*}"
  half=$new
  rm -f "$new"
  cp -P "$source" "$new"
  if [[ ! -L $source ]]; then
    if [[ -x $source ]]; then chmod 755 "$new"; else chmod 644 "$new"; fi
  fi
  mv -fT "$new" "$destdir$1"
  half=''
}

# Removes a file of an earlier installation, unless it was changed.
drop() {
  [[ ! -e $destdir$1.gpumem-new ]] || run rm -f "$destdir$1.gpumem-new" # of a run that was killed
  if unchanged "$1"; then run rm -f "$destdir$1"; else
    ! exists "$1" || say "left $destdir$1, which was changed"
  fi
}

# Removes the noted folders that are empty, the deepest first.
drop_folders() {
  local folder
  while IFS= read -r folder; do
    rmdir "$destdir$folder" 2>/dev/null || true
  done < <(printf '%s\n' "${owned_folders[@]}" | sed '/^$/d' | sort -ru)
}

find_libraries() { [[ -n $destdir ]] || ((EUID != 0)) || ! command -v ldconfig >/dev/null || run ldconfig; }

# Stops the service, if this script installed it. A socket alone would start the daemon again.
stop_service() {
  [[ -n ${owned[$UNIT]:-} && -z $destdir ]] && systemd_runs || return 0
  run systemctl disable --quiet --now gpumemd.service gpumemd-{session,admin,view}.socket ||
    say "gpumemd.service could not be stopped"
  [[ -z ${owned[$UNITS/gpumem-web.socket]:-} ]] ||
    run systemctl disable --quiet --now gpumem-web.socket gpumem-web.service ||
    say "gpumem-web.service could not be stopped"
}

install_all() {
  local path folder
  local -A now=()
  check_folders
  check_collisions
  [[ $service == systemd ]] || stop_service
  if [[ -z $dry_run ]]; then
    # The list gets the new files beside the old ones, so that an installation that is interrupted
    # can be repeated, or undone.
    make_folder "${MANIFEST%/*}"
    half=$destdir$MANIFEST.new
    {
      echo "s - $sysconfdir"
      [[ ! -e $destdir$MANIFEST ]] || cat "$destdir$MANIFEST"
      for folder in "${owned_folders[@]}"; do echo "d - $folder"; done
      for path in "${paths[@]}"; do keeps "$path" || manifest_line "${from[$path]}" "$path"; done
    } >"$half"
    mv -f "$half" "$destdir$MANIFEST"
    half=''
  fi
  for path in "${paths[@]}"; do
    now[$path]=1
    if keeps "$path"; then
      say "kept $destdir$path, which was changed; the release's is $destdir$prefix/share/gpumem/gpumemd.toml"
    elif [[ -n $dry_run ]]; then
      echo "would install: $destdir$path"
    else
      install_file "$path"
    fi
  done
  # Files of the release before that this one does not have.
  for path in "${!owned[@]}"; do
    [[ -n ${now[$path]:-} ]] || drop "$path"
  done
  if [[ -z $dry_run ]]; then
    read_manifest # with the sums of the new files
    write_manifest
    drop_folders
  fi
}

start_service() {
  [[ $service == systemd && -z $destdir ]] || return 0
  run systemd-sysusers /etc/sysusers.d/gpumemd.conf
  run systemd-tmpfiles --create /etc/tmpfiles.d/gpumemd.conf
  systemd_runs || return 0
  run systemctl daemon-reload
  run systemctl enable --quiet gpumemd.service
  # A restart keeps the memory, and starts a daemon that does not run.
  run systemctl restart gpumemd.service
  # Of the page, if it is looked at. The administrator enables its socket.
  run systemctl try-restart gpumem-web.service
}

explain() {
  local version
  version=$(sed -n 's/^Version: //p' "$SOURCE/lib/pkgconfig/gpumem.pc")
  say "gpumem $version is installed in $destdir$prefix"
  [[ -z $destdir ]] || return 0
  say "remove it with $prefix/share/gpumem/install.sh --uninstall"
  [[ $service != systemd ]] || say "it runs as gpumemd.service; ask it with $prefix/bin/gpumemctl status"
  [[ $service != keeper ]] ||
    say "start it with $prefix/bin/gpumemd-kept; after an upgrade send its gpumem-keeper SIGUSR1"
  [[ :$PATH: == *":$prefix/bin:"* ]] || say "$prefix/bin is not in PATH"
}

uninstall_all() {
  local path
  [[ -e $destdir$MANIFEST ]] || die "nothing is installed in $destdir$prefix: there is no $destdir$MANIFEST"
  check_folders
  stop_service
  for path in "${!owned[@]}"; do drop "$path"; done
  run rm -f "$destdir$MANIFEST" "$destdir$MANIFEST.new"
  [[ -n $dry_run ]] || drop_folders
  if [[ -n ${owned[$UNIT]:-} && -z $destdir ]] && systemd_runs; then run systemctl daemon-reload; fi
  find_libraries
  [[ -n $dry_run ]] || say "gpumem is removed from $destdir$prefix"
}

read_options "$@"
set_prefix
read_manifest
set_sysconfdir
set_service
if [[ -n $uninstall ]]; then
  uninstall_all
  exit
fi
! is_installed_copy || die "this copy can only --uninstall: run install.sh of a release's folder"
trap clean_up EXIT
check_machine
check_service
list_files
install_all
find_libraries
start_service
[[ -n $dry_run ]] || explain
