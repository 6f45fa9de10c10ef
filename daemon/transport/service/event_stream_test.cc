// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/event_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class EventStreamTest : public testing::Test {
 protected:
  void Record(AuditEvent event, const std::string& tenant, const std::string& owner = "") {
    AuditRecord record{.time = absl::FromUnixSeconds(1000), .event = event, .tenant = tenant};
    record.owner = owner;
    record.bytes = 4096;
    ring_.Record(std::move(record));
  }
  // Returns the numbers of the present records for such a request.
  std::vector<uint64_t> Ask(v1::WatchEventsRequest request) {
    std::vector<uint64_t> numbers;
    const grpc::Status status = streams_.Serve(
        request, [] { return false; },
        [&](const v1::EventRecord& record) {
          numbers.push_back(record.number());
          missed_ += record.missed();
          return true;
        });
    EXPECT_TRUE(status.ok()) << status.error_message();
    return numbers;
  }
  static v1::WatchEventsRequest Past() {
    v1::WatchEventsRequest request;
    request.set_past(true);
    return request;
  }

  AuditRing ring_{8};
  EventStreams streams_{&ring_};
  uint64_t missed_ = 0;
};

TEST_F(EventStreamTest, TellsWhatIsStillThere) {
  EXPECT_THAT(Ask(Past()), IsEmpty());
  Record(AuditEvent::kGranted, "a");
  Record(AuditEvent::kDenied, "b");
  Record(AuditEvent::kReleased, "b", "a");
  EXPECT_THAT(Ask(Past()), ElementsAre(1, 2, 3));
  EXPECT_THAT(Ask({}), IsEmpty());  // from now on, and nothing follows
  v1::WatchEventsRequest request = Past();
  request.set_tenant("a");
  EXPECT_THAT(Ask(request), ElementsAre(1, 3));
  request.add_events("released");
  EXPECT_THAT(Ask(request), ElementsAre(3));
  for (int i = 0; i < 10; ++i) Record(AuditEvent::kGranted, "a");
  EXPECT_THAT(Ask(Past()), ElementsAre(6, 7, 8, 9, 10, 11, 12, 13));
}

TEST_F(EventStreamTest, ARecordIsWhole) {
  Record(AuditEvent::kGranted, "a");
  v1::EventRecord seen;
  streams_.Serve(
      Past(), [] { return false; },
      [&](const v1::EventRecord& record) {
        seen = record;
        return true;
      });
  EXPECT_EQ(seen.number(), 1u);
  EXPECT_EQ(seen.time_unix_ns(), 1'000'000'000'000u);
  EXPECT_EQ(seen.event(), "granted");
  EXPECT_NE(seen.text(), "");
  std::map<std::string, std::string> fields;
  for (const v1::EventField& field : seen.fields()) {
    fields[field.name()] = field.values_size() > 0 ? field.values(0) : "";
  }
  EXPECT_EQ(fields["tenant"], "a");
  EXPECT_EQ(fields["bytes"], "4096");
}

TEST_F(EventStreamTest, FollowsUntilItIsCancelledAndSaysWhatWasMissed) {
  v1::WatchEventsRequest request = Past();
  request.set_follow(true);
  Record(AuditEvent::kGranted, "a");
  std::atomic<bool> cancelled = false;
  std::atomic<uint64_t> last = 0;
  absl::Notification first, go_on;
  uint64_t missed = 0;
  grpc::Status status;
  std::thread stream([&] {
    status = streams_.Serve(
        request, [&] { return cancelled.load(); },
        [&](const v1::EventRecord& record) {
          if (record.number() == 1) {
            first.Notify();
            go_on.WaitForNotification();
          }
          missed += record.missed();
          last = record.number();
          if (record.number() == 21) cancelled = true;
          return true;
        });
  });
  first.WaitForNotification();
  // While the reader sleeps, more come than the ring has room for.
  for (int i = 0; i < 20; ++i) Record(AuditEvent::kGranted, "a");
  go_on.Notify();
  stream.join();
  EXPECT_EQ(last, 21u);
  EXPECT_EQ(missed, 12u);  // 2 to 13
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(EventStreamTest, EndsWithTheDaemonAndIsBounded) {
  v1::WatchEventsRequest request;
  request.set_follow(true);
  std::vector<std::thread> streams;
  std::atomic<int> begun = 0, unavailable = 0;
  for (int i = 0; i < EventStreams::kMost; ++i) {
    streams.emplace_back([&] {
      bool told = false;
      const grpc::Status status = streams_.Serve(
          request,
          [&] {
            if (!std::exchange(told, true)) ++begun;
            return false;
          },
          [](const v1::EventRecord&) { return true; });
      if (status.error_code() == grpc::StatusCode::UNAVAILABLE) ++unavailable;
    });
  }
  while (begun < EventStreams::kMost) std::this_thread::yield();
  const auto never = [](const v1::EventRecord&) { return true; };
  EXPECT_EQ(streams_
                .Serve(
                    {}, [] { return false; }, never)
                .error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  streams_.EndAll();
  for (std::thread& stream : streams) stream.join();
  EXPECT_EQ(unavailable, EventStreams::kMost);
}

TEST_F(EventStreamTest, UnknownEventsAreRefused) {
  v1::WatchEventsRequest request = Past();
  request.add_events("explosion");
  const grpc::Status status = streams_.Serve(
      request, [] { return false; }, [](const v1::EventRecord&) { return true; });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(EventStreamTest, AReaderThatIsGoneEndsIt) {
  Record(AuditEvent::kGranted, "a");
  const grpc::Status status = streams_.Serve(
      Past(), [] { return false; }, [](const v1::EventRecord&) { return false; });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace gpumemd
