// SPDX-License-Identifier: Apache-2.0
// How the broker's service answers the calls of sessions. Internal to the implementation of
// broker_service.h.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/endpoints.h"
#include "common/trace/span.h"
#include "daemon/transport/service/broker_service.h"
#include "daemon/transport/service/unary_call.h"

namespace gpumemd {

inline absl::string_view TokenOf(const grpc::ServerContextBase& context) {
  auto it = context.client_metadata().find(gpumem::kTokenMetadata);
  if (it == context.client_metadata().end()) return {};
  return {it->second.data(), it->second.size()};
}

// Returns the name of the call with such requests, for traces.
template <typename Request>
const char* CallName() {
  static const std::string* const name =
      new std::string(absl::StripSuffix(Request::descriptor()->name(), "Request"));
  return name->c_str();
}

// The trace of a call that is served, from `begin_ns`, when gRPC hands over the request, to its
// answer. When the request was read is not known: any thread of gRPC may have read it. While no
// trace runs, this does nothing.
class CallTrace {
 public:
  explicit CallTrace(const char* name, uint64_t begin_ns = gpumem::trace::NowIfOn())
      : name_(name), begin_ns_(begin_ns), request_{.call = gpumem::trace::NextCall()} {}

  // Set the numbers, which are known after the begin.
  void SetSession(SessionId session) {
    request_.session = ToInt(session);
    gpumem::trace::Identify(request_.session, 0);
  }
  template <typename Request>
  void SetRequest(const Request& request) {
    if constexpr (requires { request.request_id(); }) {
      request_.id = request.request_id();
      gpumem::trace::Identify(request_.session, request_.id);
    }
  }

  const gpumem::trace::Request& request() const { return request_; }
  void Answered() const { gpumem::trace::RecordCall(request_, name_, begin_ns_); }

 private:
  const char* name_;
  uint64_t begin_ns_;
  gpumem::trace::Request request_;
};

// A call that is neither answered nor refused: it ends with its connection. Deletes itself.
template <typename Base>
class ParkedCall final : public Base {
 public:
  void OnCancel() override { this->Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }
};

// Larger requests are refused unread. Ids count up, so one takes 3 to 5 bytes; more ids than fit
// exceed the leases that a session may have.
template <typename Request>
inline constexpr size_t kMostBytes = SIZE_MAX;
template <>
inline constexpr size_t kMostBytes<gpumem::v1::ReleaseRequest> = 768 * 1024;
template <>
inline constexpr size_t kMostBytes<gpumem::v1::PrepareSuspendRequest> = 768 * 1024;
template <>
inline constexpr size_t kMostBytes<gpumem::v1::SuspendRequest> = 768 * 1024;
template <>
inline constexpr size_t kMostBytes<gpumem::v1::ReconcileRequest> = 768 * 1024;
// A pair takes 46 bytes at most, and 56 in memory even if it takes 2.
template <>
inline constexpr size_t kMostBytes<gpumem::v1::ExchangeLeasesRequest> = 16 * 1024;

template <typename Request>
absl::StatusOr<Request> ParseFew(const grpc::ByteBuffer& bytes) {
  if (bytes.Length() <= kMostBytes<Request>) return ParseRequest<Request>(bytes);
  return absl::InvalidArgumentError(
      absl::StrCat("a request of ", bytes.Length(), " bytes names more leases than one call may"));
}

template <typename Request, typename Attempt>
grpc::ServerUnaryReactor* BrokerService::Serve(Context* context, const Bytes* request,
                                               Bytes* response, Attempt attempt) {
  if (parks_) return new ParkedCall<Reactor>;
  Reactor* reactor = context->DefaultReactor();
  CallTrace traced(CallName<Request>());
  const gpumem::trace::RequestScope scope(traced.request());
  gpumem::trace::Span authenticate("authenticate");
  absl::StatusOr<Broker::Call> call = broker_->Authenticate(TokenOf(*context));
  if (call.ok()) traced.SetSession(call->session());
  authenticate.End();
  gpumem::trace::Span parse("parse");
  absl::StatusOr<Request> parsed =
      call.ok() ? ParseFew<Request>(*request) : absl::StatusOr<Request>(call.status());
  if (parsed.ok()) traced.SetRequest(*parsed);
  parse.End();
  if (!parsed.ok()) {
    call = absl::CancelledError();
    reactor->Finish(ToAnswer(parsed.status()));
    return reactor;
  }
  if (auto result = attempt(*call, *parsed, /*may_wait=*/false)) {
    // Uncounts the call before answering: a client with the answer may make the next call.
    call = absl::CancelledError();
    Answer(reactor, response, *result);
    traced.Answered();
    return reactor;
  }
  workers_.Run([=, queued = gpumem::trace::NowIfOn(), call = *std::move(call),
                parsed = *std::move(parsed)]() mutable {
    gpumem::trace::RecordOf(traced.request(), "queue", queued);
    const gpumem::trace::RequestScope on_worker(traced.request());
    auto result = [&] {
      const Broker::Call served = std::move(call);
      return *attempt(served, parsed, /*may_wait=*/true);
    }();
    Answer(reactor, response, result);
    traced.Answered();
  });
  return reactor;
}

}  // namespace gpumemd
