// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/trace_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/trace/reader.h"
#include "common/trace/span.h"

namespace gpumemd {
namespace {

namespace trace = gpumem::trace;
namespace v1 = gpumem::v1;

v1::TraceRequest Of(absl::Duration duration, uint64_t session = 0) {
  v1::TraceRequest request;
  request.set_duration_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(duration)));
  request.set_session_id(session);
  return request;
}

// Takes a trace that is streamed to it.
struct Client {
  TraceStreams::Stream Stream() {
    return {.cancelled = [this] { return gone.load(); },
            .write =
                [this](const v1::TraceChunk& chunk) {
                  const auto read = reader.Add(chunk.data());
                  EXPECT_TRUE(read.ok()) << read.status();
                  EXPECT_EQ(read.value_or(0), chunk.data().size());
                  return !gone;
                },
            .cancel = [this] { gone = true; }};
  }
  trace::Reader reader;
  std::atomic<bool> gone = false;
};

// Makes spans of two sessions until it ends.
class Work {
 public:
  ~Work() {
    done_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_{[this] {
    for (uint64_t session = 1; !done_; session = 3 - session) {
      const trace::RequestScope scope({.session = session, .id = 5, .call = trace::NextCall()});
      const trace::Span span("work");
    }
  }};
};

TEST(TraceStreamTest, StreamsSpansUntilTheTimeIsOver) {
  TraceStreams traces;
  const Work work;
  Client client;
  const absl::Time begin = absl::Now();
  const grpc::Status status = traces.Serve(Of(absl::Milliseconds(100)), client.Stream());
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(100));
  EXPECT_FALSE(trace::IsOn());
  ASSERT_FALSE(client.reader.slices().empty());
  for (const trace::Slice& slice : client.reader.slices()) {
    EXPECT_EQ(slice.name, "work");
    EXPECT_TRUE(slice.daemon);
  }
}

TEST(TraceStreamTest, OfOneSession) {
  TraceStreams traces;
  const Work work;
  Client client;
  EXPECT_TRUE(traces.Serve(Of(absl::Milliseconds(50), 2), client.Stream()).ok());
  ASSERT_FALSE(client.reader.slices().empty());
  for (const trace::Slice& slice : client.reader.slices()) EXPECT_EQ(slice.session, 2u);
}

TEST(TraceStreamTest, ATraceWithoutSpansIsATrace) {
  TraceStreams traces;
  std::string bytes;
  Client client;
  TraceStreams::Stream stream = client.Stream();
  stream.write = [&](const v1::TraceChunk& chunk) {
    bytes += chunk.data();
    return true;
  };
  EXPECT_TRUE(traces.Serve(Of(absl::Milliseconds(1)), stream).ok());
  EXPECT_FALSE(bytes.empty());
}

TEST(TraceStreamTest, RefusesOtherDurations) {
  TraceStreams traces;
  Client client;
  for (const absl::Duration duration :
       {absl::ZeroDuration(), TraceStreams::kLongest + absl::Milliseconds(1)}) {
    EXPECT_EQ(traces.Serve(Of(duration), client.Stream()).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_FALSE(trace::IsOn());
}

TEST(TraceStreamTest, OneAtATimeAndEndsWithItsClient) {
  TraceStreams traces;
  absl::Notification runs;
  Client first, second;
  std::thread serving([&] {
    TraceStreams::Stream stream = first.Stream();
    stream.cancelled = [&] {
      if (!runs.HasBeenNotified()) runs.Notify();
      return first.gone.load();
    };
    EXPECT_EQ(traces.Serve(Of(TraceStreams::kLongest), stream).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  runs.WaitForNotification();
  const grpc::Status refused = traces.Serve(Of(absl::Milliseconds(10)), second.Stream());
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(refused.error_message(), "another trace of this process runs");
  first.gone = true;
  serving.join();
  EXPECT_FALSE(trace::IsOn());
  EXPECT_TRUE(traces.Serve(Of(absl::Milliseconds(10)), second.Stream()).ok());
}

TEST(TraceStreamTest, AClientThatDoesNotReadHoldsNothingUp) {
  TraceStreams traces(/*grace=*/absl::Milliseconds(50));
  const Work work;
  Client client;
  absl::Notification cancelled;
  TraceStreams::Stream stream = client.Stream();
  stream.write = [&](const v1::TraceChunk&) {
    cancelled.WaitForNotification();  // as a full connection
    return false;
  };
  stream.cancel = [&] {
    EXPECT_FALSE(trace::IsOn());
    cancelled.Notify();
  };
  EXPECT_EQ(traces.Serve(Of(absl::Milliseconds(50)), stream).error_code(),
            grpc::StatusCode::CANCELLED);
}

TEST(TraceStreamTest, EndsWithTheDaemon) {
  TraceStreams traces;
  Client client;
  TraceStreams::Stream stream = client.Stream();
  stream.cancelled = [&] {
    traces.EndAll();
    return false;
  };
  EXPECT_EQ(traces.Serve(Of(TraceStreams::kLongest), stream).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(traces.Serve(Of(TraceStreams::kLongest), client.Stream()).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(trace::IsOn());
}

}  // namespace
}  // namespace gpumemd
