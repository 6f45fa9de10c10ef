// SPDX-License-Identifier: Apache-2.0
// A daemon on the host backend, a client of tenant "ml", and segments to publish, each with a
// number in it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {

inline constexpr uint64_t kGranule = 2 * kMiB;

inline void Mark(const Segment& segment, uint64_t mark) {
  std::memcpy(segment.data(), &mark, sizeof mark);
  std::memcpy(static_cast<char*>(segment.data()) + segment.size() - sizeof mark, &mark,
              sizeof mark);
}
inline uint64_t MarkOf(const Segment& segment) {
  uint64_t mark = 0;
  std::memcpy(&mark, segment.data(), sizeof mark);
  return mark;
}

// So many segments, each with its number in it, from `first` on.
inline std::vector<Segment> Marked(Client& client, int count, uint64_t first = 0,
                                   const std::string& device = "") {
  std::vector<Segment> segments;
  while (count > 0) {
    const int some = std::min(count, 253);
    auto more = client.AcquireMany({.bytes = kGranule, .device = device}, some);
    EXPECT_TRUE(more.ok()) << more.status();
    if (!more.ok()) return segments;
    for (Segment& segment : *more) {
      Mark(segment, first + segments.size());
      segments.push_back(std::move(segment));
    }
    count -= some;
  }
  return segments;
}

class PublicationTest : public ::testing::Test {
 protected:
  // Tenants that any process may name.
  static constexpr char kConfig[] = R"(
[host]
device_bytes = "16GiB"
devices = 2
[[tenant]]
name = "ml"
[[rule]]
tenant = "ml"
default = true
[[tenant]]
name = "web"
[[rule]]
tenant = "web"
default = true
)";

  void SetUp() override {
    auto daemon = DaemonProcess::Start({.config = kConfig});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    client_ = Connect("ml");
    Charged(*client_);  // after the first call there is a server, with descriptors
    fds_ = daemon_->fds();
  }
  std::unique_ptr<Client> Connect(const std::string& tenant) {
    auto client = daemon_->Connect(tenant);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  uint64_t Publish(Client& client, const std::string& name, const std::vector<Segment>& segments,
                   const PublishOptions& options = {}) {
    auto version = client.Publish(name, segments, options);
    EXPECT_TRUE(version.ok()) << version.status();
    return version.value_or(0);
  }
  static std::vector<PublicationInfo> List(Client& client) {
    auto list = client.ListPublications();
    EXPECT_TRUE(list.ok()) << list.status();
    return list.value_or(std::vector<PublicationInfo>());
  }
  static uint64_t Charged(Client& client) {
    auto usage = client.GetUsage();
    EXPECT_TRUE(usage.ok()) << usage.status();
    return usage.ok() ? usage->charged_bytes : 0;
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  int fds_ = 0;
};

}  // namespace gpumem::testing
