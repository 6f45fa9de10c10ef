// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/process_memory.h"

#include <sys/stat.h>

#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/cuda/nvml.h"

namespace gpumemd {
namespace {

using gpumem::Nvml;

// PROC_PID_INIT_INO of the Linux kernel: the namespace that all others are in.
constexpr ino_t kInitialPidNamespace = 0xEFFFFFFC;

class NvmlProcessMemory : public ProcessMemory {
 public:
  NvmlProcessMemory(const Nvml* nvml, bool pids_are_ours)
      : nvml_(nvml), pids_are_ours_(pids_are_ours) {}

  absl::StatusOr<std::vector<ProcessBytes>> Sample(const std::string& uuid) override {
    absl::StatusOr<Nvml::Device*> device = nvml_->FindDevice(uuid);
    if (!device.ok()) return device.status();
    auto processes = nvml_->Processes(*device);
    if (!processes.ok()) return processes.status();
    std::vector<ProcessBytes> sample;
    for (const auto& [pid, bytes] : *processes) {
      sample.push_back({static_cast<pid_t>(pid), bytes});
    }
    return sample;
  }

  // By the source of the driver's open kernel modules, which distinguish a process's private
  // memory, memory that it shares as the owner, and memory that it has only imported while others
  // have it, too. NVML counts the first two. tests/gpu/unbrokered_test.cc checks it for the present
  // driver. Memory that a client keeps mapped after giving it back, and that the broker has
  // released, is the client's alone from then on, and counts.
  bool counts_mapped() const override { return false; }

  bool pids_are_ours() const override { return pids_are_ours_; }

 private:
  const Nvml* const nvml_;
  const bool pids_are_ours_;
};

class HostProcessMemory : public ProcessMemory {
 public:
  explicit HostProcessMemory(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<std::vector<ProcessBytes>> Sample(const std::string& uuid) override {
    struct stat found;
    if (stat(path_.c_str(), &found) != 0) return std::vector<ProcessBytes>();
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return ParseHostProcessMemory(text.str(), uuid);
  }

  bool counts_mapped() const override { return false; }
  bool pids_are_ours() const override { return true; }

 private:
  const std::string path_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessMemory>> MakeNvmlProcessMemory() {
  absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) return nvml.status();
  if (!(*nvml)->lists_processes()) {
    return absl::UnavailableError("this driver's NVML does not list processes (510 and later do)");
  }
  struct stat ours;
  const bool initial = stat("/proc/self/ns/pid", &ours) == 0 && ours.st_ino == kInitialPidNamespace;
  return std::make_shared<NvmlProcessMemory>(*nvml, initial);
}

std::shared_ptr<ProcessMemory> MakeHostProcessMemory(std::string path) {
  return std::make_shared<HostProcessMemory>(std::move(path));
}

absl::StatusOr<std::vector<ProcessBytes>> ParseHostProcessMemory(absl::string_view text,
                                                                 absl::string_view device_uuid) {
  std::map<pid_t, uint64_t> by_pid;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    pid_t pid = 0;
    uint64_t bytes = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[1], &pid) || pid < 0 ||
        !absl::SimpleAtoi(words[2], &bytes)) {
      return absl::UnavailableError(
          absl::StrCat("\"", line, "\" is not of the form DEVICE-UUID PID BYTES"));
    }
    if (words[0] == device_uuid) by_pid[pid] += bytes;
  }
  std::vector<ProcessBytes> sample;
  for (const auto& [pid, bytes] : by_pid) sample.push_back({pid, bytes});
  return sample;
}

}  // namespace gpumemd
