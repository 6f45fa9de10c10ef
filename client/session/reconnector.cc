// SPDX-License-Identifier: Apache-2.0
#include "client/session/reconnector.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/grpc_status.h"

namespace gpumem::internal {
namespace {

// Between two attempts.
constexpr absl::Duration kFirstBackOff = absl::Milliseconds(5);
constexpr absl::Duration kLongestBackOff = absl::Milliseconds(500);
// The minimum time for a daemon that has welcomed the session to answer. Else repeated calls with
// short deadlines would never receive the answer.
constexpr absl::Duration kReconcileTimeout = absl::Seconds(1);

}  // namespace

Reconnector::Progress::Progress() = default;
Reconnector::Progress::~Progress() {
  if (socket.valid()) ::shutdown(socket.get(), SHUT_RDWR);
}

Reconnector::Reconnector(ConnectionPtr first, v1::Welcome welcome, Greeting greeting,
                         std::string runtime_dir, LeaseBook* book, bool enabled)
    : welcome_(std::move(welcome)),
      greeting_(std::move(greeting)),
      runtime_dir_(std::move(runtime_dir)),
      book_(book),
      enabled_(enabled),
      current_(std::move(first)),
      back_off_(kFirstBackOff),
      random_(std::random_device{}()) {}

Reconnector::ConnectionPtr Reconnector::current() const {
  absl::MutexLock lock(&mutex_);
  return current_;
}

absl::Status Reconnector::over() const {
  absl::MutexLock lock(&mutex_);
  return over_;
}

absl::StatusOr<Reconnector::ConnectionPtr> Reconnector::Get(absl::Time deadline) {
  return GetOr(deadline, /*may_wait=*/true);
}

absl::StatusOr<Reconnector::ConnectionPtr> Reconnector::GetSoon(absl::Duration patience) {
  return GetOr(absl::Now() + patience, /*may_wait=*/false);
}

absl::StatusOr<Reconnector::ConnectionPtr> Reconnector::GetOr(absl::Time deadline, bool may_wait) {
  while (true) {
    const ConnectionPtr connection = current();
    const absl::Status end = connection->End();
    if (end.ok()) return connection;

    absl::MutexLock lock(&mutex_);
    if (!over_.ok()) return over_;
    if (connection != current_) continue;
    if (!enabled_ || connection->deliveries().over()) return over_ = end;
    const absl::Time now = absl::Now();
    if (now >= deadline) return Away();
    if (busy_ || now < next_try_) {
      if (!may_wait) return Away();
      const bool was_busy = busy_;
      const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return busy_ != was_busy || connection != current_ || !over_.ok();
      };
      mutex_.AwaitWithDeadline(absl::Condition(&changed),
                               was_busy ? deadline : std::min(deadline, next_try_));
      continue;
    }

    busy_ = true;
    mutex_.Unlock();
    absl::StatusOr<ConnectionPtr> resumed = Resume(deadline);
    mutex_.Lock();
    busy_ = false;
    if (resumed.ok()) {
      current_ = *std::move(resumed);
      next_try_ = absl::InfinitePast();
      back_off_ = kFirstBackOff;
      trouble_.clear();
      continue;
    }
    if (!over_.ok()) return over_;
    trouble_ = std::string(resumed.status().message());
    // Jitter: the clients of a node must not all try at the same moments.
    next_try_ = absl::Now() + back_off_ * std::uniform_real_distribution(0.75, 1.25)(random_);
    back_off_ = std::min(2 * back_off_, kLongestBackOff);
  }
}

absl::StatusOr<Reconnector::ConnectionPtr> Reconnector::Resume(absl::Time deadline) {
  // If the daemon has died meanwhile, begins again.
  if (progress_.has_value() && progress_->connection != nullptr && progress_->connection->ended()) {
    progress_.reset();
  }
  if (!progress_.has_value() || progress_->connection == nullptr) {
    if (absl::Status status = Greet(deadline); !status.ok()) return status;
  }
  if (absl::Status status = Reconcile(deadline); !status.ok()) return status;
  ConnectionPtr connection = std::move(progress_->connection);
  progress_.reset();
  return connection;
}

