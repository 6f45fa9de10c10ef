// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/queue_line.h"

#include <map>
#include <optional>
#include <random>

#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using Asleep = QueueLine::Asleep;

// The same interface, with sums added up one by one.
class NaiveLine {
 public:
  bool Set(const QueuePlace& place, const QueueLine::Entry& entry) {
    const QueueLine::Sums before = Claimed(place);
    entries_[place] = entry;
    return !(Claimed(place) == before);
  }
  std::optional<QueueLine::Entry> Take(const QueuePlace& place) {
    auto it = entries_.find(place);
    if (it == entries_.end()) return std::nullopt;
    const QueueLine::Entry entry = it->second;
    entries_.erase(it);
    return entry;
  }
  QueueLine::Sums Before(const QueuePlace& place) const {
    QueueLine::Sums sums;
    for (auto it = entries_.begin(); it != entries_.end() && it->first < place; ++it) {
      if (!it->second.claims) continue;
      sums.asked += it->second.asked;
      sums.need += it->second.need;
      sums.plain_need += it->second.plain_need;
    }
    return sums;
  }
  std::optional<QueuePlace> FirstAwake(const std::optional<QueuePlace>& after,
                                       const QueueLine::Left& left) const {
    for (const auto& [place, entry] : entries_) {
      const QueueLine::Sums before = Before(place);
      if (after && !(*after < place)) continue;
      if (entry.asleep == Asleep::kByUse && before.asked + entry.asked <= left.use) return place;
      if (entry.asleep == Asleep::kByNeed && before.need + entry.need <= left.need) return place;
      if (entry.asleep == Asleep::kWithRoom && before.asked + entry.asked > left.room) return place;
    }
    return std::nullopt;
  }
  std::map<QueuePlace, QueueLine::Entry>& entries() { return entries_; }

 private:
  QueueLine::Sums Claimed(const QueuePlace& place) const {
    auto it = entries_.find(place);
    if (it == entries_.end() || !it->second.claims) return {};
    return {it->second.asked, it->second.need, it->second.plain_need};
  }

  std::map<QueuePlace, QueueLine::Entry> entries_;
};

TEST(QueueLineTest, SkippingWaitersAnswersAsCheckingAll) {
  std::mt19937_64 random(1);
  const auto below = [&](uint64_t n) { return random() % n; };
  QueueLine line;
  NaiveLine naive;
  uint64_t next = 0;
  for (int i = 0; i < 6000; ++i) {
    // It grows to some hundreds, shrinks to nothing, and grows again.
    const bool grows = i / 1000 % 2 == 0;
    const QueuePlace fresh = {{below(3), static_cast<int64_t>(below(3)) - 1}, WaiterId{++next}};
    const bool known = !naive.entries().empty() && below(100) < (grows ? 40 : 90);
    const QueuePlace place = known
                                 ? std::next(naive.entries().begin(),
                                             static_cast<ptrdiff_t>(below(naive.entries().size())))
                                       ->first
                                 : fresh;
    if (below(100) < (grows ? 20 : 60)) {
      ASSERT_EQ(line.Take(place), naive.Take(place)) << i;
    } else {
      const QueueLine::Entry entry = {.asked = 1 + below(9),
                                      .need = 1 + below(9),
                                      .plain_need = below(9),
                                      .claims = below(3) > 0,
                                      .asleep = static_cast<Asleep>(below(4))};
      ASSERT_EQ(line.Set(place, entry), naive.Set(place, entry)) << i;
    }
    ASSERT_EQ(line.size(), naive.entries().size());
    ASSERT_EQ(line.Before(place), naive.Before(place)) << i;
    const QueueLine::Left left = {
        .use = below(2) * below(20), .need = below(2) * below(20), .room = below(3000)};
    const auto after = below(3) == 0 ? std::nullopt : std::optional(place);
    ASSERT_EQ(line.FirstAwake(after, left), naive.FirstAwake(after, left)) << i;
  }
}

}  // namespace
}  // namespace gpumemd
