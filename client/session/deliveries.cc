// SPDX-License-Identifier: Apache-2.0
#include "client/session/deliveries.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/failpoint.h"
#include "common/spin/answer_spinner.h"
#include "common/spin/spin.h"
#include "common/trace/span.h"

namespace gpumem::internal {

Deliveries::Call::Call(Deliveries* deliveries, bool waits)
    : deliveries_(deliveries), number_(deliveries->Begin(waits)) {}

Deliveries::Call::~Call() { deliveries_->End(number_); }

absl::StatusOr<std::vector<UniqueFd>> Deliveries::Call::Collect(uint64_t delivery_id,
                                                                absl::Time deadline) {
  const trace::Span span("receive");
  return deliveries_->Collect(number_, delivery_id, deadline);
}

std::optional<Deliveries::Call::Arrival> Deliveries::Call::TakeArrived(uint64_t request_id,
                                                                       absl::Time until) {
  return deliveries_->TakeArrived(number_, request_id, until);
}

Deliveries::~Deliveries() { ::shutdown(socket_.get(), SHUT_RDWR); }

uint64_t Deliveries::Begin(bool waits) {
  absl::MutexLock lock(&mutex_);
  (waits ? waiting_ : calls_).insert(++newest_call_);
  return newest_call_;
}

void Deliveries::End(uint64_t call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
  waiting_.erase(call);
  Sweep();
}

absl::StatusOr<std::vector<UniqueFd>> Deliveries::Collect(uint64_t call, uint64_t delivery_id,
                                                          absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  while (true) {
    if (auto found = parked_.find(delivery_id);
        found != parked_.end() && found->second.parts_missing == 0) {
      auto parked = parked_.extract(found);
      return std::move(parked.mapped().fds);
    }
    if (!end_.ok()) return end_;
    if (reading_) {
      const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        auto found = parked_.find(delivery_id);
        return !reading_ || !end_.ok() ||
               (found != parked_.end() && found->second.parts_missing == 0);
      };
      if (mutex_.AwaitWithDeadline(absl::Condition(&changed), deadline)) continue;
    } else {
      // A Delivery sent before the answer has arrived already, unless it was lost.
      if (ReadOne(call <= lossy_until_ ? absl::InfinitePast() : deadline) || !end_.ok()) continue;
      parked_.erase(delivery_id);  // the parts that came: the caller knows its leases
      if (call <= lossy_until_) {
        return absl::ResourceExhaustedError(
            "this process could not take the file descriptors of its segments: it is at its limit "
            "of open files; raise it (ulimit -n)");
      }
    }
    return absl::DeadlineExceededError("the daemon did not send the segments' memory in time");
  }
}

std::optional<Deliveries::Call::Arrival> Deliveries::TakeArrived(uint64_t call, uint64_t request_id,
                                                                 absl::Time until) {
  absl::MutexLock lock(&mutex_);
  while (true) {
    if (auto arrival = FindArrived(call, request_id)) return arrival;
    if (!end_.ok()) return std::nullopt;
    if (!reading_) {
      if (!ReadOne(absl::InfinitePast())) return std::nullopt;
      continue;
    }
    const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !reading_; };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&free), until)) return std::nullopt;
  }
}

std::optional<Deliveries::Call::Arrival> Deliveries::FindArrived(uint64_t call,
                                                                 uint64_t request_id) {
  for (auto it = parked_.begin(); it != parked_.end(); ++it) {
    Parked& parked = it->second;
    const bool is_it = parked.request_id == request_id && parked.newest_call >= call;
    if (!is_it || parked.described.empty() || !parked.fds.ok()) continue;
    Call::Arrival arrival = {.delivery_id = it->first,
                             .leases = std::move(parked.described),
                             .fds = *std::move(parked.fds)};
    parked_.erase(it);
    return arrival;
  }
  return std::nullopt;
}

