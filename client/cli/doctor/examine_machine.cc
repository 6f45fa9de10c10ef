// SPDX-License-Identifier: Apache-2.0
// What doctor finds about the machine: driver, limits of processes, cgroups.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/doctor/examiner.h"
#include "client/cli/text/format.h"

namespace gpumem::cli {
namespace {

// Descriptors that any process has: for libraries, the driver (some 30), and its files.
constexpr uint64_t kFilesOfItsOwn = 64;

}  // namespace

void Examiner::Driver() {
  constexpr char kArea[] = "driver";
  const DriverFacts& driver = facts_.driver;
  if (driver.module.empty() && driver.files.empty()) {
    if (facts_.daemon && facts_.daemon->cuda) {
      Say(kArea, Level::kProblem, "the daemon uses GPUs, but no NVIDIA driver is visible here",
          "in a container: start it with the GPUs and /dev/nvidia*");
    } else if (facts_.daemon) {
      Say(kArea, Level::kOk, "no NVIDIA driver; the daemon uses host memory and needs none");
    } else {
      Say(kArea, Level::kWarning, "no NVIDIA driver: a daemon here would use host memory",
          "install the driver if the machine has a GPU");
    }
    return;
  }
  if (facts_.daemon && !facts_.daemon->cuda && facts_.daemon->cuda_toolkit == "") {
    Say(kArea, Level::kProblem,
        "the daemon was built without CUDA: it uses host memory, and not the GPU of this "
        "machine",
        "install packages that were built with the CUDA toolkit (see gpumemd --version)");
  }
  if (!driver.built_in) {
    Say(kArea, Level::kWarning, "this gpumemctl was built without CUDA",
        "build it on a machine with the CUDA toolkit");
  } else if (!driver.cuda_error.empty()) {
    Say(kArea, Level::kProblem, absl::StrCat("CUDA does not work here: ", driver.cuda_error),
        "check the driver with nvidia-smi; in a container, mount /proc");
  }
  if (!driver.nvml_error.empty()) {
    Say(kArea, Level::kProblem, absl::StrCat("NVML does not work here: ", driver.nvml_error),
        "after an update of the driver: reboot, or reload its module");
  } else {
    Say(kArea, Level::kOk,
        absl::StrCat("driver ", driver.version.empty() ? "of unknown version" : driver.version,
                     driver.cuda_version.empty() ? "" : ", CUDA " + driver.cuda_version));
  }
  if (!driver.module.empty() && !driver.version.empty() && driver.module != driver.version) {
    Say(kArea, Level::kProblem,
        absl::StrCat("the kernel module has version ", driver.module, ", the libraries ",
                     driver.version),
        "reboot, or reload the module");
  }
  for (const GpuFacts& gpu : driver.gpus) {
    if (!gpu.persistent) {
      Say(kArea, Level::kUnseen, absl::StrCat("persistence mode of ", gpu.uuid, ": ", gpu.unknown));
    } else if (*gpu.persistent) {
      Say(kArea, Level::kOk, absl::StrCat("persistence mode is on for ", gpu.uuid));
    } else {
      Say(kArea, Level::kWarning,
          absl::StrCat("persistence mode is off for ", gpu.uuid,
                       ": the driver may tear it down, with the memory kept on it, while no "
                       "process uses it"),
          "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1");
    }
  }
  std::vector<std::string> closed;
  for (const DeviceFile& file : driver.files) {
    if (!file.usable) closed.push_back(absl::StrCat(file.path, " (", file.mode, ")"));
  }
  if (!closed.empty()) {
    Say(kArea, Level::kProblem, absl::StrCat("this user may not use ", absl::StrJoin(closed, ", ")),
        "join the files' group, or let the driver make them for all users "
        "(NVreg_DeviceFileMode=0666)");
  } else if (!driver.files.empty()) {
    Say(kArea, Level::kOk,
        absl::StrCat("this user may use ", Counted(driver.files.size(), "device file"),
                     " (/dev/nvidia*)"));
  }
}

void Examiner::Files() {
  constexpr char kArea[] = "files";
  const uint64_t largest = facts_.daemon ? facts_.daemon->largest_publication : 0;
  const uint64_t needed = largest + kFilesOfItsOwn;
  const std::string limit = absl::StrCat("processes of this user may have ", facts_.files_soft,
                                         " descriptors (at most ", facts_.files_hard, ")");
  if (facts_.files_soft >= needed) {
    Say(kArea, Level::kOk,
        largest == 0
            ? limit
            : absl::StrCat(limit, ", enough to attach to ", facts_.daemon->largest_publication_name,
                           " (", Counted(largest, "segment"), ")"));
  } else if (largest == 0) {
    Say(kArea, Level::kWarning, absl::StrCat(limit, ": too few, since each segment takes one"),
        "run ulimit -n 65536, or set LimitNOFILE= in the worker's unit");
  } else {
    Say(kArea, Level::kWarning,
        absl::StrCat(limit, ", too few to attach to ", facts_.daemon->largest_publication_name,
                     " (", Counted(largest, "segment"), ", one descriptor each)"),
        absl::StrCat("run ulimit -n ", 2 * needed, ", or set LimitNOFILE= in the worker's unit"));
  }
  if (!facts_.daemon) return;
  const ProcessFacts& process = facts_.process;
  if (!process.files_limit) {
    Say(kArea, Level::kUnseen, "how many descriptors the daemon may have",
        "mount /proc of the daemon's PID namespace");
    return;
  }
  // A segment needs one descriptor, a session some three.
  const uint64_t used = process.files_open.value_or(facts_.daemon->segments +
                                                    3 * facts_.daemon->sessions + kFilesOfItsOwn);
  const bool few = used * 10 >= *process.files_limit * 8;
  Say(kArea, few ? Level::kWarning : Level::kOk,
      absl::StrCat("the daemon has ", process.files_open ? "" : "about ", used, " of ",
                   *process.files_limit, " descriptors open"),
      few ? "raise LimitNOFILE= in its unit" : "");
}

void Examiner::Cgroups() {
  constexpr char kArea[] = "cgroups";
  switch (facts_.cgroups) {
    case CgroupLayout::kUnified:
      Say(kArea, Level::kOk, "one hierarchy (cgroup v2)");
      break;
    case CgroupLayout::kHybrid:
    case CgroupLayout::kLegacy:
      Say(kArea, Level::kWarning,
          absl::StrCat(facts_.cgroups == CgroupLayout::kHybrid ? "hierarchies of v1 beside v2"
                                                               : "hierarchies of v1",
                       ": if they disagree on a process, rules by unit, container, pod or job "
                       "do not match it"),
          "boot with systemd.unified_cgroup_hierarchy=1 if you use such rules");
      break;
    case CgroupLayout::kUnknown:
      Say(kArea, Level::kUnseen, "the layout: /sys/fs/cgroup cannot be read");
      break;
  }
  if (!facts_.worker.cgroup_unknown.empty()) {
    Say(kArea, Level::kWarning,
        absl::StrCat("the daemon does not know the cgroup of this process (",
                     facts_.worker.cgroup_unknown, "): no rule by cgroup matches it"),
        "see gpumemctl whoami; the daemon needs /proc of this process's PID namespace or of one "
        "above it (hostPID)");
  }
}

}  // namespace gpumem::cli
