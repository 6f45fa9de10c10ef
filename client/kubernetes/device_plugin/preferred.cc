// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/device_plugin/preferred.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/kubernetes/containers.h"

namespace gpumem::kubernetes {
namespace {

// Units by GPU, in the order of their numbers.
using ByGpu = std::map<std::string, std::map<uint32_t, std::string>>;

//   INVALID_ARGUMENT  an id is no unit's, or occurs twice
absl::StatusOr<ByGpu> Sort(absl::Span<const std::string> ids) {
  ByGpu sorted;
  for (const std::string& id : ids) {
    const auto unit = ParseId(id);
    if (!unit.ok()) return unit.status();
    if (!sorted[unit->uuid].emplace(unit->number, id).second) {
      return absl::InvalidArgumentError(absl::StrCat("the unit ", id, " occurs twice"));
    }
  }
  return sorted;
}

// Returns the GPU to take `needed` units from: that with the fewest of those with enough, else that
// with the most. Requires that a GPU has units.
ByGpu::iterator Best(ByGpu* gpus, size_t needed) {
  return std::min_element(gpus->begin(), gpus->end(), [&](const auto& a, const auto& b) {
    const size_t of_a = a.second.size(), of_b = b.second.size();
    if ((of_a >= needed) != (of_b >= needed)) return of_a >= needed;
    return of_a >= needed ? of_a < of_b : of_a > of_b;
  });
}

void Take(ByGpu::iterator gpu, size_t needed, ByGpu* gpus, std::vector<std::string>* chosen) {
  for (const auto& [number, id] : gpu->second) {
    if (needed-- == 0) break;
    chosen->push_back(id);
  }
  gpus->erase(gpu);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PreferredUnits(absl::Span<const std::string> available,
                                                        absl::Span<const std::string> required,
                                                        size_t size) {
  auto free = Sort(available);
  if (!free.ok()) return free.status();
  const auto begun = Sort(required);
  if (!begun.ok()) return begun.status();
  size_t left = 0;
  for (auto& [uuid, units] : *free) {
    const auto same = begun->find(uuid);
    if (same != begun->end()) {
      for (const auto& [number, id] : same->second) units.erase(number);
    }
    left += units.size();
  }
  if (required.size() > size || required.size() + left < size) {
    return absl::InvalidArgumentError(absl::StrCat(size, " units are wanted, of ", required.size(),
                                                   " required and ", left, " other ones"));
  }
  std::vector<std::string> chosen(required.begin(), required.end());
  ByGpu first;  // the other units of GPUs with required ones
  for (const auto& [uuid, units] : *begun) {
    const auto same = free->find(uuid);
    if (same != free->end() && !same->second.empty()) first.insert(free->extract(same));
  }
  for (ByGpu* const gpus : {&first, &*free}) {
    while (chosen.size() < size && !gpus->empty()) {
      const size_t needed = size - chosen.size();
      Take(Best(gpus, needed), needed, gpus, &chosen);
    }
  }
  return chosen;
}

absl::StatusOr<Grant> GrantOf(absl::Span<const std::string> ids, const UnitList& units,
                              const GrantOptions& options) {
  if (ids.empty()) return absl::InvalidArgumentError("a container without units");
  const auto sorted = Sort(ids);
  if (!sorted.ok()) return sorted.status();
  for (const auto& [uuid, numbers] : *sorted) {
    const auto gpu = units.gpus.find(uuid);
    for (const auto& [number, id] : numbers) {
      if (gpu == units.gpus.end() || number >= gpu->second.count ||
          id != IdOf({uuid, units.step, number})) {
        return absl::NotFoundError(absl::StrCat("this node has no unit ", id));
      }
    }
  }
  const bool fits = std::any_of(units.gpus.begin(), units.gpus.end(),
                                [&](const auto& gpu) { return gpu.second.count >= ids.size(); });
  if (options.one_gpu && sorted->size() > 1 && fits) {
    return absl::FailedPreconditionError(absl::StrCat("no GPU of this node has ", ids.size(),
                                                      " free units: they would be of ",
                                                      sorted->size(), " GPUs"));
  }
  std::vector<std::string> uuids;
  Grant grant{.host_path = options.runtime_dir, .container_path = kRuntimeDirOfContainers};
  for (const auto& [uuid, numbers] : *sorted) {
    uuids.push_back(uuid);
    if (!options.gpu_kind.empty()) {
      grant.cdi_devices.push_back(absl::StrCat(options.gpu_kind, "=", uuid));
    }
  }
  grant.environment["GPUMEM_RUNTIME_DIR"] = kRuntimeDirOfContainers;
  if (options.visible_devices) {
    grant.environment["NVIDIA_VISIBLE_DEVICES"] = absl::StrJoin(uuids, ",");
  } else if (!options.gpu_kind.empty()) {
    // Images set it to "all". NVIDIA's runtime would add GPUs that the container has no units of.
    grant.environment["NVIDIA_VISIBLE_DEVICES"] = "void";
  }
  return grant;
}

}  // namespace gpumem::kubernetes
