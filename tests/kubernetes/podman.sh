#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# podman.sh WORK CDI GROUP PROGRAM ARGUMENTS...: runs `podman run ARGUMENTS...` with a new container whose
# root file system has PROGRAM, sh, and a few tools. podman reads the CDI files of the folder CDI, and
# no others of this machine. Its files are in the folder WORK. The container joins the control group
# whose cgroup.procs is GROUP.
#
# Called with "inside" first, it is in a new mount namespace.
set -eu

copy() { # FILE: copies a program and its libraries into the root file system
  for file in "$1" $(ldd "$1" | grep -o '/[^ ]*'); do
    mkdir -p "$WORK/root$(dirname "$file")"
    cp -L "$file" "$WORK/root$file"
  done
}

if [ "$1" != inside ]; then
  WORK=$1
  if [ ! -d "$WORK/root" ]; then
    mkdir -p "$WORK/root/proc" "$WORK/root/dev" "$WORK/root/sys" "$WORK/root/run" "$WORK/root/tmp" \
      "$WORK/root/etc"
    copy /bin/sh
    copy /bin/cat
    copy /usr/bin/env
    copy "$4"
    mv "$WORK/root$4" "$WORK/root/bin/program"
  fi
  exec unshare --mount -- "$0" inside "$@"
fi
WORK=$2 CDI=$3 GROUP=$4
shift 5
echo 0 >"$GROUP"
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir /run/cdi
mount --bind "$CDI" /run/cdi
[ ! -d /etc/cdi ] || mount -t tmpfs tmpfs /etc/cdi
# crun takes no machine with both versions of control groups. It makes none here.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec podman --root "$WORK/store" --runroot /run/podman --tmpdir /run/podman-tmp --storage-driver vfs \
  --cgroup-manager cgroupfs --events-backend none run --rm --network none --cgroups disabled \
  --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --security-opt seccomp=unconfined "$@"
