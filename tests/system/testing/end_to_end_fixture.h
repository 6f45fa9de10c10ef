// SPDX-License-Identifier: Apache-2.0
// A daemon on the host backend with tenants "a" and "b", and a process that holds memory.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/bytes.h"
#include "gpumem/client.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"

namespace gpumem::testing {

// Returns a tenant that any process may name. The tests have two, each 64 MiB on a device of 128
// MiB; this process may be either.
std::string Tenant(const std::string& name, const std::string& keys = "");

// Returns the configuration with both tenants.
const std::string& Config();

class EndToEnd : public ::testing::Test {
 protected:
  void SetUp() override { Start(Config()); }

  void Start(const std::string& config) {
    auto daemon = DaemonProcess::Start({.config = config});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
  }

  std::unique_ptr<Client> Connect(const std::string& tenant = "a") {
    auto client = daemon_->Connect(tenant);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  DeviceUsage UsageOf(Client& client) {
    auto usage = client.GetUsage();
    EXPECT_TRUE(usage.ok()) << usage.status();
    return usage.ok() ? usage->devices[0] : DeviceUsage();
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

// The process that holds memory. Acquires `MiB` mebibytes, fills them with the byte `value`, says
// the ticket, and waits. Returns its exit code.
int Hold(const std::string& dir, const std::string& tenant, uint64_t mib, int value);

}  // namespace gpumem::testing
