// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/connected_users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr FrameBudgetOptions kFrames = {.max_resets = 80, .resets_per_second = 8};

class ConnectedUsersTest : public ::testing::Test {
 protected:
  // True if the budget allowed them.
  bool Reset(uid_t uid, uint64_t resets) {
    const auto limits = users_.LimitsOf(uid, now_);
    return limits.ok() &&
           limits->frames->Charge({.resets = resets}, now_) == FrameBudget::Decision::kServe;
  }
  void Connect(uid_t uid) {
    ASSERT_TRUE(users_.LimitsOf(uid, now_).ok());
    users_.Connected(uid);
  }

  absl::Time now_ = absl::UnixEpoch();
  ConnectedUsers users_{{.frames = kFrames, .max_without_connections = 3}};
};

TEST_F(ConnectedUsersTest, AllConnectionsOfAUserHaveOneBudget) {
  for (int i = 0; i < 4; ++i) {
    Connect(1);
    EXPECT_TRUE(Reset(1, 20));
  }
  EXPECT_FALSE(users_.TakeFlood(1, now_));
  EXPECT_FALSE(Reset(1, 1));
  EXPECT_TRUE(Reset(2, 80));
  EXPECT_TRUE(users_.TakeFlood(1, now_));
  EXPECT_FALSE(users_.TakeFlood(1, now_));
  EXPECT_FALSE(users_.TakeFlood(2, now_));
}

TEST_F(ConnectedUsersTest, AllConnectionsOfAUserEndInTurn) {
  const auto first = users_.LimitsOf(1, now_), second = users_.LimitsOf(1, now_),
             others = users_.LimitsOf(2, now_);
  ASSERT_TRUE(first.ok() && second.ok() && others.ok());
  constexpr int kSocket = 7;
  first->ends->Received(32, now_);
  EXPECT_THAT(users_.WindowsWithHeld(), IsEmpty());
  EXPECT_FALSE(second->ends->MayReceive(kSocket, now_));
  EXPECT_TRUE(others->ends->MayReceive(kSocket, now_));
  EXPECT_THAT(users_.WindowsWithHeld(), ElementsAre(first->ends));
  first->ends->Answered(32, now_);
  EXPECT_EQ(first->ends->NextToRead(now_), kSocket);
  EXPECT_THAT(users_.WindowsWithHeld(), IsEmpty());
}

TEST_F(ConnectedUsersTest, ANewConnectionBringsNoNewBudget) {
  for (int i = 0; i < 4; ++i) {
    Connect(1);
    EXPECT_TRUE(Reset(1, 20));
    users_.Ended(1, now_);
  }
  EXPECT_FALSE(Reset(1, 1));
}

TEST_F(ConnectedUsersTest, AFloodIsRefusedForAMomentAndThenHasAnEighth) {
  EXPECT_FALSE(Reset(1, 81));
  EXPECT_TRUE(users_.TakeFlood(1, now_));
  now_ += absl::Milliseconds(999);
  const absl::Status refused = users_.LimitsOf(1, now_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "uid 1 has flooded this socket with frames of HTTP/2; new connections are refused for "
            "another 1ms");
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(Reset(1, 10));
  EXPECT_FALSE(Reset(1, 1));
  EXPECT_TRUE(users_.TakeFlood(1, now_));
  now_ += absl::Seconds(1) + absl::Seconds(20);
  EXPECT_TRUE(Reset(1, 80));
}

TEST_F(ConnectedUsersTest, AfterAFloodTheBudgetBecomesWholeAgain) {
  EXPECT_FALSE(Reset(1, 81));
  EXPECT_TRUE(users_.TakeFlood(1, now_));
  now_ += absl::Seconds(1);
  Connect(1);  // and stays
  EXPECT_TRUE(Reset(1, 10));
  now_ += absl::Seconds(10);
  EXPECT_TRUE(Reset(1, 80));
  EXPECT_FALSE(Reset(1, 1));
}

// The end of a connection may be seen before its frames are counted.
TEST_F(ConnectedUsersTest, AFloodThatIsFoundLateIsForgotten) {
  Connect(1);
  users_.Ended(1, now_);
  EXPECT_FALSE(Reset(1, 81));
  now_ += absl::Seconds(20);
  EXPECT_FALSE(users_.TakeFlood(1, now_));
  EXPECT_TRUE(Reset(1, 80));
}

TEST_F(ConnectedUsersTest, UsersWithoutConnectionsAreForgotten) {
  Connect(1);
  EXPECT_TRUE(Reset(1, 80));
  for (uid_t uid = 2; uid < 6; ++uid) {
    EXPECT_TRUE(Reset(uid, 1));
    now_ += absl::Milliseconds(1);
  }
  EXPECT_EQ(users_.size(), 4u);
  EXPECT_TRUE(Reset(2, 80));   // forgotten
  EXPECT_FALSE(Reset(5, 80));  // not forgotten
  now_ += absl::Seconds(20);
  EXPECT_TRUE(Reset(6, 1));
  EXPECT_EQ(users_.size(), 2u);
}

TEST_F(ConnectedUsersTest, CountsAreThoseOfAModel) {
  std::mt19937 random(1);
  std::map<uid_t, uint32_t> model;
  for (int i = 0; i < 20000; ++i) {
    const uid_t uid = random() % 20;
    now_ += absl::Milliseconds(random() % 100);
    if (random() % 2 == 0) {
      Connect(uid);
      ++model[uid];
    } else if (model[uid] > 0) {
      users_.Ended(uid, now_);
      --model[uid];
    }
    size_t connected = 0;
    for (const auto& [known, count] : model) {
      ASSERT_EQ(users_.connections(known), count);
      connected += count > 0;
    }
    ASSERT_LE(users_.size(), connected + 3);
  }
}

}  // namespace
}  // namespace gpumemd
