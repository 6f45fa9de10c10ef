// SPDX-License-Identifier: Apache-2.0
// How a session makes its calls, and those whose answer is leases and a Delivery: Acquire, Open,
// Attach and Resume. lane/calls.cc has their way over the lane.
#include "client/session/session.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/interrupt.h"
#include "client/session/lease_book.h"
#include "client/session/waiting_call.h"
#include "common/failpoint.h"
#include "common/fork_count.h"
#include "common/trace/span.h"

namespace gpumem::internal {
namespace {

// How often a thread that waits for memory handles the session's pending work and calls `look`.
constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kOwnLookEvery = absl::Milliseconds(50);
// How often it reads the socket if the daemon may wait for that: a Delivery of many messages does
// not fit into the socket's buffer.
constexpr absl::Duration kReadEvery = absl::Milliseconds(1);

absl::Status Cancelled() { return absl::CancelledError("the wait for memory was cancelled"); }

// Returns the end of a request's wait.
absl::Time WaitEnds(uint64_t wait_ms) {
  if (wait_ms >= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InfiniteFuture();
  }
  return absl::Now() + absl::Milliseconds(static_cast<int64_t>(wait_ms));
}

}  // namespace

Grant::Grant(std::shared_ptr<Session> session, std::shared_ptr<Connection> connection,
             std::vector<v1::Lease> leases)
    : session_(std::move(session)),
      connection_(std::move(connection)),
      leases_(std::move(leases)) {}

Grant::~Grant() {
  // The memory must be unmapped here before its lease ends.
  fds_.clear();
  if (session_ != nullptr) session_->Forget(LeaseIds());
}

std::vector<uint64_t> Grant::LeaseIds() const {
  std::vector<uint64_t> ids;
  for (const v1::Lease& lease : leases_) ids.push_back(lease.lease_id());
  return ids;
}

bool Session::forked() const { return KnownForkCount() != forks_; }

absl::Time Session::Deadline(std::optional<absl::Duration> timeout) const {
  return absl::Now() + timeout.value_or(timeout_);
}

absl::Status Session::CheckProcess() const {
  if (!forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked from the one that connected; the session belongs to the parent "
      "process");
}

void Session::Keep(std::shared_ptr<void> object) {
  absl::MutexLock lock(&mutex_);
  kept_.push_back(std::move(object));
}

// --- Calls that are answered soon ---------------------------------------------------------

template <typename Request, typename Response>
absl::StatusOr<Grant> Session::CallForGrant(Method<Request, Response> method, Request request,
                                            int count, absl::Time deadline, Recipient* recipient) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  LeaseBook::Request booked(&book_);
  request.set_request_id(booked.id());
  trace::Identify(welcome_.session_id(), booked.id());
  while (true) {
    CarriedRelease carried;
    const absl::StatusOr<ConnectionPtr> connection =
        Prepare(deadline, TakesLong(request) ? nullptr : &carried);
    if (!connection.ok()) return connection.status();
    Deliveries::Call call(&(*connection)->deliveries());
    v1::SessionRequest message;
    *PartFor(request, message) = request;
    if (!carried.release.empty()) *message.mutable_release() = ToRequest(carried.release);
    v1::SessionResponse answer;
    absl::StatusOr<Grant> grant = [&] {
      std::optional<absl::StatusOr<Grant>> made = CallOnLane(
          *connection, call, booked, std::move(message), count, deadline, recipient, &answer);
      SettleCarried(**connection, std::move(carried), made ? &answer : nullptr,
                    std::min(deadline, absl::Now() + kTimeout));
      if (made) return *std::move(made);
      absl::StatusOr<Response> response = Call(**connection, method, request, deadline);
      return TakeGrant(*connection, call, booked, TakeLeases(response), count, deadline);
    }();
    if (!HasEnded(**connection, grant.status())) return grant;
  }
}

absl::StatusOr<Grant> Session::Acquire(const v1::AcquireRequest& request, absl::Time deadline,
                                       Recipient* recipient) {
  return CallForGrant(&v1::Broker::Stub::Acquire, request,
                      static_cast<int>(std::max(request.count(), 1u)), deadline, recipient);
}

