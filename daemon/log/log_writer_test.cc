// SPDX-License-Identifier: Apache-2.0
#include "daemon/log/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/unique_fd.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
using ::testing::EndsWith;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(30);

class LogWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = UniqueFd(ends[0]);
    writer_ = UniqueFd(ends[1]);  // blocking, as a standard error is
  }

  std::unique_ptr<LogWriter> Start(LogWriterOptions options = {}) {
    return *LogWriter::Start(writer_.get(), std::move(options));
  }
  // Fills the pipe, so that a further byte would block the writer.
  void FillPipe() {
    const UniqueFd filler(open(absl::StrCat("/proc/self/fd/", writer_.get()).c_str(),
                               O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    ASSERT_TRUE(filler.valid());
    const std::string page(4096, '.');
    while (write(filler.get(), page.data(), page.size()) > 0) ++pages_;
    ASSERT_EQ(errno, EAGAIN);
  }
  std::string ReadUntil(absl::string_view end) {
    std::string text;
    char bytes[65536];
    while (!absl::EndsWith(text, end)) {
      const ssize_t n = read(reader_.get(), bytes, sizeof(bytes));
      if (n <= 0) break;
      text.append(bytes, static_cast<size_t>(n));
    }
    return text.substr(std::min(text.size(), size_t{4096} * pages_));
  }

  UniqueFd reader_, writer_;
  size_t pages_ = 0;
};

TEST_F(LogWriterTest, ALineIsWrittenWhenWriteReturns) {
  auto writer = Start();
  writer->Write("one\n");
  ASSERT_EQ(fcntl(reader_.get(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(ReadUntil("\n"), "one\n");
}

TEST_F(LogWriterTest, AFullPipeBlocksNoThreadThatLogs) {
  FillPipe();
  auto writer = Start({.max_lines = 100});
  // Would hang here if one of them blocked.
  for (int i = 0; i < 1000; ++i) writer->Write(absl::StrCat("line ", i, "\n"));
  // The thread may have taken one of them out of the queue.
  EXPECT_GE(writer->dropped(), 899);
  EXPECT_LE(writer->dropped(), 900);
}

TEST_F(LogWriterTest, QueuedLinesFollowInOrderWithTheNumberOfThoseDropped) {
  FillPipe();
  LogWriter* to = nullptr;
  absl::Notification started;
  auto writer = Start({.max_lines = 100, .on_dropped = [&](uint64_t lines) {
                         started.WaitForNotification();
                         to->Write(absl::StrCat(lines, " dropped\n"));
                       }});
  to = writer.get();
  started.Notify();
  for (int i = 0; i < 1000; ++i) writer->Write(absl::StrCat("line ", i, "\n"));
  const uint64_t dropped = writer->dropped();
  const std::string text = ReadUntil(" dropped\n");
  EXPECT_THAT(text, StartsWith("line 0\nline 1\nline 2\n"));
  EXPECT_THAT(text, EndsWith(absl::StrCat("\n", dropped, " dropped\n")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1000 - dropped + 1);
  writer->Write("next\n");
  EXPECT_EQ(writer->dropped(), dropped);
}

TEST_F(LogWriterTest, TheQueueIsBoundedInBytes) {
  FillPipe();
  auto writer = Start({.max_bytes = 10'000});
  for (int i = 0; i < 100; ++i) writer->Write(std::string(1000, 'x'));
  EXPECT_GE(writer->dropped(), 89);
}

TEST_F(LogWriterTest, TheEndWaitsForAReaderForALittleWhileOnly) {
  FillPipe();
  auto writer = Start({.end_within = absl::Milliseconds(50)});
  writer->Write("never read\n");
  const absl::Time begun = absl::Now();
  writer.reset();
  EXPECT_LT(absl::Now() - begun, kLong);
}

TEST_F(LogWriterTest, TheEndWritesWhatIsQueued) {
  FillPipe();
  auto writer = Start({.end_within = kLong});
  writer->Write("last\n");
  std::thread reading([&] { EXPECT_EQ(ReadUntil("last\n"), "last\n"); });
  writer.reset();
  reading.join();
}

TEST_F(LogWriterTest, TheTickIsCalledWhenItIsDue) {
  std::atomic<int> ticks = 0;
  absl::Notification third;
  auto writer = Start({.tick = [&] {
    if (++ticks == 3) third.Notify();
    return ticks < 3 ? absl::Now() + absl::Milliseconds(1) : absl::InfiniteFuture();
  }});
  writer->MakeTickDue();
  EXPECT_TRUE(third.WaitForNotificationWithTimeout(kLong));
}

TEST_F(LogWriterTest, AReaderThatHasGoneStopsNothing) {
  reader_.reset();
  signal(SIGPIPE, SIG_IGN);
  auto writer = Start();
  for (int i = 0; i < 10; ++i) writer->Write("lost\n");
  EXPECT_EQ(writer->dropped(), 0);
}

}  // namespace
}  // namespace gpumemd
