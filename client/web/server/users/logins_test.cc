// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/users/logins.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "absl/status/status.h"

namespace gpumem::web {
namespace {

class LoginsTest : public ::testing::Test {
 protected:
  std::string Link(uid_t uid, bool sees_all = false) {
    auto token = logins_.NewLink({.uid = uid, .sees_all = sees_all});
    EXPECT_TRUE(token.ok()) << token.status();
    return token.value_or("");
  }
  std::string Key(uid_t uid) { return logins_.Redeem(Link(uid)).value_or(""); }

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  Logins logins_{[this] { return now_; }};
};

TEST_F(LoginsTest, ALinkWorksOnce) {
  const std::string token = Link(1000, /*sees_all=*/true);
  EXPECT_EQ(token.size(), 43U);  // 256 bits in base64
  const auto key = logins_.Redeem(token);
  ASSERT_TRUE(key.has_value());
  EXPECT_EQ(logins_.Redeem(token), std::nullopt);
  const auto viewer = logins_.Find(*key);
  ASSERT_TRUE(viewer.has_value());
  EXPECT_EQ(viewer->uid, 1000U);
  EXPECT_TRUE(viewer->sees_all);
  EXPECT_FALSE(logins_.Find(token).has_value()) << "a token is no key";
  EXPECT_EQ(logins_.Redeem(*key), std::nullopt) << "a key is no token";
}

TEST_F(LoginsTest, WrongSecrets) {
  const std::string key = Key(1000);
  for (const std::string& wrong : {std::string(), key.substr(1), key + "A", std::string(43, 'A'),
                                   std::string("\0", 1), std::string(8000, 'x')}) {
    EXPECT_FALSE(logins_.Find(wrong).has_value());
    EXPECT_EQ(logins_.Redeem(wrong), std::nullopt);
  }
  EXPECT_TRUE(logins_.Find(key).has_value());
}

TEST_F(LoginsTest, LinksExpire) {
  const std::string first = Link(1000), second = Link(1000);
  now_ += Logins::kLinkLives - absl::Nanoseconds(1);
  EXPECT_TRUE(logins_.Redeem(first).has_value());
  now_ += absl::Nanoseconds(1);
  EXPECT_FALSE(logins_.Redeem(second).has_value());
}

TEST_F(LoginsTest, KeysExpire) {
  const std::string key = Key(1000);
  now_ += Logins::kKeyLives - absl::Nanoseconds(1);
  EXPECT_TRUE(logins_.Find(key).has_value());
  now_ += absl::Nanoseconds(1);
  EXPECT_FALSE(logins_.Find(key).has_value());
}

TEST_F(LoginsTest, AnEarlierEntryThatLivesLongerKeepsNoOtherAlive) {
  now_ += absl::Hours(1);
  const std::string first = Link(1000);
  now_ += absl::Hours(1);
  const std::string first_key = Key(1000);
  now_ -= absl::Hours(2);
  const std::string link = Link(1000), key = Key(1000);
  now_ += Logins::kLinkLives;
  EXPECT_FALSE(logins_.Redeem(link).has_value());
  now_ += Logins::kKeyLives - Logins::kLinkLives;
  EXPECT_FALSE(logins_.Find(key).has_value());
  EXPECT_TRUE(logins_.Find(first_key).has_value());
}

TEST_F(LoginsTest, AUserHasEightLinks) {
  for (size_t i = 0; i < Logins::kLinksOfUser; ++i) Link(1000);
  EXPECT_TRUE(absl::IsResourceExhausted(logins_.NewLink({.uid = 1000}).status()));
  const std::string of_another = Link(1001);
  EXPECT_TRUE(logins_.Redeem(of_another).has_value());
  now_ += Logins::kLinkLives;
  Link(1000);
}

TEST_F(LoginsTest, UidsThatCountAsOneUserShareItsLinks) {
  Logins logins([this] { return now_; }, [](uid_t uid) { return uid < 100000 ? uid : 99; });
  for (uid_t i = 0; i < Logins::kLinksOfUser; ++i) {
    EXPECT_TRUE(logins.NewLink({.uid = 100000 + i}).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(logins.NewLink({.uid = 200000}).status()));
  const auto token = logins.NewLink({.uid = 1000});
  ASSERT_TRUE(token.ok()) << token.status();
  const auto key = logins.Redeem(*token);
  ASSERT_TRUE(key.has_value());
  EXPECT_EQ(logins.Find(*key)->uid, 1000U);
}

TEST_F(LoginsTest, TheOldestOfSeventeenKeysEnds) {
  const std::string of_another = Key(1001);
  std::vector<std::string> keys;
  for (size_t i = 0; i < Logins::kKeysOfUser; ++i) keys.push_back(Key(1000));
  EXPECT_TRUE(logins_.Find(keys[0]).has_value());
  keys.push_back(Key(1000));
  EXPECT_FALSE(logins_.Find(keys[0]).has_value());
  for (size_t i = 1; i < keys.size(); ++i) EXPECT_TRUE(logins_.Find(keys[i]).has_value());
  EXPECT_TRUE(logins_.Find(of_another).has_value());
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
}

TEST_F(LoginsTest, LiveUntil) {
  EXPECT_EQ(logins_.LiveUntil(), absl::InfinitePast());
  const std::string token = Link(1000);
  EXPECT_EQ(logins_.LiveUntil(), now_ + Logins::kLinkLives);
  logins_.Redeem(token);
  EXPECT_EQ(logins_.LiveUntil(), now_ + Logins::kKeyLives);
  now_ += Logins::kKeyLives;
  EXPECT_EQ(logins_.LiveUntil(), absl::InfinitePast());
}

}  // namespace
}  // namespace gpumem::web
