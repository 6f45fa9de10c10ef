// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/mps_limit.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace gpumem::cli {

bool MpsRuns(absl::string_view pipe_folder) {
  if (pipe_folder.empty()) pipe_folder = "/tmp/nvidia-mps";
  struct stat status = {};
  return stat(absl::StrCat(pipe_folder, "/control").c_str(), &status) == 0 &&
         (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
}

std::string MpsLimit(uint64_t bytes, int devices) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const uint64_t mib = bytes / kMiB + (bytes % kMiB == 0 ? 0 : 1);
  std::string value;
  for (int device = 0; device < devices; ++device)
    absl::StrAppend(&value, device == 0 ? "" : ",", device, "=", mib, "M");
  return value;
}

}  // namespace gpumem::cli
