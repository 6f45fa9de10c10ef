// SPDX-License-Identifier: Apache-2.0
// Viewers over restarts and deaths of the daemon, with gpumem-keeper.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/kept_daemon.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::ContextWith;
using testing::KeptDaemon;

TEST(ViewRestartTest, AConnectionWaitsForTheNextDaemon) {
  auto started = KeptDaemon::Start({});
  ASSERT_TRUE(started.ok()) << started.status();
  const std::unique_ptr<KeptDaemon> daemon = *std::move(started);
  const std::string socket = absl::StrCat(daemon->runtime_dir(), "/view.sock");
  v1::GetStatusResponse status;
  const auto ask = [&](UniqueFd connection) {
    return v1::Admin::NewStub(testing::ChannelOver(std::move(connection)))
        ->GetStatus(ContextWith().get(), {}, &status);
  };
  for (const bool killed : {true, false}) {
    ASSERT_TRUE(ask(testing::ConnectStream(socket)).ok());
    const uint32_t generation = status.generation();
    if (killed) {
      daemon->KillOnly();
      // The keeper has the socket, also while no daemon runs. A connection that the killed one has
      // still accepted ends with it.
      EXPECT_TRUE(testing::Eventually([&] {
        return ask(testing::ConnectStream(socket)).ok() && status.generation() > generation;
      }));
    } else {
      ASSERT_EQ(daemon->Restart(), absl::OkStatus());
      ASSERT_TRUE(ask(testing::ConnectStream(socket)).ok());
    }
    EXPECT_EQ(status.generation(), generation + 1);
    v1::GetHistoryResponse history;
    EXPECT_TRUE(v1::Admin::NewStub(testing::ChannelTo(socket))
                    ->GetHistory(ContextWith().get(), {}, &history)
                    .ok());
  }
}

}  // namespace
}  // namespace gpumem
