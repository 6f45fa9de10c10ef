// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/placement.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace gpumem::slurm {
namespace {

// Sums the guarantees of tenants on each device. Those below a guaranteed parent are
// counted twice: the order that comes of it is only a first guess.
std::map<std::string, uint64_t> Guaranteed(const v1::ListTenantsResponse& tenants) {
  std::map<std::string, uint64_t> guaranteed;
  for (const v1::TenantInfo& tenant : tenants.tenants()) {
    for (const v1::DeviceUsage& device : tenant.usage().devices()) {
      guaranteed[device.device_uuid()] += device.guarantee_bytes();
    }
  }
  return guaranteed;
}

v1::Quota QuotaOn(const std::vector<v1::Device>& devices, uint64_t mib, const Terms& terms) {
  v1::Quota quota;
  quota.set_limit_bytes(0);
  quota.set_total_limit_bytes(mib * kMiB);
  quota.set_priority(terms.priority);
  const uint64_t guarantee = std::min(terms.guarantee_mib.value_or(mib), mib);
  for (const v1::Device& device : devices) {
    v1::DeviceLimit* limit = quota.add_devices();
    limit->set_device_uuid(device.device_uuid());
    limit->set_limit_bytes(mib * kMiB / devices.size());
    if (guarantee == 0) continue;
    v1::DeviceGuarantee* guaranteed = quota.add_guarantees();
    guaranteed->set_device_uuid(device.device_uuid());
    guaranteed->set_guarantee_bytes(guarantee * kMiB / devices.size());
  }
  return quota;
}

}  // namespace

std::vector<v1::Device> Gpus(const std::vector<v1::Device>& devices) {
  std::vector<v1::Device> gpus;
  for (const v1::Device& device : devices) {
    const auto& kinds = device.kinds();
    if (std::find(kinds.begin(), kinds.end(), v1::KIND_VMM) != kinds.end()) gpus.push_back(device);
  }
  return gpus;
}

absl::StatusOr<std::vector<v1::Quota>> Quotas(const JobGres& gres, const Terms& terms,
                                              const std::vector<v1::Device>& gpus,
                                              const v1::ListTenantsResponse& tenants) {
  if (!gres.gpus.empty()) {
    std::vector<v1::Device> chosen;
    for (const uint32_t number : gres.gpus) {
      if (number >= gpus.size()) {
        return absl::NotFoundError(
            absl::StrCat("Slurm has chosen GPU ", number, ", and gpumemd has ", gpus.size()));
      }
      chosen.push_back(gpus[number]);
    }
    return std::vector<v1::Quota>{QuotaOn(chosen, gres.mib, terms)};
  }
  std::map<std::string, uint64_t> guaranteed = Guaranteed(tenants);
  std::vector<std::pair<uint64_t, v1::Device>> by_room;
  for (const v1::Device& gpu : gpus) {
    if (gpu.capacity_bytes() < gres.mib * kMiB) continue;
    const uint64_t taken = std::min(guaranteed[gpu.device_uuid()], gpu.capacity_bytes());
    by_room.emplace_back(gpu.capacity_bytes() - taken, gpu);
  }
  if (by_room.empty()) {
    return absl::OutOfRangeError(
        absl::StrCat("no GPU of this node has ", FormatBytes(gres.mib * kMiB)));
  }
  std::stable_sort(by_room.begin(), by_room.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<v1::Quota> quotas;
  for (const auto& [room, gpu] : by_room) quotas.push_back(QuotaOn({gpu}, gres.mib, terms));
  return quotas;
}

std::string ConfigurationLines(const std::string& node, const std::string& name,
                               const std::vector<v1::Device>& gpus) {
  uint64_t mib = 0;
  for (const v1::Device& gpu : gpus) mib += gpu.capacity_bytes() / kMiB;
  const std::string count = absl::StrCat(name, ":", mib);
  std::string lines = absl::StrCat("# slurm.conf\nGresTypes=", name == "shard" ? "gpu,shard" : name,
                                   "\nNodeName=", node, " Gres=");
  if (name == "shard") {
    absl::StrAppend(&lines, "gpu:", gpus.size(), ",", count, "\n# gres.conf\n");
    for (size_t i = 0; i < gpus.size(); ++i) {
      absl::StrAppend(&lines, "NodeName=", node, " Name=gpu File=/dev/nvidia", i,
                      "\nNodeName=", node, " Name=shard Count=", gpus[i].capacity_bytes() / kMiB,
                      " File=/dev/nvidia", i, "\n");
    }
    return lines;
  }
  absl::StrAppend(&lines, count, "\n# gres.conf\nNodeName=", node, " Name=", name, " Count=", mib,
                  "\n");
  return lines;
}

}  // namespace gpumem::slurm
