// SPDX-License-Identifier: Apache-2.0
// The machine's names of control groups, for a daemon in a separate cgroup namespace.
//
// Container managers give containers such namespaces. Kubernetes does so on cgroup v2, and no
// setting of a pod short of "privileged" changes it. There /proc/PID/cgroup names groups relative
// to the daemon's group, "/../../kubepods-burstable.slice/…", and not relative to the machine's
// root (cgroup_namespaces(7)).
// The machine's names are still available if the machine's /sys/fs/cgroup is also mounted in the
// container, anywhere and read-only. The daemon's group is found there by its inode. If a mount
// hides the container's /sys/fs/cgroup, it is found by this process's entry. Other groups are found
// by their path relative to it.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"

namespace gpumemd {

// Returns the group at the root of this process's cgroup namespace, by the machine's names:
// "/a.slice/b". Empty if the namespace is the machine's, or the machine's groups are not visible.
// `mountinfo` is the text of /proc/self/mountinfo (proc_pid_mountinfo(5)). `pid` is this process,
// as cgroup.procs shows it to this process (cgroups(7)). Reads folders of cgroup2, no deeper than
// the group.
std::string RootOfCgroupNamespace(absl::string_view mountinfo, pid_t pid);

// Returns the text of /proc/PID/cgroup with the path of cgroup v2 from the machine's root, given
// the group at the namespace's root. Unchanged if that group is empty, or if the path leads further
// up.
std::string FromMachineRoot(absl::string_view proc_pid_cgroup, absl::string_view namespace_root);

}  // namespace gpumemd
