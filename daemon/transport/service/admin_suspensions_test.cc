// SPDX-License-Identifier: Apache-2.0
// Operators suspend and resume publications: what the audit records.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/broker/quota_control.h"
#include "daemon/core/broker/testing/wait_fixture.h"
#include "daemon/device/host_device.h"
#include "daemon/tier/tier_device.h"
#include "daemon/transport/service/admin_service.h"

namespace gpumemd {
namespace admin_suspensions_test {

namespace v1 = gpumem::v1;

// Two devices of four granules, and the host tier.
class AdminSuspensionsTest : public BrokerWaitFixture {
 protected:
  AdminSuspensionsTest()
      : BrokerWaitFixture(absl::Milliseconds(50), Devices()),
        quotas_(broker_.get(), {}, {}, [](const Overrides&) { return absl::OkStatus(); }),
        service_(broker_.get(), &quotas_, {.audit = &audit_}),
        server_(grpc::ServerBuilder().RegisterService(&service_).BuildAndStart()),
        stub_(v1::Admin::NewStub(server_->InProcessChannel({}))) {}

  static std::vector<std::unique_ptr<Device>> Devices() {
    std::vector<std::unique_ptr<Device>> devices;
    for (uint32_t index : {0, 1}) {
      devices.push_back(
          *MakeHostDevice({.index = index, .capacity_bytes = 4 * kGranule, .siblings = 2}));
    }
    devices.push_back(*MakeTierDevice({.capacity_bytes = 8 * kGranule, .huge_pages = false}));
    return devices;
  }
  // Acquires memory on the device.
  LeaseId HoldOn(Client& client, size_t device, uint64_t granules) {
    AcquireSpec spec = {.device_uuid = broker_->views().Devices(false).at(device).info.uuid,
                        .bytes = granules * kGranule};
    EXPECT_EQ(Begin(client, std::move(spec), absl::ZeroDuration()), State::kNeedsAThread);
    const auto progress = broker_->Advance(client.acquisition, /*may_block=*/true);
    EXPECT_TRUE(progress.leases.ok()) << progress.leases.status();
    client.call.reset();
    return progress.leases->front().lease;
  }
  // Publishes a segment of each device that no session uses.
  void Publish() {
    Client client = Open("team");
    const std::vector<LeaseId> leases = {HoldOn(client, 0, 1), HoldOn(client, 1, 2)};
    ASSERT_TRUE(broker_->Publish(*CallOf(client), {.name = "w", .leases = leases}, "").ok());
    ASSERT_EQ(broker_->Release(*CallOf(client), leases), absl::OkStatus());
  }
  grpc::Status Suspend() {
    grpc::ClientContext context;
    v1::SuspendPublicationRequest request;
    request.set_name("team/w");
    v1::SuspendPublicationResponse response;
    return stub_->SuspendPublication(&context, request, &response);
  }
  // Waits for nothing.
  grpc::Status Resume() {
    grpc::ClientContext context;
    v1::ResumePublicationRequest request;
    request.set_name("team/w");
    request.set_timeout_ms(1);
    v1::ResumePublicationResponse response;
    return stub_->ResumePublication(&context, request, &response);
  }
  // Returns the bytes in each of the audit's records of this event.
  std::vector<uint64_t> Audited(AuditEvent event) {
    std::vector<uint64_t> bytes;
    for (const AuditRecord& record : audit_.Read(0, 1000).records) {
      if (record.event == event) bytes.push_back(record.bytes.value_or(0));
    }
    return bytes;
  }

  QuotaControl quotas_;
  AdminService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

TEST_F(AdminSuspensionsTest, WhatHasMovedIsRecordedAlsoIfTheCallFails) {
  Publish();
  EXPECT_TRUE(Suspend().ok());
  EXPECT_THAT(Audited(AuditEvent::kPublicationSuspended), ::testing::ElementsAre(3 * kGranule));
  Client other = Open("other");
  const std::vector<LeaseId> full = {HoldOn(other, 1, 4)};
  EXPECT_EQ(Resume().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(Audited(AuditEvent::kPublicationResumed), ::testing::ElementsAre(kGranule));
  EXPECT_EQ(Resume().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(Audited(AuditEvent::kPublicationResumed), ::testing::ElementsAre(kGranule));
  EXPECT_EQ(broker_->Release(*CallOf(other), full), absl::OkStatus());
  EXPECT_TRUE(Resume().ok());
  EXPECT_THAT(Audited(AuditEvent::kPublicationResumed),
              ::testing::ElementsAre(kGranule, 2 * kGranule));
}

}  // namespace admin_suspensions_test
}  // namespace gpumemd
