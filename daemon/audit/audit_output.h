// SPDX-License-Identifier: Apache-2.0
// Where the audit is written: a file, or the journal.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/core/audit/audit.h"

namespace gpumemd {

// Used by one thread, except Reopen().
class AuditOutput {
 public:
  virtual ~AuditOutput() = default;
  // Writes one record. After an error the same record may be retried without duplicates. May take
  // seconds.
  virtual absl::Status Write(const AuditRecord& record) = 0;
  // Reopens the file by name for the next record, since it may have been moved away (logrotate(8)).
  // Thread-safe.
  virtual void Reopen() {}
};

// Appends lines of JSON to the file, which is made (mode 0640) if it is missing.
//   others  as the operating system says
absl::StatusOr<std::unique_ptr<AuditOutput>> OpenAuditFile(const std::string& path);
// Writes lines of JSON to this process's standard error.
//   Write: DEADLINE_EXCEEDED  it is full, and no process reads it
std::unique_ptr<AuditOutput> AuditToStderr();

inline constexpr char kJournalSocket[] = "/run/systemd/journal/socket";
// Writes entries to the journal, whose socket may appear later.
std::unique_ptr<AuditOutput> AuditToJournal(const std::string& socket = kJournalSocket);

// True if standard error is the journal's stream (systemd.exec(5), $JOURNAL_STREAM): the process is
// a service of systemd, whose log is the journal.
bool StderrIsJournal();

}  // namespace gpumemd
