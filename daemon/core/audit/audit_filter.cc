// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/audit/audit_filter.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

// At this number, windows that have ended are removed. If there are none, all new tenants share
// one.
constexpr size_t kMaxWindows = 4096;
// Minimum interval between removals: each goes through all windows.
constexpr absl::Duration kPruneEvery = absl::Milliseconds(100);
// The key of the window that all beyond kMaxWindows share, for each event. Not a tenant's name.
constexpr char kOthers[] = "\n";

// True for events that clients can cause as often as they like.
bool IsOfClients(AuditEvent event) {
  switch (event) {
    case AuditEvent::kRefused:
    case AuditEvent::kSessionOpened:
    case AuditEvent::kSessionResumed:
    case AuditEvent::kSessionEnded:
    case AuditEvent::kGranted:
    case AuditEvent::kReleased:
    case AuditEvent::kSuspended:
    case AuditEvent::kResumed:
    case AuditEvent::kMoved:
    case AuditEvent::kDemoted:
    case AuditEvent::kPromoted:
    case AuditEvent::kDenied:
    case AuditEvent::kPublished:
    case AuditEvent::kPublicationEnded:
    case AuditEvent::kClaimed:
    case AuditEvent::kClaimEnded:
    case AuditEvent::kReclaimed:
    case AuditEvent::kTenantMade:
    case AuditEvent::kTenantChanged:
    case AuditEvent::kTenantEnded:
    case AuditEvent::kRevoking:
    case AuditEvent::kRevoked:
    case AuditEvent::kRevocationEnded:
    case AuditEvent::kSuspensionAsked:
    case AuditEvent::kSuspensionEnded:
      return true;
    default:
      return false;
  }
}

bool IsGrant(AuditEvent event) {
  return event == AuditEvent::kGranted || event == AuditEvent::kReleased ||
         event == AuditEvent::kSuspended || event == AuditEvent::kResumed ||
         event == AuditEvent::kDemoted || event == AuditEvent::kPromoted;
}

void Count(AuditEvent event, std::optional<uint64_t> bytes, AuditRecord* left_out) {
  if (!left_out->count) {
    left_out->event = AuditEvent::kSuppressed;
    left_out->of = std::string(NameOf(event));
    left_out->count = 0;
  }
  ++*left_out->count;
  if (bytes) left_out->bytes = left_out->bytes.value_or(0) + *bytes;
}

}  // namespace

void AuditFilter::Tell(Window& window, std::vector<AuditRecord>* told) {
  if (!window.left_out.count) return;
  window.left_out.time = window.end;
  told->push_back(std::move(window.left_out));
}

bool AuditFilter::Holds(const Window& window, absl::Time time) {
  // False also if the clock was set back.
  return time < window.end && window.end <= time + absl::Seconds(1);
}

bool AuditFilter::LeavesOut(AuditEvent event, absl::string_view tenant, uint64_t bytes,
                            absl::Time time) {
  if (IsGrant(event) && !options_.grants) return true;
  if (options_.per_second == 0 || !IsOfClients(event)) return false;
  absl::MutexLock lock(&mutex_);
  auto found = windows_.find(Key{event, std::string(tenant)});
  if (found == windows_.end() || !Holds(found->second, time)) return false;
  Window& window = found->second;
  if (window.passed < options_.per_second) return false;
  Count(event, bytes, &window.left_out);
  window.left_out.tenant = std::string(tenant);
  return true;
}

AuditFilter::Window& AuditFilter::WindowOf(Key* key, absl::Time time,
                                           std::vector<AuditRecord>* told) {
  const auto found = windows_.find(*key);
  if (found != windows_.end()) return found->second;
  // Prunes also if the clock was set back.
  if (windows_.size() >= kMaxWindows && (time < pruned_ || pruned_ + kPruneEvery <= time)) {
    pruned_ = time;
    for (auto it = windows_.begin(); it != windows_.end();) {
      if (Holds(it->second, time)) {
        ++it;
        continue;
      }
      Tell(it->second, told);
      it = windows_.erase(it);
    }
  }
  if (windows_.size() >= kMaxWindows) key->second = kOthers;
  return windows_[*key];
}

size_t AuditFilter::windows() const {
  absl::MutexLock lock(&mutex_);
  return windows_.size();
}

void AuditFilter::Record(AuditRecord record) {
  if (IsGrant(record.event) && !options_.grants) return;
  // An event that an operator caused is not a client's.
  if (options_.per_second == 0 || !IsOfClients(record.event) || !record.by.empty()) {
    return next_->Record(std::move(record));
  }
  absl::MutexLock lock(&mutex_);
  std::vector<AuditRecord> told;
  Key key{record.event, record.tenant};
  if (record.tenant.empty() && record.uid) key.second = absl::StrCat("\n", *record.uid);
  Window& window = WindowOf(&key, record.time, &told);
  if (!Holds(window, record.time)) {
    Tell(window, &told);
    window = {.end = record.time + absl::Seconds(1)};
  }
  for (AuditRecord& each : told) next_->Record(std::move(each));
  if (window.passed < options_.per_second) {
    ++window.passed;
    return next_->Record(std::move(record));
  }
  Count(record.event, record.bytes, &window.left_out);
  if (key.second == kOthers) return;
  window.left_out.tenant = std::move(record.tenant);
  if (window.left_out.tenant.empty()) window.left_out.uid = record.uid;
}

void AuditFilter::Flush(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  std::vector<AuditRecord> told;
  for (auto it = windows_.begin(); it != windows_.end();) {
    if (it->second.end > now) {
      ++it;
      continue;
    }
    Tell(it->second, &told);
    it = windows_.erase(it);
  }
  for (AuditRecord& each : told) next_->Record(std::move(each));
}

absl::Time AuditFilter::NextFlush() const {
  absl::MutexLock lock(&mutex_);
  absl::Time next = absl::InfiniteFuture();
  // A window that is not full has left nothing out. It fills only after another record has passed.
  for (const auto& [key, window] : windows_) {
    if (window.passed >= options_.per_second) next = std::min(next, window.end);
  }
  return next;
}

}  // namespace gpumemd
