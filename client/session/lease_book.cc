// SPDX-License-Identifier: Apache-2.0
#include "client/session/lease_book.h"

#include <algorithm>
#include <utility>

namespace gpumem::internal {
namespace {

void Append(const std::vector<uint64_t>& from, std::vector<uint64_t>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

bool MayStillHold(const absl::Status& release) {
  return absl::IsDeadlineExceeded(release) || absl::IsResourceExhausted(release) ||
         absl::IsUnavailable(release);
}

uint64_t LeaseBook::Begin() {
  absl::MutexLock lock(&mutex_);
  requests_[++newest_request_] = 0;
  return newest_request_;
}

void LeaseBook::Granted(uint64_t request, absl::Span<const uint64_t> lease_ids) {
  absl::MutexLock lock(&mutex_);
  requests_.erase(request);
  held_.insert(lease_ids.begin(), lease_ids.end());
}

void LeaseBook::Claimed(uint64_t request, Contents contents) {
  absl::MutexLock lock(&mutex_);
  requests_.erase(request);
  claims_.emplace(request, std::move(contents));
}

LeaseBook::PendingRelease LeaseBook::GiveUpClaim(uint64_t request) {
  absl::MutexLock lock(&mutex_);
  PendingRelease pending;
  pending.statement = newest_statement_;
  if (claims_.erase(request) > 0) pending.claims.push_back(request);
  return pending;
}

LeaseBook::PendingRelease LeaseBook::GiveUpUnheard(uint64_t request) const {
  absl::MutexLock lock(&mutex_);
  PendingRelease pending;
  pending.claims.push_back(request);
  pending.statement = newest_statement_;
  return pending;
}

std::vector<uint64_t> LeaseBook::ClaimsOn(const Contents& contents) const {
  absl::MutexLock lock(&mutex_);
  std::vector<uint64_t> claims;
  for (const auto& [request, claimed] : claims_) {
    if (claimed == contents) claims.push_back(request);
  }
  return claims;
}

void LeaseBook::Published(absl::Span<const uint64_t> claims) {
  absl::MutexLock lock(&mutex_);
  for (const uint64_t request : claims) claims_.erase(request);
}

void LeaseBook::End(uint64_t request) {
  absl::MutexLock lock(&mutex_);
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;  // granted
  const uint64_t named_by = found->second;
  requests_.erase(found);
  if (named_by == 0) return;
  pending_.push_back(
      {.lease_ids = {}, .request_ids = {request}, .claims = {}, .statement = named_by});
}

LeaseBook::PendingRelease LeaseBook::GiveUp(absl::Span<const uint64_t> lease_ids) {
  absl::MutexLock lock(&mutex_);
  PendingRelease pending;
  pending.statement = newest_statement_;
  for (const uint64_t id : lease_ids) {
    held_.erase(id);
    if (lost_.erase(id) == 0) pending.lease_ids.push_back(id);
  }
  return pending;
}

void LeaseBook::AddPending(PendingRelease pending) {
  if (pending.empty()) return;
  absl::MutexLock lock(&mutex_);
  if (!pending_.empty()) {
    PendingRelease& last = pending_.back();
    const size_t all = last.lease_ids.size() + last.request_ids.size() + pending.lease_ids.size() +
                       pending.request_ids.size();
    if (last.statement == pending.statement && last.claims.empty() && pending.claims.empty() &&
        all <= kMostTogether) {
      Append(pending.lease_ids, &last.lease_ids);
      Append(pending.request_ids, &last.request_ids);
      return;
    }
  }
  pending_.push_back(std::move(pending));
}

std::vector<LeaseBook::PendingRelease> LeaseBook::TakePending(uint64_t statement) {
  absl::MutexLock lock(&mutex_);
  std::vector<PendingRelease> due, later;
  for (PendingRelease& pending : pending_) {
    if (pending.statement < statement) continue;
    (pending.statement == statement ? due : later).push_back(std::move(pending));
  }
  pending_ = std::move(later);
  return due;
}

bool LeaseBook::HasPendingAfter(uint64_t statement) const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(pending_.begin(), pending_.end(), [statement](const PendingRelease& pending) {
    return pending.statement > statement;
  });
}

void LeaseBook::CountEarly(int change) {
  absl::MutexLock lock(&mutex_);
  early_ += change;
}

bool LeaseBook::AwaitEarlyMappings(absl::Time until) const {
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return early_ == 0; };
  return mutex_.AwaitWithDeadline(absl::Condition(&none), until);
}

LeaseBook::Statement LeaseBook::MakeStatement() {
  absl::MutexLock lock(&mutex_);
  Statement statement;
  statement.number = ++newest_statement_;
  statement.lease_ids.assign(held_.begin(), held_.end());
  for (auto& [id, named_by] : requests_) {
    named_by = statement.number;
    statement.request_ids.push_back(id);
  }
  for (const auto& [request, contents] : claims_) statement.request_ids.push_back(request);
  return statement;
}

void LeaseBook::Lost(absl::Span<const uint64_t> lease_ids) {
  absl::MutexLock lock(&mutex_);
  for (const uint64_t id : lease_ids) {
    if (held_.erase(id) > 0) lost_.insert(id);
  }
}

void LeaseBook::DropHeld(std::vector<uint64_t>* lease_ids) const {
  absl::MutexLock lock(&mutex_);
  std::erase_if(*lease_ids, [&](uint64_t id) { return held_.contains(id); });
}

bool LeaseBook::IsLost(uint64_t lease_id) const {
  absl::MutexLock lock(&mutex_);
  return lost_.count(lease_id) > 0;
}

std::set<uint64_t> LeaseBook::lost() const {
  absl::MutexLock lock(&mutex_);
  return lost_;
}

}  // namespace gpumem::internal
