// Where the audit is written: a file, or the journal.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/core/audit/audit.h"

namespace gpumemd {

// Used by one thread, but for Reopen.
class AuditOutput {
 public:
  virtual ~AuditOutput() = default;
  // Writes one record. On an error it may be tried again with the same record, and nothing of it
  // is there twice. May take seconds.
  virtual absl::Status Write(const AuditRecord& record) = 0;
  // The file may have been moved away (logrotate(8)): the next record goes to one of that name.
  // Thread-safe.
  virtual void Reopen() {}
};

// Lines of JSON at the end of the file, which is made (mode 0640) where it is not there.
//   others  as the operating system says
absl::StatusOr<std::unique_ptr<AuditOutput>> OpenAuditFile(const std::string& path);
// Lines of JSON on this process's standard error.
//   Write: DEADLINE_EXCEEDED  it is full, and no process reads it
std::unique_ptr<AuditOutput> AuditToStderr();

inline constexpr char kJournalSocket[] = "/run/systemd/journal/socket";
// Entries for the journal; it need not be there yet.
std::unique_ptr<AuditOutput> AuditToJournal(const std::string& socket = kJournalSocket);

// Whether standard error is the journal's own stream (systemd.exec(5), $JOURNAL_STREAM): the
// process is a service of systemd, whose log is the journal.
bool StderrIsJournal();

}  // namespace gpumemd
