// SPDX-License-Identifier: Apache-2.0
// A record of the audit as bytes: for files, and for the journal.
#pragma once

#include <string>

#include "daemon/core/audit/audit.h"

namespace gpumemd {

// Returns one line of JSON, without its newline: "time" (RFC 3339, UTC, microseconds), "number",
// "event", the record's fields, and "message". Bytes that are no UTF-8 become U+FFFD.
std::string ToJson(const AuditRecord& record);

// Returns an entry for the journal's socket (https://systemd.io/JOURNAL_NATIVE_PROTOCOL): MESSAGE,
// MESSAGE_ID, PRIORITY, SYSLOG_IDENTIFIER, and the record's fields as GPUMEM_…. A field with
// several values appears several times.
std::string ToJournal(const AuditRecord& record);

}  // namespace gpumemd
