// SPDX-License-Identifier: Apache-2.0
#include "tests/kubernetes/daemon_view.h"

#include <array>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "client/kubernetes/reconcile.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {

std::string Gpumemctl(const std::string& runtime_dir, const std::string& arguments) {
  const std::string command = absl::StrCat(ProgramPath("gpumemctl"), " --runtime-dir ", runtime_dir,
                                           " ", arguments, " 2>/dev/null");
  FILE* const pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 4096> part;
  while (const size_t size = fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), size);
  return pclose(pipe) == 0 ? text : "";
}

absl::StatusOr<std::map<std::string, kubernetes::BytesByUuid>> SharesOf(
    const kubernetes::NodeOptions& options, uint64_t bytes_of_gpu) {
  kubernetes::Node node(options);
  const auto listed = node.Tenants();
  if (!listed.ok()) return listed.status();
  kubernetes::BytesByUuid guaranteed;
  for (const auto& tenant : listed->tenants()) {
    for (const auto& device : tenant.usage().devices()) {
      guaranteed[device.device_uuid()] += device.guarantee_bytes();
    }
  }
  for (const auto& [uuid, bytes] : guaranteed) {
    if (bytes > bytes_of_gpu) {
      return absl::InternalError(absl::StrCat("more is guaranteed than there is on ", uuid));
    }
  }
  std::map<std::string, kubernetes::BytesByUuid> shares;
  for (const auto& tenant : kubernetes::PresentTenants(*listed, options.owner)) {
    if (tenant.ending) continue;
    auto& share = shares[tenant.name];
    for (const auto& [uuid, bytes] : tenant.quota.limits) {
      const auto guarantee = tenant.quota.guarantees.find(uuid);
      if (bytes != (guarantee == tenant.quota.guarantees.end() ? 0 : guarantee->second)) {
        return absl::InternalError(absl::StrCat(tenant.name, ": limit and guarantee differ"));
      }
      if (bytes > 0) share[uuid] = bytes;
    }
  }
  return shares;
}

}  // namespace gpumem::testing