absl::StatusOr<Grant> Session::Open(const v1::OpenRequest& request, absl::Time deadline,
                                    Recipient* recipient) {
  return CallForGrant(&v1::Broker::Stub::Open, request, request.tickets_size(), deadline,
                      recipient);
}

absl::StatusOr<Session::ConnectionPtr> Session::Prepare(absl::Time deadline,
                                                        CarriedRelease* carried) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  absl::StatusOr<ConnectionPtr> connection = reconnector_.Get(deadline);
  if (!connection.ok()) return connection;
  // First: a thread that keeps others from flushing here must not wait for them.
  Flusher::FlushOthers(*this);
  FlushPending(**connection, std::min(deadline, absl::Now() + kTimeout), carried);
  return connection;
}

absl::StatusOr<Grant> Session::TakeGrant(const ConnectionPtr& connection, Deliveries::Call& call,
                                         LeaseBook::Request& request,
                                         absl::StatusOr<Granted> granted, std::optional<int> count,
                                         absl::Time deadline) {
  if (!granted.ok()) return granted.status();
  absl::StatusOr<std::vector<UniqueFd>> fds = call.Collect(granted->delivery_id, deadline);
  // The memory did not come, and never will over this connection: it must be requested again.
  if (absl::IsUnavailable(fds.status())) return fds.status();
  Grant grant(shared_from_this(), connection, std::move(granted->leases));
  request.Granted(grant.LeaseIds());
  if (!fds.ok()) return fds.status();
  const size_t leases = grant.leases().size();
  if (count.value_or(static_cast<int>(leases)) != static_cast<int>(leases) ||
      fds->size() != leases) {
    return absl::InternalError(
        absl::StrCat("asked for ", count.value_or(0), " segments, the daemon granted ", leases,
                     " and sent the memory of ", fds->size(), "; this is a defect of gpumem"));
  }
  grant.set_fds(*std::move(fds));
  return grant;
}

// --- Calls that may wait ----------------------------------------------------------------

template <typename Request, typename Response>
absl::StatusOr<Session::Answered<Response>> Session::CallWaitingForGrant(
    AsyncMethod<Request, Response> method, LeaseBook::Request& booked, Request request,
    const Wait& wait, absl::Time deadline, const Disturbance& disturbance,
    absl::FunctionRef<int(const std::type_identity_t<Response>&)> heard) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const Interrupt* const interrupt = disturbance.interrupt.get();
  request.set_request_id(booked.id());
  trace::Identify(welcome_.session_id(), booked.id());
  while (true) {
    const absl::StatusOr<ConnectionPtr> connection = PrepareUnless(disturbance, deadline);
    if (!connection.ok()) return connection.status();
    if (interrupt != nullptr && interrupt->cancelled()) return Cancelled();
    absl::StatusOr<Response> response = absl::UnknownError("");
    absl::StatusOr<Grant> grant = [&] {
      Deliveries::Call call(&(*connection)->deliveries(), wait.is_long);
      if constexpr (std::is_same_v<Request, v1::AttachRequest>) {
        if (!wait.is_long && interrupt == nullptr && !disturbance.look) {
          v1::SessionRequest message;
          *PartFor(request, message) = request;
          v1::SessionResponse answer;
          auto made = CallOnLane(*connection, call, booked, std::move(message), std::nullopt,
                                 deadline, wait.recipient, &answer);
          if (made && made->ok()) {
            response = std::move(*answer.mutable_attach());
            heard(*response);
          }
          if (made) return *std::move(made);
        }
      }
      response = CallWaiting(**connection, method, request, deadline, disturbance, wait.is_long);
      const int count = response.ok() ? heard(*response) : 0;
      if constexpr (requires { response->claimed(); }) {
        // It has no Delivery.
        if (response.ok() && response->claimed()) {
          return absl::StatusOr<Grant>(Grant(shared_from_this(), *connection, {}));
        }
      }
      // It was sent before the answer: the end of a long wait does not limit how long it may take.
      return TakeGrant(*connection, call, booked, TakeLeases(response), count,
                       std::min(deadline, Deadline(std::nullopt)));
    }();
    if (grant.ok()) return Answered<Response>{*std::move(grant), *std::move(response)};
    if (absl::IsCancelled(grant.status())) SettleCancelled(**connection);
    if (!HasEnded(**connection, grant.status())) return grant.status();
    if (wait.ends == absl::InfiniteFuture()) continue;
    // Part of the wait is over already.
    request.set_wait_ms(static_cast<uint64_t>(
        std::max(wait.least_ms, absl::ToInt64Milliseconds(wait.ends - absl::Now()))));
  }
}

