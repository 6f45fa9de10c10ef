// SPDX-License-Identifier: Apache-2.0
// Writes the lines of the log to a descriptor that may be full: a pipe that no process reads, a
// terminal that is stopped, a journal that hangs.
//
//   threads that log ── Write ──▶ the descriptor, while it takes lines
//                          └────▶ a bounded queue ──▶ a thread that waits for room
//
// A line that finds the queue full is dropped and counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gpumemd {

struct LogWriterOptions {
  size_t max_lines = 4096;  // in the queue
  size_t max_bytes = size_t{1} << 20;
  // How long the destructor waits for the descriptor to take the lines in the queue.
  absl::Duration end_within = absl::Seconds(1);
  // Called from the writer's thread with the number of dropped lines, once the queue is empty
  // again. May call Write.
  std::function<void(uint64_t)> on_dropped;
  // Called from the writer's thread when it is due, at first after MakeTickDue(); returns the next
  // due time. May call Write.
  std::function<absl::Time()> tick;
};

// Thread-safe.
class LogWriter {
 public:
  // `fd` stays open as long as the process runs.
  //   RESOURCE_EXHAUSTED  no further thread
  static absl::StatusOr<std::unique_ptr<LogWriter>> Start(int fd, LogWriterOptions options = {});
  // Waits up to end_within for the queue to empty. Calls none of the functions afterwards.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Writes or queues a line, with its newline. Never blocks on the descriptor, except where that
  // is a regular file.
  void Write(std::string line);

  void MakeTickDue();

  // Returns the number of lines dropped so far.
  uint64_t dropped() const;

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  explicit LogWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Shared with the thread, which outlives this object if it hangs in a write.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gpumemd
