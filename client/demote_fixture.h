// SPDX-License-Identifier: Apache-2.0
// The base of the tests of demoting: a client, and segments with known bytes.
#pragma once

#include <string.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/testing/fake_daemon.h"
#include "common/denial.h"
#include "common/grpc_status.h"
#include "gpumem/client.h"
#include "gpumem/demote.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace demote_test {

using internal::FakeDaemon;

inline constexpr uint64_t kBytes = 64 * 1024;
using IsCancelled = std::function<bool()>;

// Returns a refusal for lack of memory.
inline grpc::Status Denied() {
  v1::Denial denial;
  denial.set_cause(v1::Denial::CAUSE_CAPACITY);
  denial.set_tenant("testers");
  return ToGrpcStatus(DenialError(denial));
}

inline char* Bytes(const Segment& segment) { return static_cast<char*>(segment.data()); }

inline std::vector<Segment*> All(std::vector<Segment>& segments) {
  std::vector<Segment*> all;
  for (Segment& segment : segments) all.push_back(&segment);
  return all;
}

class DemoteTest : public ::testing::Test {
 protected:
  void Start(FakeDaemon::Script script = {}) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
    client_ = Client::Connect({.runtime_dir = daemon_->runtime_dir(), .timeout = absl::Seconds(20)})
                  .value();
  }
  // Returns new contiguous segments; each begins with its number.
  std::vector<Segment> Acquire(int count, uint64_t bytes = kBytes) {
    std::vector<Segment> segments = client_->AcquireMany({.bytes = bytes}, count).value();
    for (int i = 0; i < count; ++i) {
      strcpy(Bytes(segments[static_cast<size_t>(i)]), absl::StrCat("segment ", i).c_str());
    }
    return segments;
  }
  // Options that count the calls, one segment at a time.
  DemoteOptions Counting() {
    return {.pause =
                [this] {
                  ++pauses_;
                  return absl::OkStatus();
                },
            .proceed = [this] { ++proceeds_; },
            .longest_pause = absl::Nanoseconds(1)};
  }
  // Expects the bytes that Acquire() wrote, at the old addresses, and that the daemon knows where.
  void Expect(const std::vector<Segment>& segments, const char* base, bool demoted) {
    for (size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = segments[i];
      EXPECT_EQ(segment.demoted(), demoted);
      EXPECT_FALSE(segment.suspended());
      EXPECT_EQ(segment.kind(), demoted ? Kind::kHost : Kind::kVmm);
      EXPECT_EQ(segment.device_uuid(), demoted ? FakeDaemon::kPinnedDevice : FakeDaemon::kDevice);
      ASSERT_EQ(Bytes(segment), base + i * segment.size());
      EXPECT_EQ(Bytes(segment), absl::StrCat("segment ", i));
      const v1::Lease lease = daemon_->LeaseOf(segment.lease_id());
      EXPECT_EQ(lease.kind(), demoted ? v1::KIND_HOST : v1::KIND_VMM);
      EXPECT_EQ(lease.segment_id(), segment.segment_id());
      char begin[16] = {};
      EXPECT_EQ(pread(daemon_->Memory(lease), begin, sizeof(begin), 0), 16);
      EXPECT_EQ(begin, absl::StrCat("segment ", i)) << "the memory that the lease has";
    }
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Client> client_;
  std::atomic<int> pauses_ = 0;
  std::atomic<int> proceeds_ = 0;
};

}  // namespace demote_test
}  // namespace gpumem