absl::StatusOr<Grant> Session::AcquireWaiting(const v1::AcquireRequest& request,
                                              absl::Time deadline, const Disturbance& disturbance) {
  const int count = static_cast<int>(std::max(request.count(), 1u));
  LeaseBook::Request booked(&book_);
  absl::StatusOr<Answered<v1::AcquireResponse>> answered = CallWaitingForGrant(
      &v1::Broker::Stub::AsyncAcquire, booked, request,
      {.is_long = true, .ends = WaitEnds(request.wait_ms()), .least_ms = 0}, deadline, disturbance,
      [count](const v1::AcquireResponse&) { return count; });
  if (!answered.ok()) return answered.status();
  return std::move(answered->grant);
}

absl::StatusOr<Session::Attached> Session::Attach(const v1::AttachRequest& request,
                                                  absl::Time deadline,
                                                  const Disturbance& disturbance,
                                                  Recipient* recipient) {
  Failpoint("client-attach-asks");
  const absl::Time ends =
      request.wait_ms() > 0 ? WaitEnds(request.wait_ms()) : absl::InfiniteFuture();
  LeaseBook::Request booked(&book_);
  absl::StatusOr<Attached> attached =
      CallWaitingForGrant(&v1::Broker::Stub::AsyncAttach, booked, request,
                          {.is_long = request.wait_for_version() > 0 || request.wait_ms() > 0,
                           .ends = ends,
                           .least_ms = 1,
                           .recipient = recipient},
                          deadline, disturbance, [](const v1::AttachResponse& response) {
                            Failpoint("client-attach-heard");
                            return response.leases_size();
                          });
  if (attached.ok()) attached->response.clear_leases();
  return attached;
}

absl::StatusOr<Session::AttachedOrClaimed> Session::AttachOrClaim(
    const v1::AttachOrClaimRequest& request, LeaseBook::Contents contents, absl::Time deadline,
    const Disturbance& disturbance) {
  Failpoint("client-claim-asks");
  std::optional<LeaseBook::Request> booked(&book_);
  const uint64_t id = booked->id();
  auto answered =
      CallWaitingForGrant(&v1::Broker::Stub::AsyncAttachOrClaim, *booked, request,
                          {.is_long = true, .ends = WaitEnds(request.wait_ms())}, deadline,
                          disturbance, [](const v1::AttachOrClaimResponse& response) {
                            Failpoint("client-claim-heard");
                            return response.leases_size();
                          });
  if (answered.ok()) {
    if (answered->response.claimed()) {
      answered->grant.Keep();
      booked->Claimed(std::move(contents));
    }
    answered->response.clear_leases();
    return AttachedOrClaimed{*std::move(answered), id};
  }
  // First, lest the next statement names the request.
  booked.reset();
  if (MayHaveTakenEffect(answered.status())) {
    book_.AddPending(book_.GiveUpUnheard(id));
    Forget({});
  }
  return answered.status();
}

absl::StatusOr<Session::Resumed> Session::Resume(v1::ResumeRequest request, absl::Time deadline,
                                                 const Disturbance& disturbance) {
  const absl::Time ends = WaitEnds(request.wait_ms());
  while (true) {
    const absl::StatusOr<ConnectionPtr> connection = PrepareUnless(disturbance, deadline);
    if (!connection.ok()) return connection.status();
    if (disturbance.interrupt != nullptr && disturbance.interrupt->cancelled()) return Cancelled();
    absl::StatusOr<Resumed> resumed = ResumeOnce(**connection, request, deadline, disturbance);
    Failpoint("client-resume-heard");
    if (resumed.ok()) return resumed;
    if (absl::IsCancelled(resumed.status())) SettleCancelled(**connection);
    if (!HasEnded(**connection, resumed.status())) {
      return ExplainLost(request.lease_ids(), resumed.status());
    }
    if (ends == absl::InfiniteFuture()) continue;
    // Part of the wait is over already.
    request.set_wait_ms(
        static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(ends - absl::Now()))));
  }
}

