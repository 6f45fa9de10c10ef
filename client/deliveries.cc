#include "client/deliveries.h"

#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {

Deliveries::Call::Call(Deliveries* deliveries)
    : deliveries_(deliveries), number_(deliveries->Begin()) {}

Deliveries::Call::~Call() { deliveries_->End(number_); }

absl::StatusOr<std::vector<UniqueFd>> Deliveries::Call::Collect(uint64_t delivery_id,
                                                                absl::Time deadline) {
  return deliveries_->Collect(number_, delivery_id, deadline);
}

Deliveries::~Deliveries() { ::shutdown(socket_.get(), SHUT_RDWR); }

uint64_t Deliveries::Begin() {
  absl::MutexLock lock(&mutex_);
  calls_.insert(++newest_call_);
  return newest_call_;
}

void Deliveries::End(uint64_t call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
  Sweep();
}

absl::StatusOr<std::vector<UniqueFd>> Deliveries::Collect(uint64_t call, uint64_t delivery_id,
                                                          absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  while (true) {
    if (auto found = parked_.find(delivery_id); found != parked_.end()) {
      std::vector<UniqueFd> fds = std::move(found->second.fds);
      parked_.erase(found);
      return fds;
    }
    if (!end_.ok()) return end_;
    if (reading_) {
      const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !reading_ || !end_.ok() || parked_.count(delivery_id) != 0;
      };
      if (mutex_.AwaitWithDeadline(absl::Condition(&changed), deadline)) continue;
    } else {
      // What was sent before the answer is here already, unless it was lost.
      if (ReadOne(call <= lossy_until_ ? absl::InfinitePast() : deadline) || !end_.ok()) continue;
      if (call <= lossy_until_) {
        return absl::ResourceExhaustedError(
            "this process could not take the file descriptors of its segments: it is at its limit "
            "of open files; raise it (ulimit -n)");
      }
    }
    return absl::DeadlineExceededError("the daemon did not send the segments' memory in time");
  }
}

absl::Status Deliveries::Poll() {
  absl::MutexLock lock(&mutex_);
  while (!reading_ && ReadOne(absl::InfinitePast())) {
  }
  return end_;
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
          "the daemon has closed the session, or is gone; memory that is mapped stays mapped; "
          "connect again");
      return false;
    default:
      end_ = absl::UnavailableError(
          absl::StrCat("the session is broken: ", message.status().message()));
      return false;
  }
}

void Deliveries::Take(UnixMessage message) {
  v1::ServerMessage parsed;
  if (!parsed.ParseFromString(message.bytes)) {
    end_ = absl::UnavailableError(
        "the session is broken: the daemon sent what is no message of the protocol");
    return;
  }
  if (parsed.has_goodbye()) {
    end_ = absl::UnavailableError(
        absl::StrCat("the daemon has ended the session: ", parsed.goodbye().reason()));
  } else if (parsed.has_delivery()) {
    const v1::Delivery& delivery = parsed.delivery();
    parked_[delivery.delivery_id()] = {
        .lease_ids = {delivery.lease_ids().begin(), delivery.lease_ids().end()},
        .fds = std::move(message.fds),
        .newest_call = newest_call_};
    Sweep();
  }
  // A younger daemon's other messages are none of this library's business.
}

void Deliveries::Sweep() {
  for (auto it = parked_.begin(); it != parked_.end();) {
    const bool wanted = !calls_.empty() && *calls_.begin() <= it->second.newest_call;
    if (wanted) {
      ++it;
    } else {
      abandoned_.push_back(std::move(it->second.lease_ids));
      it = parked_.erase(it);
    }
  }
}

}  // namespace gpumem::internal
