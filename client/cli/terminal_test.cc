#include "client/cli/terminal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/stop_signals.h"

namespace gpumem::cli {
namespace {

using Event = StopSignals::Event;

TEST(CutToTest, KeepsWhatFits) {
  EXPECT_EQ(CutTo("one\ntwo\nthree\n", 2, 80), "one\ntwo");
  EXPECT_EQ(CutTo("one\ntwo", 9, 2), "on\ntw");
  EXPECT_EQ(CutTo("größer", 1, 4), "größ");
  EXPECT_EQ(CutTo("", 5, 5), "");
  EXPECT_EQ(CutTo("one", 0, 5), "");
}

TEST(StopSignalsTest, ASignalArrivesHereAndNowhereElse) {
  {
    StopSignals signals;
    raise(SIGTERM);
    EXPECT_EQ(signals.Wait(absl::InfiniteFuture()), Event::kStop);
    raise(SIGINT);
    EXPECT_EQ(signals.Wait(absl::InfinitePast()), Event::kStop);
    EXPECT_EQ(signals.Wait(absl::InfinitePast()), Event::kTimeout);
  }
  // The signals were taken: letting them through again did not end this process.
}

TEST(StopSignalsTest, WaitsUntilTheDeadlineOrForInput) {
  StopSignals signals;
  const absl::Time start = absl::Now();
  EXPECT_EQ(signals.Wait(start + absl::Milliseconds(20)), Event::kTimeout);
  EXPECT_GE(absl::Now(), start + absl::Milliseconds(20));

  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  UniqueFd read_end(fds[0]);
  UniqueFd write_end(fds[1]);
  EXPECT_EQ(signals.Wait(absl::InfinitePast(), read_end.get()), Event::kTimeout);
  ASSERT_EQ(write(write_end.get(), "x", 1), 1);
  EXPECT_EQ(signals.Wait(absl::InfiniteFuture(), read_end.get()), Event::kInput);
}

}  // namespace
}  // namespace gpumem::cli
