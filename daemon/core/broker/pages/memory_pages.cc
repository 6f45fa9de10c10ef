// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/pages/memory_pages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/admission/room.h"

namespace gpumemd {

MemoryPages::Page MemoryPages::Find(absl::string_view tenant) const {
  const auto it = pages_.find(tenant);
  return it == pages_.end() ? nullptr : it->second.page;
}

absl::Status MemoryPages::CheckRoom(uid_t uid) const {
  const auto it = of_uid_.find(uid);
  if (pages_.size() < kMost && (it == of_uid_.end() || it->second < kMostOfUid)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the daemon has ", pages_.size(), " pages of tenants' memory, or this user's tenants have ",
      kMostOfUid, " of them; ask with GetUsage"));
}

void MemoryPages::Add(const std::string& tenant, uid_t uid, Page page) {
  pages_.emplace(tenant, Open{.page = std::move(page), .uid = uid});
  ++of_uid_[uid];
}

void MemoryPages::Use(SessionId session, const std::string& tenant) {
  if (tenants_.emplace(session, tenant).second) ++pages_.at(tenant).sessions;
}

void MemoryPages::Forget(SessionId session) {
  const auto used = tenants_.find(session);
  if (used == tenants_.end()) return;
  const auto it = pages_.find(used->second);
  tenants_.erase(used);
  if (--it->second.sessions > 0) return;
  const auto of_uid = of_uid_.find(it->second.uid);
  if (--of_uid->second == 0) of_uid_.erase(of_uid);
  unused_.push_back(std::move(it->second.page));
  pages_.erase(it);
}

void MemoryPages::Touch(SessionId session) {
  if (tenants_.contains(session)) touched_.push_back(session);
}

void MemoryPages::Settle(const LedgerState& state) {
  if (pages_.empty()) return;
  for (const SessionId session : std::exchange(touched_, {})) {
    const auto it = tenants_.find(session);
    if (it != tenants_.end()) Refresh(state, it->second, pages_.at(it->second));
  }
  uint64_t version = state.quotas_version;  // all charges are also the devices'
  for (const Account& account : state.device_accounts) version += account.version();
  if (version == version_) return;
  version_ = version;
  stale_ = true;
}

std::string MemoryPages::RefreshSome(const LedgerState& state, absl::string_view after,
                                     size_t most) {
  if (after.empty()) stale_ = false;
  auto it = after.empty() ? pages_.begin() : pages_.upper_bound(after);
  std::string last;
  for (; most > 0 && it != pages_.end(); --most, ++it) {
    Refresh(state, it->first, it->second);
    last = it->first;
  }
  return it == pages_.end() ? "" : last;
}

void MemoryPages::Refresh(const LedgerState& state, const std::string& tenant, const Open& open) {
  const records::Tenant* const found = state.FindTenant(tenant);
  if (found == nullptr) return;  // it goes with its last session
  const Room room(&state);
  figures_.clear();
  for (size_t i = 0; i < state.devices.size(); ++i) {
    figures_.push_back(
        {.limit_bytes = state.LimitOn(*found, i), .free_bytes = room.Obtainable(*found, i)});
  }
  open.page->Write(figures_);
}

}  // namespace gpumemd