absl::Status Reconnector::Greet(absl::Time deadline) {
  if (!progress_.has_value()) {
    Greeting greeting = greeting_;
    greeting.resume_token = welcome_.token();
    greeting.connect_id = 0;
    absl::StatusOr<UniqueFd> socket = SayHello(runtime_dir_, greeting, deadline);
    if (!socket.ok()) return socket.status();
    progress_.emplace().socket = *std::move(socket);
  }
  bool refused = false;
  absl::StatusOr<Welcomed> welcomed =
      HearWelcome(progress_->socket.get(), runtime_dir_, deadline, &refused);
  if (absl::IsDeadlineExceeded(welcomed.status()) && !refused) return welcomed.status();
  if (!welcomed.ok()) {
    progress_.reset();
    const bool may_change = absl::IsUnavailable(welcomed.status()) ||
                            absl::IsResourceExhausted(welcomed.status()) ||
                            absl::IsDeadlineExceeded(welcomed.status());
    return refused && !may_change ? EndForGood(welcomed.status()) : welcomed.status();
  }
  const v1::Welcome& welcome = welcomed->welcome;
  if (!welcome.resumed() || welcome.session_id() != welcome_.session_id() ||
      welcome.token() != welcome_.token() || welcome.tenant() != welcome_.tenant()) {
    progress_.reset();
    return EndForGood(absl::NotFoundError("it has no sessions of the previous daemon"));
  }
  progress_->connection = std::make_shared<Connection>(std::move(progress_->socket),
                                                       std::move(welcomed->api), welcome_.token());
  return absl::OkStatus();
}

absl::Status Reconnector::Reconcile(absl::Time deadline) {
  const absl::Time answered_by = std::max(deadline, absl::Now() + kReconcileTimeout);
  // Calls of the connection before: they end with it.
  if (!book_->AwaitEarlyMappings(answered_by)) {
    return absl::UnavailableError("a call of the earlier connection has yet to end");
  }
  LeaseBook::Statement statement = book_->MakeStatement();
  v1::ReconcileRequest request;
  request.mutable_lease_ids()->Add(statement.lease_ids.begin(), statement.lease_ids.end());
  request.mutable_request_ids()->Add(statement.request_ids.begin(), statement.request_ids.end());
  v1::ReconcileResponse response;
  const grpc::Status status =
      progress_->connection->Call(&v1::Broker::Stub::Reconcile, request, &response, answered_by);
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return EndForGood(FromGrpcStatus(status));
  }
  if (!status.ok()) {
    // A broken connection is hopeless. Otherwise the daemon asks for another attempt.
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
        progress_->connection->Check(absl::Now() + kReconcileTimeout) ==
            Connection::Heartbeat::kBroken) {
      progress_->connection->GiveUp();
    }
    return FromGrpcStatus(status);
  }
  book_->Lost(std::vector<uint64_t>(response.unknown_lease_ids().begin(),
                                    response.unknown_lease_ids().end()));
  progress_->connection->set_statement(statement.number);
  return absl::OkStatus();
}

absl::Status Reconnector::EndForGood(absl::Status why) {
  progress_.reset();
  absl::MutexLock lock(&mutex_);
  over_ = absl::UnavailableError(
      absl::StrCat("the session has ended: the new daemon does not resume it (", why.message(),
                   "); mapped memory stays mapped; connect again"));
  return over_;
}

absl::Status Reconnector::Away() const {
  return absl::UnavailableError(absl::StrCat(
      "gpumemd is not running", trouble_.empty() ? "" : " (", trouble_, trouble_.empty() ? "" : ")",
      "; the session's memory stays valid, and the session resumes when gpumemd is back"));
}

}  // namespace gpumem::internal
