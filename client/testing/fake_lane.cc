// SPDX-License-Identifier: Apache-2.0
// A FakeDaemon's Converse.
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "client/testing/fake_daemon.h"

namespace gpumem::internal {
namespace {

// The request of the Converse that this thread serves: Deliveries describe it.
thread_local std::optional<uint64_t> described;

void SetStatus(const grpc::Status& status, v1::StatusDetails* details) {
  details->ParseFromString(status.error_details());
  details->set_code(status.error_code());
  details->set_message(status.error_message());
}

}  // namespace

void DescribeLeases(const std::vector<v1::Lease>& leases, v1::Delivery* delivery) {
  if (!described) return;
  delivery->set_request_id(*described);
  delivery->mutable_leases()->Add(leases.begin(), leases.end());
}

grpc::Status FakeDaemon::Converse(
    v1::Broker::Service& calls, grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) {
  const auto is_cancelled = [context] { return context->IsCancelled(); };
  for (v1::SessionRequest request; stream->Read(&request);) {
    ++messages_;
    if (script_.message) {
      if (grpc::Status status = script_.message(request); !status.ok()) return status;
    }
    v1::SessionResponse response;
    response.set_number(request.number());
    if (request.has_release()) {
      v1::ReleaseResponse released;
      const grpc::Status status = calls.Release(context, &request.release(), &released);
      if (!status.ok()) SetStatus(status, response.mutable_release_status());
    }
    const absl::Cleanup end = [] { described.reset(); };
    grpc::Status status;
    if (request.has_acquire()) {
      described = request.acquire().request_id();
      status = calls.Acquire(context, &request.acquire(), response.mutable_acquire());
    } else if (request.has_open()) {
      described = request.open().request_id();
      status = calls.Open(context, &request.open(), response.mutable_open());
    } else if (request.has_attach()) {
      described = request.attach().request_id();
      status = calls.Attach(context, &request.attach(), response.mutable_attach());
    } else if (request.has_get_usage()) {
      status = calls.GetUsage(context, &request.get_usage(), response.mutable_get_usage());
    }
    if (!status.ok()) {
      response.clear_answer();
      SetStatus(status, response.mutable_status());
    }
    if (script_.answered) {
      status = script_.answered(is_cancelled, &response);
      if (!status.ok()) return status;
    }
    if (!stream->Write(response)) break;
  }
  return grpc::Status::OK;
}

}  // namespace gpumem::internal
