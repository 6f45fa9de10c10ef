// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/reconcile.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gpumem::kubernetes {
namespace {

constexpr size_t kMostOwner = 32;  // CreateTenantRequest.owner
constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kLongestPause = absl::Seconds(60);

// FNV-1a. The mark has to stay the same over versions of this program.
uint64_t HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

uint64_t BytesOn(const BytesByUuid& bytes, const std::string& uuid) {
  const auto on = bytes.find(uuid);
  return on == bytes.end() ? 0 : on->second;
}

BytesByUuid WithoutZeros(BytesByUuid bytes) {
  std::erase_if(bytes, [](const auto& on) { return on.second == 0; });
  return bytes;
}

TenantQuota WithoutZeros(const TenantQuota& quota) {
  return {WithoutZeros(quota.limits), WithoutZeros(quota.guarantees)};
}

BytesByUuid Least(const BytesByUuid& a, const BytesByUuid& b) {
  BytesByUuid least;
  for (const auto& [uuid, bytes] : a) {
    const uint64_t common = std::min(bytes, BytesOn(b, uuid));
    if (common > 0) least[uuid] = common;
  }
  return least;
}

}  // namespace

std::string OwnerOf(absl::string_view driver, absl::string_view node) {
  std::string owner = absl::StrCat(driver, "/", node);
  if (owner.size() <= kMostOwner) return owner;
  const std::string hash = absl::StrFormat("-%08x", HashOf(owner) >> 32);
  return absl::StrCat(owner.substr(0, kMostOwner - hash.size()), hash);
}

std::vector<PresentTenant> PresentTenants(const v1::ListTenantsResponse& tenants,
                                          absl::string_view owner) {
  std::vector<PresentTenant> present;
  for (const v1::TenantInfo& info : tenants.tenants()) {
    if (!info.has_made() || info.made().session_id() != 0 || info.made().owner() != owner) continue;
    PresentTenant tenant{.name = info.usage().tenant(), .ending = info.made().ending()};
    for (const v1::DeviceLimit& limit : info.quota().devices()) {
      tenant.quota.limits[limit.device_uuid()] = limit.limit_bytes();
    }
    for (const v1::DeviceGuarantee& guarantee : info.quota().guarantees()) {
      tenant.quota.guarantees[guarantee.device_uuid()] = guarantee.guarantee_bytes();
    }
    tenant.overridden = std::any_of(
        info.overridden().begin(), info.overridden().end(),
        [](const std::string& field) { return field == "devices" || field == "guarantees"; });
    tenant.overridden |= info.configured();
    present.push_back(std::move(tenant));
  }
  return present;
}

std::vector<Step> Plan(const Desired& desired, absl::Span<const PresentTenant> present,
                       bool may_end) {
  std::vector<Step> ends, shrinks, grows;
  std::set<std::string> there;
  for (const PresentTenant& tenant : present) {
    there.insert(tenant.name);
    const auto wanted = desired.tenants.find(tenant.name);
    if (wanted == desired.tenants.end()) {
      const bool kept = desired.kept.contains(tenant.name);
      if (tenant.ending || (may_end && !kept)) ends.push_back({Step::Kind::kEnd, tenant.name, {}});
      continue;
    }
    if (tenant.ending) {
      ends.push_back({Step::Kind::kEnd, tenant.name, {}});
      continue;
    }
    const TenantQuota is = WithoutZeros(tenant.quota), should = WithoutZeros(wanted->second);
    if (tenant.overridden || is == should) continue;
    const TenantQuota least = {Least(is.limits, should.limits),
                               Least(is.guarantees, should.guarantees)};
    if (least != is) shrinks.push_back({Step::Kind::kUpdate, tenant.name, least});
    if (least != should) grows.push_back({Step::Kind::kUpdate, tenant.name, should});
  }
  for (const auto& [name, quota] : desired.tenants) {
    if (!there.contains(name)) grows.push_back({Step::Kind::kCreate, name, quota});
  }
  std::vector<Step> steps = std::move(ends);
  std::move(shrinks.begin(), shrinks.end(), std::back_inserter(steps));
  std::move(grows.begin(), grows.end(), std::back_inserter(steps));
  return steps;
}

std::vector<std::string> EndsOf(const Desired& desired, absl::Span<const PresentTenant> present) {
  std::vector<std::string> ends;
  for (const PresentTenant& tenant : present) {
    const bool stays = tenant.ending || desired.tenants.contains(tenant.name) ||
                       desired.kept.contains(tenant.name);
    if (!stays) ends.push_back(tenant.name);
  }
  return ends;
}

v1::Quota ToQuota(const TenantQuota& quota) {
  v1::Quota result;
  // Fields for all GPUs remove the values of single ones that the tenant had.
  result.set_limit_bytes(0);
  result.set_guarantee_bytes(0);
  for (const auto& [uuid, bytes] : quota.limits) {
    v1::DeviceLimit* const limit = result.add_devices();
    limit->set_device_uuid(uuid);
    limit->set_limit_bytes(bytes);
  }
  for (const auto& [uuid, bytes] : quota.guarantees) {
    v1::DeviceGuarantee* const guarantee = result.add_guarantees();
    guarantee->set_device_uuid(uuid);
    guarantee->set_guarantee_bytes(bytes);
  }
  return result;
}

bool Backoff::IsDue(const std::string& tenant, absl::Time now) const {
  const auto failure = failures_.find(tenant);
  return failure == failures_.end() || now >= failure->second.retry;
}

absl::Duration Backoff::Failed(const std::string& tenant, absl::Time now) {
  Failure& failure = failures_[tenant];
  failure.pause = failure.pause == absl::ZeroDuration()
                      ? kFirstPause
                      : std::min(2 * failure.pause, kLongestPause);
  failure.retry = now + failure.pause;
  return failure.pause;
}

void Backoff::Retain(absl::Span<const Step> steps) {
  std::set<std::string> names;
  for (const Step& step : steps) names.insert(step.tenant);
  std::erase_if(failures_, [&](const auto& failure) { return !names.contains(failure.first); });
}

}  // namespace gpumem::kubernetes
