// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/users/seats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace gpumem::web {
namespace {

TEST(SeatsTest, TheLimitPassesAndTheNextClosesTheQuietestOfTheLargestUser) {
  Seats seats(1024, 128);
  Seats::Id next = 1;
  for (uid_t user = 0; user < 8; ++user) {
    // Users of 128, and the last one of 127 and 1.
    for (int i = 0; i < (user == 7 ? 127 : 128); ++i) {
      EXPECT_EQ(seats.Add(next++, 1000 + user), std::nullopt);
    }
  }
  EXPECT_EQ(seats.Add(next++, 5), std::nullopt);  // the 1,024th
  EXPECT_EQ(seats.size(), 1024U);
  seats.Touch(1);
  EXPECT_EQ(seats.Add(next, 6), 2U);  // the 1,025th; the first one was active since
  seats.Remove(2);
  EXPECT_EQ(seats.size(), 1024U);
}

TEST(SeatsTest, AUserAtTheLimitLosesTheOwn) {
  Seats seats(1024, 128);
  EXPECT_EQ(seats.Add(1, 7), std::nullopt);
  for (Seats::Id id = 2; id <= 129; ++id) EXPECT_EQ(seats.Add(id, 1000), std::nullopt);
  EXPECT_EQ(seats.Add(130, 1000), 2U);
  seats.Remove(2);
  // A login makes a connection the user's.
  EXPECT_EQ(seats.Add(131, std::nullopt), std::nullopt);
  EXPECT_EQ(seats.Move(131, 1000), 3U);
  seats.Remove(3);
  EXPECT_EQ(seats.Move(131, 1000), std::nullopt);  // it is already
}

TEST(SeatsTest, OddCallsAreHarmless) {
  Seats seats(2, 2);
  seats.Touch(9);
  seats.Remove(9);
  EXPECT_EQ(seats.Move(9, 1), std::nullopt);
  EXPECT_EQ(seats.Quietest(), std::nullopt);
}

// The same with plain lists.
struct Model {
  struct Seat {
    Seats::Id id;
    Seats::User user;
  };
  std::vector<Seat> seats;  // the quietest first

  size_t Count(Seats::User user) const {
    return static_cast<size_t>(std::count_if(seats.begin(), seats.end(),
                                             [&](const Seat& seat) { return seat.user == user; }));
  }
  std::optional<Seats::Id> First(Seats::User user) const {
    for (const Seat& seat : seats) {
      if (seat.user == user) return seat.id;
    }
    return std::nullopt;
  }
};

TEST(SeatsTest, BehavesAsTheModel) {
  constexpr size_t kSeats = 12, kLimitOfUser = 5;
  std::mt19937 random(7);
  Seats seats(kSeats, kLimitOfUser);
  Model model;
  const auto user_of = [](size_t n) {
    return n == 0 ? Seats::User() : Seats::User(static_cast<uid_t>(n));
  };
  for (Seats::Id next = 1; next < 20000; ++next) {
    std::optional<Seats::Id> closed;
    const Seats::User user = user_of(random() % 5);
    const size_t at = model.seats.empty() ? 0 : random() % model.seats.size();
    const size_t own = model.Count(user), all = model.seats.size();
    size_t most = 0;
    for (size_t n = 0; n < 5; ++n) most = std::max(most, model.Count(user_of(n)));
    switch (random() % 4) {
      case 0:
        if (!model.seats.empty()) {
          seats.Remove(model.seats[at].id);
          model.seats.erase(model.seats.begin() + static_cast<ptrdiff_t>(at));
        }
        break;
      case 1:
        if (!model.seats.empty()) {
          seats.Touch(model.seats[at].id);
          std::rotate(model.seats.begin() + static_cast<ptrdiff_t>(at),
                      model.seats.begin() + static_cast<ptrdiff_t>(at) + 1, model.seats.end());
        }
        break;
      default:
        closed = seats.Add(next, user);
        ASSERT_EQ(closed.has_value(), own == kLimitOfUser || all == kSeats);
        if (own == kLimitOfUser) {
          ASSERT_EQ(closed, model.First(user));
        } else if (closed.has_value()) {
          const auto found = std::find_if(model.seats.begin(), model.seats.end(),
                                          [&](const Model::Seat& s) { return s.id == *closed; });
          ASSERT_NE(found, model.seats.end());
          ASSERT_EQ(model.Count(found->user), most);
          ASSERT_EQ(closed, model.First(found->user));
        }
        model.seats.push_back({next, user});
        if (closed.has_value()) {
          seats.Remove(*closed);
          model.seats.erase(std::find_if(model.seats.begin(), model.seats.end(),
                                         [&](const Model::Seat& s) { return s.id == *closed; }));
        }
    }
    ASSERT_EQ(seats.size(), model.seats.size());
    ASSERT_LE(seats.size(), kSeats);
  }
}

}  // namespace
}  // namespace gpumem::web
