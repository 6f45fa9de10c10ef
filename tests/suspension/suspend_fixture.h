// SPDX-License-Identifier: Apache-2.0
// A kept daemon on the host backend with a tier, and a client of it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/expect_status.h"
#include "tests/support/kept_daemon.h"
#include "tests/support/pattern.h"

namespace gpumem::testing {

class SuspendFixture : public ::testing::Test {
 protected:
  // Device and tier have so many MiB each.
  void Start(const std::string& more = "", int mib = 64) {
    auto daemon = KeptDaemon::Start(
        {.config = absl::StrCat("[host]\ndevice_bytes = \"", mib, "MiB\"\n[tier]\ncapacity = \"",
                                mib, "MiB\"\n", more)});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    client_ = Connect();
  }
  std::unique_ptr<Client> Connect() {
    auto client = Client::Connect(PatientOptions(daemon_->runtime_dir()));
    EXPECT_OK(client);
    return client.ok() ? *std::move(client) : nullptr;
  }
  // Acquires segments with a pattern each.
  std::vector<Segment> AcquireFilled(uint64_t bytes, int count) {
    std::vector<Segment> segments;
    for (int i = 0; i < count; ++i) {
      auto segment = client_->Acquire({.bytes = bytes});
      EXPECT_OK(segment);
      if (!segment.ok()) break;
      EXPECT_OK(Fill(MemoryOf(*segment), static_cast<uint64_t>(i) + 1));
      segments.push_back(*std::move(segment));
    }
    return segments;
  }
  static void ExpectPatterns(const std::vector<Segment>& segments) {
    for (size_t i = 0; i < segments.size(); ++i) {
      EXPECT_OK(Check(MemoryOf(segments[i]), i + 1)) << "of segment " << i;
    }
  }
  static std::vector<Segment*> Pointers(std::vector<Segment>& segments) {
    std::vector<Segment*> pointers;
    for (Segment& segment : segments) pointers.push_back(&segment);
    return pointers;
  }
  // Returns the bytes of the tenant on the device, and in the tier.
  struct Charges {
    uint64_t device = 0, tier = 0;
    bool operator==(const Charges&) const = default;
    friend void PrintTo(const Charges& charges, std::ostream* out) {
      *out << charges.device << " on the device, " << charges.tier << " in the tier";
    }
  };
  Charges Look() {
    const auto usage = client_->GetUsage();
    EXPECT_OK(usage);
    Charges charges;
    if (!usage.ok()) return charges;
    for (const DeviceUsage& device : usage->devices) {
      (device.device_uuid.starts_with("TIER-") ? charges.tier : charges.device) +=
          device.charged_bytes - device.retained_bytes;
    }
    return charges;
  }
  bool Becomes(const Charges& charges) {
    return Eventually([&] { return Look() == charges; });
  }

  std::unique_ptr<KeptDaemon> daemon_;
  std::unique_ptr<Client> client_;
};

}  // namespace gpumem::testing
