// SPDX-License-Identifier: Apache-2.0
#include "daemon/log/log_writer.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/start_thread.h"
#include "daemon/log/ready_write.h"

namespace gpumemd {
namespace {

// How long one wait for room lasts; the end of the writer is seen in between.
constexpr absl::Duration kWaitForRoom = absl::Milliseconds(100);

}  // namespace

struct LogWriter::State {
  State(int descriptor, LogWriterOptions with) : fd(descriptor), options(std::move(with)) {}

  const int fd;
  const LogWriterOptions options;
  absl::Mutex mutex;
  std::deque<std::string> queue ABSL_GUARDED_BY(mutex);
  size_t bytes ABSL_GUARDED_BY(mutex) = 0;  // in the queue
  // True while the thread writes a line that it has taken out of the queue.
  bool writing ABSL_GUARDED_BY(mutex) = false;
  uint64_t dropped ABSL_GUARDED_BY(mutex) = 0;
  uint64_t dropped_untold ABSL_GUARDED_BY(mutex) = 0;
  bool tick_due ABSL_GUARDED_BY(mutex) = false;
  absl::Time end_by ABSL_GUARDED_BY(mutex) = absl::InfiniteFuture();
  bool ends ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return ends || tick_due || !queue.empty() || dropped_untold > 0;
  }
};

absl::StatusOr<std::unique_ptr<LogWriter>> LogWriter::Start(int fd, LogWriterOptions options) {
  std::unique_ptr<LogWriter> writer(new LogWriter(std::make_shared<State>(fd, std::move(options))));
  absl::StatusOr<std::thread> thread =
      gpumem::StartThread([state = writer->state_] { Run(state); });
  if (!thread.ok()) return thread.status();
  writer->thread_ = *std::move(thread);
  return writer;
}

LogWriter::~LogWriter() {
  if (!thread_.joinable()) return;
  bool ended = false;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->ends = true;
    state_->end_by = absl::Now() + state_->options.end_within;
    // The thread looks at end_by itself; the rest is for one that hangs in write(2).
    ended = state_->mutex.AwaitWithTimeout(absl::Condition(&state_->ended),
                                           state_->options.end_within + 4 * kWaitForRoom);
  }
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void LogWriter::Write(std::string line) {
  if (line.empty()) return;
  absl::MutexLock lock(&state_->mutex);
  State& state = *state_;
  if (state.queue.empty() && !state.writing) {
    absl::string_view rest = line;
    // A descriptor that fails loses the line: there is no other place to say so.
    if (WriteReady(state.fd, &rest) != ReadyWrite::kBlocked) return;
    line.erase(0, line.size() - rest.size());
  }
  if (state.ended || state.queue.size() >= state.options.max_lines ||
      state.bytes + line.size() > state.options.max_bytes) {
    ++state.dropped;
    ++state.dropped_untold;
    return;
  }
  state.bytes += line.size();
  state.queue.push_back(std::move(line));
}

void LogWriter::MakeTickDue() {
  absl::MutexLock lock(&state_->mutex);
  state_->tick_due = true;
}

uint64_t LogWriter::dropped() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->dropped;
}

void LogWriter::Run(const std::shared_ptr<State>& state) {
  absl::Time next_tick = absl::InfiniteFuture();
  while (true) {
    std::string line;
    uint64_t dropped = 0;
    {
      absl::MutexLock lock(&state->mutex);
      state->mutex.AwaitWithDeadline(absl::Condition(state.get(), &State::HasWork), next_tick);
      if (!state->queue.empty()) {
        line = std::move(state->queue.front());
        state->queue.pop_front();
        state->bytes -= line.size();
        state->writing = true;
      } else if (state->ends) {
        state->ended = true;
        return;
      } else {
        dropped = std::exchange(state->dropped_untold, 0);
        state->tick_due = false;
      }
    }
    if (line.empty()) {
      if (dropped > 0 && state->options.on_dropped) state->options.on_dropped(dropped);
      next_tick = state->options.tick ? state->options.tick() : absl::InfiniteFuture();
      continue;
    }
    absl::string_view rest = line;
    while (WriteWithin(state->fd, &rest, kWaitForRoom) == ReadyWrite::kBlocked) {
      absl::MutexLock lock(&state->mutex);
      if (absl::Now() < state->end_by) continue;
      state->ended = true;
      return;
    }
    absl::MutexLock lock(&state->mutex);
    state->writing = false;
  }
}

}  // namespace gpumemd
