// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/quota/guarantees.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"

namespace gpumemd {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
// Bounds the walk up the parents, although cycles are refused where parents are set.
constexpr int kMaxDepth = 64;
// A sum names this many parts.
constexpr size_t kMaxParts = 5;

// Operators choose the amounts: their sum may overflow.
uint64_t Add(uint64_t a, uint64_t b) { return a > kUnlimited - b ? kUnlimited : a + b; }

// The needs on one device, computed from the members up.
class Needs {
 public:
  Needs(const std::map<std::string, Quota>& tenants, const DeviceInfo& device)
      : tenants_(tenants), device_(device) {
    for (const auto& [name, quota] : tenants) {
      members_[tenants.contains(quota.parent) ? quota.parent : ""].push_back(name);
    }
  }

  std::optional<GuaranteeProblem> Check() {
    for (const auto& [name, quota] : tenants_) {
      const uint64_t guarantee = GuaranteeOn(quota, device_);
      const uint64_t limit = LimitOn(quota, device_);
      if (guarantee > limit) {
        return GuaranteeProblem{.what = GuaranteeProblem::What::kAboveLimit,
                                .tenant = name,
                                .device = device_.uuid,
                                .needed = guarantee,
                                .limit = limit};
      }
    }
    GuaranteeProblem all{.what = GuaranteeProblem::What::kAboveCapacity,
                         .device = device_.uuid,
                         .limit = device_.capacity_bytes};
    all.needed = SumOfMembers("", 0, &all.parts);
    if (problem_) return problem_;
    if (all.needed > all.limit) return all;
    return std::nullopt;
  }

  const std::map<std::string, uint64_t>& by_tenant() const { return needs_; }

 private:
  uint64_t SumOfMembers(const std::string& tenant, int depth,
                        std::vector<std::pair<std::string, uint64_t>>* parts) {
    uint64_t sum = 0;
    auto members = members_.find(tenant);
    if (members == members_.end() || depth > kMaxDepth) return sum;
    for (const std::string& member : members->second) {
      const uint64_t need = NeedOf(member, depth + 1);
      if (need == 0) continue;
      parts->emplace_back(member, need);
      sum = Add(sum, need);
    }
    return sum;
  }

  uint64_t NeedOf(const std::string& tenant, int depth) {
    GuaranteeProblem members{.what = GuaranteeProblem::What::kMembersAboveLimit,
                             .tenant = tenant,
                             .device = device_.uuid,
                             .limit = LimitOn(tenants_.at(tenant), device_)};
    members.needed = SumOfMembers(tenant, depth, &members.parts);
    const uint64_t need = std::max(GuaranteeOn(tenants_.at(tenant), device_), members.needed);
    needs_[tenant] = need;
    if (members.needed > members.limit && !problem_) problem_ = std::move(members);
    return need;
  }

  const std::map<std::string, Quota>& tenants_;
  const DeviceInfo& device_;
  std::map<std::string, std::vector<std::string>> members_;  // of "": tenants without a parent
  std::map<std::string, uint64_t> needs_;
  std::optional<GuaranteeProblem> problem_;  // the first
};

// " (training 40.00 GiB, serving 20.00 GiB and 3 more)", the largest first.
std::string Parts(const GuaranteeProblem& problem,
                  const std::function<std::string(uint64_t)>& show) {
  if (problem.parts.empty()) return "";
  auto parts = problem.parts;
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  const size_t more = parts.size() > kMaxParts ? parts.size() - kMaxParts : 0;
  parts.resize(parts.size() - more);
  std::string text = absl::StrJoin(parts, ", ", [&](std::string* out, const auto& part) {
    absl::StrAppend(out, part.first, " ", show(part.second));
  });
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return absl::StrCat(" (", text, ")");
}

}  // namespace

uint64_t GuaranteeOn(const Quota& quota, const DeviceInfo& device) {
  if (IsHostMemory(device)) return 0;
  auto own = quota.device_guarantees.find(device.uuid);
  return own != quota.device_guarantees.end() ? own->second : quota.guarantee_bytes.value_or(0);
}

uint64_t LimitOn(const Quota& quota, const DeviceInfo& device) {
  if (IsHostTier(device)) return quota.tier_limit_bytes.value_or(kUnlimited);
  if (IsHostMemory(device)) return quota.pinned_limit_bytes.value_or(kUnlimited);
  auto own = quota.device_limits.find(device.uuid);
  return own != quota.device_limits.end() ? own->second : quota.limit_bytes.value_or(kUnlimited);
}

std::optional<GuaranteeProblem> FindGuaranteeProblem(const std::map<std::string, Quota>& tenants,
                                                     absl::Span<const DeviceInfo> devices) {
  std::map<std::string, uint64_t> totals;
  for (const DeviceInfo& device : devices) {
    if (IsHostMemory(device)) continue;
    Needs needs(tenants, device);
    if (std::optional<GuaranteeProblem> problem = needs.Check()) return problem;
    for (const auto& [tenant, need] : needs.by_tenant()) {
      totals[tenant] = Add(totals[tenant], need);
    }
  }
  for (const auto& [tenant, total] : totals) {
    const uint64_t limit = tenants.at(tenant).total_limit_bytes.value_or(kUnlimited);
    if (total > limit) {
      return GuaranteeProblem{.what = GuaranteeProblem::What::kAboveTotalLimit,
                              .tenant = tenant,
                              .needed = total,
                              .limit = limit};
    }
  }
  return std::nullopt;
}

std::string Tell(const GuaranteeProblem& problem,
                 const std::function<std::string(uint64_t)>& show) {
  const std::string on = problem.device.empty() ? "" : absl::StrCat(" on ", problem.device);
  const std::string needed = show(problem.needed), limit = show(problem.limit);
  switch (problem.what) {
    case GuaranteeProblem::What::kAboveLimit:
      return absl::StrCat("the guarantee of tenant \"", problem.tenant, "\"", on, ", ", needed,
                          ", is above its limit of ", limit,
                          "; lower the guarantee or raise the limit");
    case GuaranteeProblem::What::kMembersAboveLimit:
      return absl::StrCat("the guarantees of the members of tenant \"", problem.tenant,
                          "\" add up to ", needed, on, ", above its limit of ", limit,
                          Parts(problem, show), "; lower one of them or raise the limit");
    case GuaranteeProblem::What::kAboveTotalLimit:
      return absl::StrCat("the guarantees of tenant \"", problem.tenant,
                          "\" and its members on all devices add up to ", needed,
                          ", above its total limit of ", limit,
                          "; lower a guarantee or raise the total limit");
    case GuaranteeProblem::What::kAboveCapacity:
      return absl::StrCat("the guarantees of all tenants add up to ", needed, on,
                          ", which is more than the device's ", limit, Parts(problem, show),
                          "; lower one of them");
  }
  return "guarantees that cannot be kept";
}

std::string Tell(const GuaranteeProblem& problem) {
  return Tell(problem, [](uint64_t bytes) { return gpumem::FormatBytes(bytes); });
}

}  // namespace gpumemd
