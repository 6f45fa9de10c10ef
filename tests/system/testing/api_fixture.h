// SPDX-License-Identifier: Apache-2.0
// A session of tenant "bad" that makes calls over gRPC, beside a bystander
// (tests/support/attack.h).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/attack.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem::testing {

class Api : public AttackTest {
 protected:
  void SetUp() override {
    AttackTest::SetUp();
    broker_ = NewBroker();
    session_ = std::make_unique<WireSession>(Session("bad"));
  }
  // Held memory would linger: this process lives on.
  void TearDown() override {
    for (const auto& [token, lease] : held_) EXPECT_OK(Release({lease}, token));
    session_.reset();
    broker_.reset();
    AttackTest::TearDown();
  }

  const std::string& token() const { return session_->token(); }

  static v1::AcquireRequest AcquireOf(uint64_t bytes, uint32_t count = 1) {
    v1::AcquireRequest request;
    request.set_bytes(bytes);
    request.set_count(count);
    return request;
  }
  absl::StatusOr<v1::AcquireResponse> Acquire(const v1::AcquireRequest& request,
                                              const std::string& token) {
    auto response = CallBroker(*broker_, &v1::Broker::Stub::Acquire, request, token);
    if (response.ok()) {
      for (const v1::Lease& lease : response->leases()) held_.emplace_back(token, lease.lease_id());
    }
    return response;
  }
  absl::StatusOr<v1::AcquireResponse> Acquire(const v1::AcquireRequest& request) {
    return Acquire(request, token());
  }
  uint64_t AcquireOne() {
    auto response = Acquire(AcquireOf(1));
    EXPECT_OK(response);
    return response.ok() ? response->leases(0).lease_id() : 0;
  }
  absl::Status Release(const std::vector<uint64_t>& leases, const std::string& token) {
    v1::ReleaseRequest request;
    request.mutable_lease_ids()->Add(leases.begin(), leases.end());
    return CallBroker(*broker_, &v1::Broker::Stub::Release, request, token).status();
  }
  absl::StatusOr<std::string> Share(uint64_t lease, const std::string& token,
                                    v1::TicketScope scope = v1::TICKET_SCOPE_TENANT) {
    v1::ShareRequest request;
    request.set_lease_id(lease);
    request.set_scope(scope);
    auto response = CallBroker(*broker_, &v1::Broker::Stub::Share, request, token);
    if (!response.ok()) return response.status();
    return response->ticket();
  }
  absl::Status Open(const std::vector<std::string>& tickets, const std::string& token) {
    v1::OpenRequest request;
    for (const std::string& ticket : tickets) request.add_tickets(ticket);
    auto response = CallBroker(*broker_, &v1::Broker::Stub::Open, request, token);
    if (response.ok()) {
      for (const v1::Lease& lease : response->leases()) held_.emplace_back(token, lease.lease_id());
    }
    return response.status();
  }
  v1::Usage Usage() {
    auto usage = CallBroker(*broker_, &v1::Broker::Stub::GetUsage, v1::GetUsageRequest(), token());
    EXPECT_OK(usage);
    return usage.ok() ? usage->usage() : v1::Usage();
  }

  std::unique_ptr<v1::Broker::Stub> broker_;
  std::unique_ptr<WireSession> session_;
  std::vector<std::pair<std::string, uint64_t>> held_;  // token and lease
};

}  // namespace gpumem::testing
