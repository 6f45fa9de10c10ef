// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/views.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cli/text/json.h"
#include "client/web/feed/testing/random_messages.h"

namespace gpumem::web {
namespace {

using cli::Json;
using ::testing::HasSubstr;

TEST(Views, AreSharedAndBounded) {
  cli::Snapshot state;
  Views views;
  views.Set(state, kNow);
  View* const all = *views.Of({.uid = 1, .sees_all = true});
  EXPECT_EQ(*views.Of({.uid = 2, .sees_all = true}), all);
  EXPECT_EQ(all->Json(), all->Json()) << "one text for all";
  const uid_t most = Views::kMost;
  for (uid_t uid = 1; uid < most; ++uid) EXPECT_TRUE(views.Of({.uid = uid}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(views.Of({.uid = most}).status()));
  EXPECT_TRUE(views.Of({.uid = 1}).ok());
  EXPECT_TRUE(views.Of({.sees_all = true}).ok()) << "operators always get in";
  // The others have gone.
  for (int i = 1; i <= 3; ++i) {
    views.Set(state, kNow + i * Views::kKept);
    EXPECT_TRUE(views.Of({.uid = 1}).ok());
  }
  EXPECT_TRUE(views.Of({.uid = most}).ok());
}

TEST(Views, UidsWithoutAccountLeaveRoomForUsers) {
  Views views([](uid_t uid) { return uid < 1000; });
  views.Set(cli::Snapshot(), kNow);
  const uid_t without = 100'000, most = Views::kMostWithoutAccount;
  for (uid_t i = 0; i < most; ++i) EXPECT_TRUE(views.Of({.uid = without + i}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(views.Of({.uid = without + most}).status()));
  EXPECT_TRUE(views.Of({.uid = without}).ok()) << "it has its view";
  for (uid_t uid = 0; uid < Views::kMost - most; ++uid) {
    EXPECT_TRUE(views.Of({.uid = uid}).ok()) << uid;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(views.Of({.uid = 999}).status()));
}

TEST(Views, CountTheirChanges) {
  Views views;
  cli::Snapshot state;
  views.Set(state, kNow);
  View& view = **views.Of({.sees_all = true});
  EXPECT_EQ(view.number(), 1u);
  EXPECT_EQ(view.change_event(), nullptr);
  views.Set(state, kNow + absl::Seconds(1));
  EXPECT_EQ((*views.Of({.sees_all = true}))->number(), 1u);
  EXPECT_EQ(Json::parse(*view.Json())["time_ms"], absl::ToUnixMillis(kNow) + 1000);
  state.status.set_draining(true);
  views.Set(state, kNow + absl::Seconds(2));
  EXPECT_EQ((*views.Of({.sees_all = true}))->number(), 2u);
  EXPECT_THAT(*view.change_event(), HasSubstr("event: change\ndata: {\"number\":2,"));
  EXPECT_THAT(*view.SnapshotEvent(), HasSubstr("\"number\":2,"));
}

}  // namespace
}  // namespace gpumem::web
