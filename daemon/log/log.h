// SPDX-License-Identifier: Apache-2.0
// The daemon's log, which goes through spdlog's default logger to standard error.
//
// Two guarantees: a thread that logs never waits for a reader of standard error (log_writer.h), and
// floods by peers produce few lines (log_limit.h). Use LogLimited for events of connections that
// any user can make.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/log/log_writer.h"
#include "spdlog/spdlog.h"

namespace gpumemd {

// Logs to standard error until it is destroyed; later lines are dropped. One at a time, constructed
// before the threads that log.
class Log {
 public:
  // `for_journal`: lines begin with the level as journald reads it (sd-daemon(3)), without a time.
  //   RESOURCE_EXHAUSTED  no further thread
  static absl::StatusOr<std::unique_ptr<Log>> Start(bool for_journal);
  // Waits at most a second for standard error to take the lines in the queue.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

 private:
  explicit Log(std::unique_ptr<LogWriter> writer) : writer_(std::move(writer)) {}

  std::unique_ptr<LogWriter> writer_;
};

struct LogCounts {
  uint64_t dropped = 0;     // standard error did not take them
  uint64_t suppressed = 0;  // more of a kind than LogLimited lets pass
};
// Returns what was not logged since the process began. Thread-safe.
LogCounts CountUnlogged();

// True if a line of this kind, about this uid, may be logged now. `kind` is a plural that a summary
// can end with: "refused sessions". Thread-safe.
bool MayLog(absl::string_view kind, std::optional<uid_t> uid);

// Logs as spdlog::log, but only a few lines of each kind and uid in ten seconds; a summary line
// then counts the rest. Thread-safe.
template <typename... Args>
void LogLimited(spdlog::level::level_enum level, absl::string_view kind, std::optional<uid_t> uid,
                spdlog::format_string_t<Args...> format, Args&&... args) {
  if (!spdlog::should_log(level) || !MayLog(kind, uid)) return;
  spdlog::log(level, format, std::forward<Args>(args)...);
}

}  // namespace gpumemd
