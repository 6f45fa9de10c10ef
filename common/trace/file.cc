// SPDX-License-Identifier: Apache-2.0
#include "common/trace/file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/start_thread.h"

namespace gpumem::trace {
namespace {

constexpr absl::Duration kWriteEvery = absl::Milliseconds(20);

absl::StatusOr<UniqueFd> OpenToAppend(std::string path) {
  struct stat at = {};
  if (stat(path.c_str(), &at) == 0 && S_ISDIR(at.st_mode)) {
    path = absl::StrCat(path, "/gpumem-", getpid(), ".pftrace");
  }
  UniqueFd file(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (file.valid()) return file;
  return absl::ErrnoToStatus(errno, absl::StrCat(kFileVariable, ": cannot write to ", path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileTrace>> FileTrace::Open(const std::string& path,
                                                           size_t most_bytes) {
  absl::StatusOr<UniqueFd> file = OpenToAppend(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::unique_ptr<Recording>> recording = Recording::Start();
  if (!recording.ok()) return recording.status();
  auto made = std::unique_ptr<FileTrace>(
      new FileTrace(*std::move(file), *std::move(recording), most_bytes));
  absl::StatusOr<std::thread> thread = StartThread([trace = made.get()] { trace->WriteLoop(); });
  if (!thread.ok()) return thread.status();
  made->thread_ = *std::move(thread);
  return made;
}

FileTrace::FileTrace(UniqueFd file, std::unique_ptr<Recording> recording, size_t most_bytes)
    : file_(std::move(file)),
      recording_(std::move(recording)),
      pid_(getpid()),
      left_(most_bytes),
      encoder_(kClientCategory, Process::Self(), recording_->started_ns()) {}

FileTrace::~FileTrace() {
  if (getpid() != pid_) {
    // A child made by fork() has no such thread.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  recording_->Stop();
  ends_.Notify();
  if (thread_.joinable()) thread_.join();
}

void FileTrace::WriteLoop() {
  bool writes = true;
  while (writes && !ends_.WaitForNotificationWithTimeout(kWriteEvery)) writes = WriteSome();
  recording_->Stop();
  if (writes) writes = WriteSome();
  events_.clear();
  recording_->Take(&events_);
  const uint64_t dropped = recording_->dropped() + events_.size();
  bytes_.clear();
  encoder_.Add({}, &bytes_);
  if (dropped > 0) encoder_.AddDropped(dropped, &bytes_);
  if (writes) Write(bytes_);
}

bool FileTrace::WriteSome() {
  events_.clear();
  recording_->Take(&events_);
  if (events_.empty()) return true;
  bytes_.clear();
  encoder_.Add(events_, &bytes_);
  if (bytes_.size() > left_) {
    bytes_.clear();
    encoder_.AddDropped(events_.size(), &bytes_);
    Write(bytes_);
    return false;
  }
  left_ -= bytes_.size();
  return Write(bytes_);
}

bool FileTrace::Write(const std::string& bytes) {
  // In one call, so that other processes' parts do not come in between.
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

absl::Status TraceToFileOfEnvironment() {
  // Its destructor writes the last spans, at the end of the process.
  static const absl::StatusOr<std::unique_ptr<FileTrace>> trace =
      []() -> absl::StatusOr<std::unique_ptr<FileTrace>> {
    const char* const path = secure_getenv(kFileVariable);
    if (path == nullptr || *path == '\0') return nullptr;
    absl::StatusOr<std::unique_ptr<FileTrace>> opened = FileTrace::Open(path);
    if (opened.ok()) pthread_atfork(nullptr, nullptr, StopAfterFork);
    return opened;
  }();
  return absl::IsFailedPrecondition(trace.status()) ? absl::OkStatus() : trace.status();
}

}  // namespace gpumem::trace
