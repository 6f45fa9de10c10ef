// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/text/stop_signals.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

using Event = StopSignals::Event;

TEST(OutputTest, WhatIsNoTerminalHasNoColoursAndNoWidth) {
  const UniqueFd before(dup(STDOUT_FILENO));
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  UniqueFd read_end(fds[0]);
  UniqueFd write_end(fds[1]);
  ASSERT_GE(dup2(write_end.get(), STDOUT_FILENO), 0);
  const Output output = Stdout(ColorMode::kAuto);
  const Output coloured = Stdout(ColorMode::kAlways);
  ASSERT_GE(dup2(before.get(), STDOUT_FILENO), 0);
  EXPECT_FALSE(output.terminal);
  EXPECT_FALSE(output.colour);
  EXPECT_TRUE(coloured.colour);
  EXPECT_FALSE(coloured.terminal);
  EXPECT_EQ(output.columns, kAnyWidth);
}

TEST(OutputTest, ATerminalHasColoursUnlessItIsToldOtherwise) {
  const UniqueFd before(dup(STDOUT_FILENO));
  const UniqueFd leader(posix_openpt(O_RDWR | O_NOCTTY));
  ASSERT_TRUE(grantpt(leader.get()) == 0 && unlockpt(leader.get()) == 0);
  const UniqueFd terminal(open(ptsname(leader.get()), O_RDWR | O_NOCTTY));
  const winsize window = {.ws_row = 30, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(terminal.get(), TIOCSWINSZ, &window), 0);
  const auto look = [&](const char* term, const char* no_color, ColorMode option) {
    setenv("TERM", term, 1);
    setenv("NO_COLOR", no_color, 1);
    dup2(terminal.get(), STDOUT_FILENO);
    const Output output = Stdout(option);
    dup2(before.get(), STDOUT_FILENO);
    return output;
  };
  const Output output = look("xterm", "", ColorMode::kAuto);
  EXPECT_EQ(output.columns, 100u);
  EXPECT_EQ(output.rows, 30u);
  EXPECT_TRUE(output.terminal);
  EXPECT_TRUE(output.colour);
  EXPECT_FALSE(look("xterm", "1", ColorMode::kAuto).colour);
  EXPECT_TRUE(look("xterm", "1", ColorMode::kAuto).terminal);
  EXPECT_FALSE(look("xterm", "", ColorMode::kNever).colour);
  EXPECT_FALSE(look("dumb", "", ColorMode::kAuto).colour);
  EXPECT_FALSE(look("dumb", "", ColorMode::kAuto).terminal);
  EXPECT_TRUE(look("dumb", "1", ColorMode::kAlways).colour);
  EXPECT_EQ(look("dumb", "", ColorMode::kAuto).columns, 100u);
  EXPECT_FALSE(look("", "", ColorMode::kAuto).terminal);
}

TEST(OutputTest, PicturesHaveAWidthEverywhere) {
  setenv("COLUMNS", "132", 1);
  EXPECT_EQ(PictureWidth({.columns = 100}), 100u);
  EXPECT_EQ(PictureWidth({.columns = kAnyWidth}), 132u);
  setenv("COLUMNS", "wide", 1);
  EXPECT_EQ(PictureWidth({.columns = kAnyWidth}), 80u);
}

TEST(StopSignalsTest, ResizingIsReportedOnlyWhereItIsAskedFor) {
  {
    StopSignals signals(StopSignals::Also::kResize);
    raise(SIGWINCH);
    EXPECT_EQ(signals.Wait(absl::InfiniteFuture()), Event::kResize);
    raise(SIGWINCH);
    raise(SIGTERM);
    EXPECT_EQ(signals.Wait(absl::InfiniteFuture()), Event::kStop);
    EXPECT_EQ(signals.Wait(absl::InfinitePast()), Event::kTimeout);
  }
  StopSignals signals;
  raise(SIGWINCH);
  EXPECT_EQ(signals.Wait(absl::InfinitePast()), Event::kTimeout);
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
  // The signals were consumed: unblocking them did not end this process.
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
