// SPDX-License-Identifier: Apache-2.0
// Writes the spans of this process to a file while it runs, if its environment says so.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "common/trace/encoder.h"
#include "common/trace/recording.h"
#include "common/unique_fd.h"

namespace gpumem::trace {

// The variable that names the file, or a folder for a file of this process.
inline constexpr char kFileVariable[] = "GPUMEM_TRACE_FILE";

// Spans of this process go to a file from Open() until the end of the object. The file is appended
// to, so processes may share one.
class FileTrace {
 public:
  // The file grows by so much at most. Later spans are counted, and not written.
  static constexpr size_t kMostBytes = size_t{64} << 20;

  // `path`: a file, made if there is none; or a folder, for a file "gpumem-PID.pftrace" in it.
  //   FAILED_PRECONDITION  a trace of this process runs
  //   RESOURCE_EXHAUSTED   no memory, or no thread
  //   others               as open(2)
  static absl::StatusOr<std::unique_ptr<FileTrace>> Open(const std::string& path,
                                                         size_t most_bytes = kMostBytes);
  ~FileTrace();

 private:
  FileTrace(UniqueFd file, std::unique_ptr<Recording> recording, size_t most_bytes);
  void WriteLoop();
  // Writes the spans recorded so far. False if no more can be written.
  bool WriteSome();
  bool Write(const std::string& bytes);

  const UniqueFd file_;
  const std::unique_ptr<Recording> recording_;
  const int pid_;
  size_t left_;  // bytes
  Encoder encoder_;
  std::vector<Event> events_;
  std::string bytes_;
  absl::Notification ends_;
  std::thread thread_;
};

// Opens a FileTrace for the rest of the process if kFileVariable is set. The first call decides.
// Returns OK if the variable is not set, or if another trace runs. Does nothing in a program with
// more privilege than its user.
absl::Status TraceToFileOfEnvironment();

}  // namespace gpumem::trace