Deliveries::Readable Deliveries::AwaitReadable(int other, absl::Time until) const {
  std::array<pollfd, 2> polled = {pollfd{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                  pollfd{.fd = other, .events = POLLIN, .revents = 0}};
  SpinningWait wait(&AnswerSpinner());
  if (!wait.Spin([&] { return ::poll(polled.data(), polled.size(), 0) > 0; })) {
    const timespec timeout = absl::ToTimespec(std::max(until - absl::Now(), absl::ZeroDuration()));
    if (::ppoll(polled.data(), polled.size(), &timeout, nullptr) <= 0) return Readable::kNone;
  }
  if (polled[0].revents == 0) return Readable::kOther;
  return polled[1].revents == 0 ? Readable::kSession : Readable::kBoth;
}

absl::Status Deliveries::Poll() {
  absl::MutexLock lock(&mutex_);
  while (!reading_ && ReadOne(absl::InfinitePast())) {
  }
  Sweep();
  return end_;
}

absl::Status Deliveries::AwaitEnd(absl::Time until) {
  absl::MutexLock lock(&mutex_);
  const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !reading_; };
  while (end_.ok() && mutex_.AwaitWithDeadline(absl::Condition(&free), until) && ReadOne(until)) {
  }
  Sweep();
  return end_;
}

bool Deliveries::over() {
  absl::MutexLock lock(&mutex_);
  return over_;
}

absl::StatusOr<UniqueFd> Deliveries::TakePool(uint64_t pool_id) {
  absl::MutexLock lock(&mutex_);
  if (auto found = pools_.find(pool_id); found != pools_.end() && found->second.valid()) {
    return std::move(found->second);
  }
  if (lossy_until_ > 0) {
    return absl::ResourceExhaustedError(
        "this process could not take the file descriptor of its memory pool, which is sent once in "
        "a session: it was at its limit of open files; raise it (ulimit -n) and connect again");
  }
  return absl::InternalError(absl::StrCat("the daemon did not send the descriptor of memory pool ",
                                          pool_id, "; this is a defect of gpumem"));
}

UniqueFd Deliveries::TakeMemoryPage() {
  absl::MutexLock lock(&mutex_);
  return std::move(memory_page_);
}

bool Deliveries::HasPart() {
  absl::MutexLock lock(&mutex_);
  return std::any_of(parked_.begin(), parked_.end(),
                     [](const auto& entry) { return entry.second.parts_missing > 0; });
}

void Deliveries::ReturnPool(uint64_t pool_id, UniqueFd fd) {
  absl::MutexLock lock(&mutex_);
  pools_[pool_id] = std::move(fd);
}

void Deliveries::ForgetPool(uint64_t pool_id) {
  absl::MutexLock lock(&mutex_);
  pools_.erase(pool_id);
}

std::vector<std::vector<uint64_t>> Deliveries::TakeAbandoned() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(abandoned_, {});
}

bool Deliveries::ReadOne(absl::Time deadline) {
  if (!end_.ok()) return false;
  reading_ = true;
  mutex_.Unlock();
  absl::StatusOr<UnixMessage> message = ReceiveMessage(socket_.get(), deadline);
  mutex_.Lock();
  reading_ = false;

  switch (message.status().code()) {
    case absl::StatusCode::kOk:
      Take(*std::move(message));
      return true;
    case absl::StatusCode::kDeadlineExceeded:
      return false;
    case absl::StatusCode::kDataLoss:
      lossy_until_ = newest_call_;
      return true;
    case absl::StatusCode::kUnavailable:
      end_ = absl::UnavailableError(
          "the daemon has closed the session, or has ended; mapped memory stays mapped; connect "
          "again");
      return false;
    default:
      over_ = true;
      end_ = absl::UnavailableError(
          absl::StrCat("the session is broken: ", message.status().message()));
      return false;
  }
}

void Deliveries::Take(UnixMessage message) {
  v1::ServerMessage parsed;
  if (!parsed.ParseFromString(message.bytes)) {
    over_ = true;
    end_ = absl::UnavailableError(
        "the session is broken: the daemon sent a message that does not parse");
    return;
  }
  if (parsed.has_goodbye()) {
    over_ = !parsed.goodbye().stopping();
    end_ = absl::UnavailableError(
        absl::StrCat("the daemon has ended the session: ", parsed.goodbye().reason()));
  } else if (parsed.has_delivery()) {
    Failpoint("client-delivery");
    Park(parsed.delivery(), std::move(message.fds));
    Sweep();
  }
  // Ignores other messages of a newer daemon.
}

