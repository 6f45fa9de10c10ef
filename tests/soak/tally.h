// SPDX-License-Identifier: Apache-2.0
// What a worker tells its parent: counts by name, and what went wrong.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gpumem::soak {

using Counts = std::map<std::string, uint64_t>;

// "held=4096 acquire=3" and back. Leaves out other words.
std::string WordsOf(const Counts& counts);
Counts CountsOf(absl::string_view words);

// Thread-safe.
class Tally {
 public:
  void Add(const std::string& what, uint64_t count = 1);
  // Counts an operation by its status: OK, or refused with one of these codes. Draining daemons
  // refuse any call with UNAVAILABLE, and full quotas with RESOURCE_EXHAUSTED. Other codes are
  // wrong. True if it is OK.
  bool Count(const std::string& what, const absl::Status& status,
             std::initializer_list<absl::StatusCode> allowed = {});
  void Wrong(const std::string& words);
  // Sends the counts and the mistakes since the last time to the parent.
  void Tell(uint64_t held);

 private:
  absl::Mutex mutex_;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> wrong_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::soak
