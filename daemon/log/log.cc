// SPDX-License-Identifier: Apache-2.0
#include "daemon/log/log.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/counted.h"
#include "daemon/log/log_limit.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/base_sink.h"

namespace gpumemd {
namespace {

LogLimiter& Limiter() {
  static LogLimiter* const limiter = new LogLimiter();
  return *limiter;
}

// The writer that runs, if any. Never destroyed: threads may log at the end of the process.
struct Writer {
  absl::Mutex mutex;
  LogWriter* writer ABSL_GUARDED_BY(mutex) = nullptr;
  uint64_t dropped ABSL_GUARDED_BY(mutex) = 0;  // by writers that have ended

  void Write(std::string line) ABSL_LOCKS_EXCLUDED(mutex) {
    absl::ReaderMutexLock lock(&mutex);
    if (writer != nullptr) writer->Write(std::move(line));
  }
  void MakeTickDue() ABSL_LOCKS_EXCLUDED(mutex) {
    absl::ReaderMutexLock lock(&mutex);
    if (writer != nullptr) writer->MakeTickDue();
  }
};

Writer& TheWriter() {
  static Writer* const writer = new Writer();
  return *writer;
}

// Formats under the sink's own mutex, which is never held over a wait.
class WriterSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    TheWriter().Write(std::string(text.data(), text.size()));
  }
  void flush_() override {}
};

// Puts the level before each line as journald wants it (sd-daemon(3)).
class JournalLevel : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const char* level = message.level >= spdlog::level::err    ? "<3>"
                        : message.level == spdlog::level::warn ? "<4>"
                        : message.level == spdlog::level::info ? "<6>"
                                                               : "<7>";
    out.append(level, level + 3);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JournalLevel>();
  }
};

void LogDropped(uint64_t lines) {
  spdlog::warn("{} of the log lost: standard error did not take them in time",
               gpumem::Counted(lines, "line"));
}

// Logs a summary of lines suppressed by LogLimited. Returns when there may be more.
absl::Time LogSuppressed() {
  for (const LogLimiter::Suppressed& of : Limiter().TakeEnded()) {
    spdlog::warn(
        "... and {} more like this{} in {}: {}", of.lines,
        of.uid ? absl::StrCat(" from uid ", *of.uid) : "",
        absl::FormatDuration(std::max(absl::Trunc(of.over, absl::Seconds(1)), absl::Seconds(1))),
        of.kind);
  }
  return Limiter().NextEnd();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Log>> Log::Start(bool for_journal) {
  auto writer = LogWriter::Start(STDERR_FILENO, {.on_dropped = LogDropped, .tick = LogSuppressed});
  if (!writer.ok()) return writer.status();
  {
    absl::MutexLock lock(&TheWriter().mutex);
    TheWriter().writer = writer->get();
  }
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  if (for_journal) {
    formatter->add_flag<JournalLevel>('*').set_pattern("%*%v");  // the journal knows the time
  } else {
    formatter->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
  }
  auto logger = std::make_shared<spdlog::logger>("gpumemd", std::make_shared<WriterSink>());
  logger->set_formatter(std::move(formatter));
  spdlog::set_default_logger(std::move(logger));
  return std::unique_ptr<Log>(new Log(*std::move(writer)));
}

Log::~Log() {
  {
    absl::MutexLock lock(&TheWriter().mutex);
    TheWriter().writer = nullptr;
    TheWriter().dropped += writer_->dropped();
  }
  writer_.reset();
}

LogCounts CountUnlogged() {
  LogCounts counts{.suppressed = Limiter().suppressed()};
  absl::ReaderMutexLock lock(&TheWriter().mutex);
  counts.dropped = TheWriter().dropped;
  if (TheWriter().writer != nullptr) counts.dropped += TheWriter().writer->dropped();
  return counts;
}

bool MayLog(absl::string_view kind, std::optional<uid_t> uid) {
  const bool admitted = Limiter().Admit(kind, uid);
  // The window may have begun with this line.
  if (admitted) TheWriter().MakeTickDue();
  return admitted;
}

}  // namespace gpumemd
