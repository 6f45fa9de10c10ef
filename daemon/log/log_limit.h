// SPDX-License-Identifier: Apache-2.0
// Bounds the lines that peers can make the daemon log: a few of each kind from each uid pass in a
// window of time, the others are counted. Memory is bounded for any number of uids.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gpumemd {

struct LogLimitOptions {
  uint32_t per_source = 5;  // lines of one kind from one uid in a window
  uint32_t per_kind = 50;   // lines of one kind from all uids in a window
  absl::Duration window = absl::Seconds(10);
  size_t max_sources = 1024;  // uids beyond this are counted together, for each kind
  std::function<absl::Time()> now = absl::Now;
};

// Thread-safe.
class LogLimiter {
 public:
  struct Suppressed {
    std::string kind;
    std::optional<uid_t> uid;  // absent: of no uid, or of those beyond max_sources
    uint64_t lines = 0;
    absl::Duration over;  // from the window's begin to now
  };

  explicit LogLimiter(LogLimitOptions options = {}) : options_(std::move(options)) {}

  // True if the line may be logged; otherwise counts it. There are few `kind`s, none of which a
  // peer chooses.
  bool Admit(absl::string_view kind, std::optional<uid_t> uid) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns what was suppressed in windows that have ended, each count once, and forgets them.
  std::vector<Suppressed> TakeEnded() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the end of the first window, when TakeEnded may have something to return.
  absl::Time NextEnd() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the number of lines suppressed so far.
  uint64_t suppressed() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of sources that are remembered.
  size_t sources() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Window {
    absl::Time begin;
    uint32_t passed = 0;
    uint64_t suppressed = 0;
    // Suppressed in earlier windows, not taken yet.
    uint64_t untold = 0;
    absl::Time untold_since;
  };
  struct Kind {
    Window all;     // its `suppressed` stays 0: the sources count it
    Window others;  // without a uid, or beyond max_sources
    std::map<uid_t, Window> by_uid;
  };

  bool Holds(const Window& window, absl::Time now) const;
  // Starts a new window if this one has ended.
  void Renew(Window& window, absl::Time now) const;

  const LogLimitOptions options_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Kind, std::less<>> kinds_ ABSL_GUARDED_BY(mutex_);
  size_t sources_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t suppressed_ ABSL_GUARDED_BY(mutex_) = 0;
  // No window ends before this.
  absl::Time next_end_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace gpumemd
