// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/users/accounts.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace gpumem::web {
namespace {

class AccountsTest : public ::testing::Test {
 protected:
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  bool full_ = false;
  std::vector<uid_t> begun_;
  Accounts accounts_{{0, 7},
                     [this] { return now_; },
                     [this](uid_t uid) -> Calls::Ticket {
                       begun_.push_back(uid);
                       if (full_) return nullptr;
                       return std::make_shared<int>();
                     }};
};

TEST_F(AccountsTest, KnownUidsNeedNoLookUp) {
  EXPECT_EQ(accounts_.UserOf(0), 0U);
  EXPECT_EQ(accounts_.UserOf(7), 7U);
  EXPECT_EQ(accounts_.UserOf(Accounts::kNone), Accounts::kNone);
  EXPECT_TRUE(begun_.empty());
}

TEST_F(AccountsTest, AUidIsItselfOnceItsAccountIsFound) {
  EXPECT_EQ(accounts_.UserOf(1000), Accounts::kNone);
  EXPECT_EQ(accounts_.UserOf(1000), Accounts::kNone);
  EXPECT_EQ(begun_, std::vector<uid_t>{1000}) << "one look-up at a time";
  accounts_.End(1000, Accounts::Found::kAccount);
  EXPECT_EQ(accounts_.UserOf(1000), 1000U);
  now_ += absl::Hours(1000);
  EXPECT_EQ(accounts_.UserOf(1000), 1000U);
  EXPECT_EQ(begun_.size(), 1U);
}

TEST_F(AccountsTest, ItsAbsenceIsRememberedForAMinute) {
  accounts_.UserOf(100000);
  accounts_.End(100000, Accounts::Found::kNone);
  now_ += Accounts::kNoneLives - absl::Nanoseconds(1);
  EXPECT_EQ(accounts_.UserOf(100000), Accounts::kNone);
  EXPECT_EQ(begun_.size(), 1U);
  now_ += absl::Nanoseconds(1);
  EXPECT_EQ(accounts_.UserOf(100000), Accounts::kNone);
  EXPECT_EQ(begun_.size(), 2U);
}

TEST_F(AccountsTest, FailedLookUpsAreRepeated) {
  full_ = true;
  accounts_.UserOf(1000);
  full_ = false;
  accounts_.UserOf(1000);
  accounts_.End(1000, Accounts::Found::kUnknown);
  accounts_.UserOf(1000);
  EXPECT_EQ(begun_.size(), 3U);
}

TEST_F(AccountsTest, ManyUidsWithoutAccountsPushOutNoAccount) {
  accounts_.UserOf(1000);
  accounts_.End(1000, Accounts::Found::kAccount);
  const uid_t first = 100000;
  for (uid_t i = 0; i <= Accounts::kMost; ++i) {
    EXPECT_EQ(accounts_.UserOf(first + i), Accounts::kNone);
    accounts_.End(first + i, Accounts::Found::kNone);
  }
  EXPECT_EQ(accounts_.UserOf(1000), 1000U);
  const size_t before = begun_.size();
  accounts_.UserOf(first + 1);
  EXPECT_EQ(begun_.size(), before);
  accounts_.UserOf(first);
  EXPECT_EQ(begun_.size(), before + 1) << "it was forgotten";
}

}  // namespace
}  // namespace gpumem::web
