// The machine's names of control groups, for a daemon in a cgroup namespace of its own.
//
// Container managers give containers such namespaces (Kubernetes does so on cgroup v2, and nothing
// in a pod's description changes it short of "privileged"). There /proc/PID/cgroup names groups
// from the daemon's own on, "/../../kubepods-burstable.slice/…", and not by the names that the
// machine's root has given them (cgroup_namespaces(7)). They can be had all the same where the
// machine's /sys/fs/cgroup is mounted in the container as well, anywhere and read-only: the
// daemon's own group is found in it by its inode, or by this process where the container's own
// /sys/fs/cgroup is not to be seen (it was mounted there), and others by their way from there.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"

namespace gpumemd {

// The group at the root of this process's cgroup namespace, by the machine's names: "/a.slice/b".
// Empty where the namespace is the machine's, or the machine's groups are not to be seen.
// `mountinfo` is the text of /proc/self/mountinfo (proc_pid_mountinfo(5)). `pid` is this process,
// as cgroup.procs shows it to this process (cgroups(7)). Reads folders of cgroup2, down to where
// the group is and no deeper.
std::string RootOfCgroupNamespace(absl::string_view mountinfo, pid_t pid);

// The text of /proc/PID/cgroup with the path of cgroup v2 from the machine's root, given the group
// at the namespace's root. As it is where that is empty, and where the path leads further up.
std::string FromMachineRoot(absl::string_view proc_pid_cgroup, absl::string_view namespace_root);

}  // namespace gpumemd
