// SPDX-License-Identifier: Apache-2.0
// Changes of the broker's ledger that an exception leaves.
#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/broker.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace {

// The broker records what it does within the change.
class FullAudit : public AuditSink {
 public:
  void Record(AuditRecord /*record*/) override { throw std::bad_alloc(); }
};

TEST(UpdateDeathTest, AnExceptionWithinAChangeEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the broker has threads
  FullAudit audit;
  BrokerOptions options;
  options.devices.push_back(*MakeHostDevice({.capacity_bytes = 2 << 20}));
  options.random = [] { return Secret{}; };
  options.audit = &audit;
  Broker broker(std::move(options));
  const auto as_grpc = [&] {
    try {
      broker.OpenSession("team", {}).IgnoreError();
    } catch (const std::exception&) {
      // gRPC goes on.
    }
  };
  EXPECT_EXIT(as_grpc(), ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace gpumemd