void Deliveries::Park(const v1::Delivery& delivery, std::vector<UniqueFd> fds) {
  Parked parked = {.lease_ids = {delivery.lease_ids().begin(), delivery.lease_ids().end()},
                   .fds = std::vector<UniqueFd>(static_cast<size_t>(delivery.lease_ids_size())),
                   .newest_call = newest_call_,
                   .arrived = absl::Now()};
  const auto of_leases = static_cast<size_t>(delivery.fd_lease_ids_size());
  const auto of_pools = static_cast<size_t>(delivery.pool_ids_size());
  size_t used = 0;
  if (delivery.memory_page() && fds.size() == of_leases + of_pools + 1) {
    memory_page_ = std::move(fds.back());
    fds.pop_back();
  }
  if (fds.size() == of_leases + of_pools) {
    // Both lists name leases in the same order.
    for (size_t i = 0; i < parked.lease_ids.size() && used < of_leases; ++i) {
      if (delivery.fd_lease_ids(static_cast<int>(used)) == parked.lease_ids[i]) {
        (*parked.fds)[i] = std::move(fds[used++]);
      }
    }
    for (size_t i = 0; i < of_pools; ++i) {
      pools_.emplace(delivery.pool_ids(static_cast<int>(i)), std::move(fds[of_leases + i]));
    }
  }
  if (used != of_leases || fds.size() != of_leases + of_pools) {
    parked.fds = absl::InternalError(
        absl::StrCat("the daemon sent ", fds.size(), " file descriptors for ", of_leases,
                     " segments and ", of_pools, " pools; this is a defect of gpumem"));
  }
  AddPart(delivery, std::move(parked));
}

void Deliveries::AddPart(const v1::Delivery& delivery, Parked part) {
  if (delivery.parts() <= 1) {
    const auto describes = [&] {
      if (delivery.leases_size() != delivery.lease_ids_size()) return false;
      for (int i = 0; i < delivery.leases_size(); ++i) {
        if (delivery.leases(i).lease_id() != delivery.lease_ids(i)) return false;
      }
      return true;
    };
    if (delivery.request_id() != 0 && describes()) {
      part.request_id = delivery.request_id();
      part.described = {delivery.leases().begin(), delivery.leases().end()};
    }
    parked_[delivery.delivery_id()] = std::move(part);
    return;
  }
  const auto [found, first] = parked_.try_emplace(delivery.delivery_id());
  Parked& whole = found->second;
  if (first) {
    whole.fds = std::vector<UniqueFd>();
    whole.parts_missing = delivery.parts();
  }
  whole.newest_call = part.newest_call;
  whole.arrived = part.arrived;
  whole.lease_ids.insert(whole.lease_ids.end(), part.lease_ids.begin(), part.lease_ids.end());
  // If an earlier part was lost, it never becomes whole and cannot be collected.
  if (whole.parts_missing != delivery.parts() - delivery.part()) return;
  --whole.parts_missing;
  if (!part.fds.ok()) whole.fds = part.fds.status();
  if (!whole.fds.ok()) return;
  std::move(part.fds->begin(), part.fds->end(), std::back_inserter(*whole.fds));
}

void Deliveries::Sweep() {
  if (parked_.empty()) return;
  const absl::Time now = absl::Now();
  const auto any_until = [](const std::set<uint64_t>& calls, uint64_t newest) {
    return !calls.empty() && *calls.begin() <= newest;
  };
  for (auto it = parked_.begin(); it != parked_.end();) {
    const Parked& parked = it->second;
    if (any_until(calls_, parked.newest_call) ||
        (any_until(waiting_, parked.newest_call) && now < parked.arrived + answer_follows_)) {
      ++it;
    } else {
      abandoned_.push_back(std::move(it->second.lease_ids));
      it = parked_.erase(it);
    }
  }
}

}  // namespace gpumem::internal