absl::StatusOr<Session::Resumed> Session::ResumeOnce(Connection& connection,
                                                     const v1::ResumeRequest& request,
                                                     absl::Time deadline,
                                                     const Disturbance& disturbance) {
  Deliveries::Call call(&connection.deliveries(), /*waits=*/true);
  absl::StatusOr<v1::ResumeResponse> response =
      CallWaiting(connection, &v1::Broker::Stub::AsyncResume, request, deadline, disturbance,
                  /*waits=*/true);
  if (!response.ok()) return response.status();
  absl::StatusOr<std::vector<UniqueFd>> fds =
      call.Collect(response->delivery_id(), std::min(deadline, Deadline(std::nullopt)));
  if (!fds.ok()) return fds.status();
  Resumed resumed = {.leases = {response->leases().begin(), response->leases().end()},
                     .fds = *std::move(fds)};
  const std::vector<uint64_t> asked(request.lease_ids().begin(), request.lease_ids().end());
  if (!std::equal(asked.begin(), asked.end(), resumed.leases.begin(), resumed.leases.end(),
                  [](uint64_t id, const v1::Lease& lease) { return id == lease.lease_id(); }) ||
      resumed.fds.size() != asked.size()) {
    return absl::InternalError(absl::StrCat("asked to resume ", asked.size(),
                                            " segments, the daemon answered with ",
                                            resumed.leases.size(), " and sent the memory of ",
                                            resumed.fds.size(), "; this is a defect of gpumem"));
  }
  return resumed;
}

template <typename Request, typename Response>
absl::StatusOr<Response> Session::CallWaiting(Connection& connection,
                                              AsyncMethod<Request, Response> method,
                                              const Request& request, absl::Time deadline,
                                              const Disturbance& disturbance, bool waits) {
  Interrupt* const interrupt = disturbance.interrupt.get();
  bool gave_up = false;
  const auto look = [&] {
    if (connection.ended()) return absl::ZeroDuration();  // Explain() says why
    FlushPending(connection, absl::Now() + kTimeout);
    if (waits) HurryReleases(2 * kLookEvery);
    gave_up = (interrupt != nullptr && interrupt->cancelled()) ||
              (disturbance.look && disturbance.look());
    if (gave_up) return absl::ZeroDuration();
    if (!waits || connection.deliveries().HasPart()) return kReadEvery;
    return disturbance.look ? kOwnLookEvery : kLookEvery;
  };
  const trace::Span span("call");
  grpc::ClientContext context;
  connection.SetUp(context, deadline);
  Response response;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
  const grpc::Status status = WaitForAnswer(
      context,
      [&](grpc::CompletionQueue* queue, grpc::Status* end, void* tag) {
        reader = (connection.stub().*method)(&context, request, queue);
        reader->Finish(&response, end, tag);
        Failpoint("client-call-sent");
      },
      interrupt, look);
  if (status.ok()) return response;
  if (gave_up && status.error_code() == grpc::StatusCode::CANCELLED && !connection.ended()) {
    return Cancelled();
  }
  return Explain(connection, status, deadline);
}

void Session::SettleCancelled(Connection& connection) {
  // Once the daemon, which already knows of the cancellation, has answered another call, its
  // Delivery is here. It is given back.
  v1::GetUsageResponse usage;
  connection.Call(&v1::Broker::Stub::GetUsage, v1::GetUsageRequest(), &usage,
                  absl::Now() + kTimeout);
  Forget({});
}

absl::StatusOr<Session::ConnectionPtr> Session::PrepareUnless(const Disturbance& disturbance,
                                                              absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  while (true) {
    absl::StatusOr<ConnectionPtr> connection =
        reconnector_.Get(std::min(deadline, absl::Now() + kOwnLookEvery));
    if (connection.ok()) {
      Flusher::FlushOthers(*this);
      FlushPending(**connection, std::min(deadline, absl::Now() + kTimeout));
      return connection;
    }
    if (!MayComeBack(connection.status()) || absl::Now() >= deadline) return connection;
    if ((disturbance.interrupt != nullptr && disturbance.interrupt->cancelled()) ||
        (disturbance.look && disturbance.look())) {
      return Cancelled();
    }
  }
}

}  // namespace gpumem::internal