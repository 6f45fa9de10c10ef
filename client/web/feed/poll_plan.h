// SPDX-License-Identifier: Apache-2.0
// When the daemon is asked for its state. Pure.
#pragma once

#include "absl/time/time.h"

namespace gpumem::web {

class PollPlan {
 public:
  // A query takes at most this share of the time: the next begins so many times its duration later.
  static constexpr int kRest = 4;
  // After a failure the next attempt is so much later, also if it is asked for.
  static constexpr absl::Duration kLeastPause = absl::Milliseconds(100);
  // Without requests the pause grows up to this.
  static constexpr absl::Duration kMostPause = absl::Seconds(2);
  // After a failure that took long, requests get its answer for so long.
  static constexpr absl::Duration kFailureHolds = absl::Seconds(1);

  // `interval`: between queries while there are subscribers.
  explicit PollPlan(absl::Duration interval) : interval_(interval) {}

  void Done(absl::Time begin, absl::Time end, bool ok);
  // Something has happened: the next query is soon.
  void Hasten();
  // The state is forgotten.
  void Forget();

  // True if a query is due for a request that accepts a state of this age. It gets an older one
  // while the share of queries is used up.
  bool IsDueForRequest(absl::Duration age, absl::Time now) const;
  // True if a query is due for subscribers.
  bool IsDue(absl::Time now) const { return IsSetBack(now) || now >= next_; }
  absl::Time next() const { return next_; }

 private:
  bool IsSetBack(absl::Time now) const { return now < polled_; }  // the clock

  const absl::Duration interval_;
  bool ok_ = false;
  absl::Duration pause_ = kLeastPause;
  absl::Time polled_ = absl::InfinitePast();  // the end of the last query
  absl::Time rested_ = absl::InfinitePast();  // no query before
  absl::Time next_ = absl::InfinitePast();
  absl::Time soon_ = absl::InfinitePast();  // for Hasten()
};

}  // namespace gpumem::web
