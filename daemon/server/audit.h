// SPDX-License-Identifier: Apache-2.0
// Audit records of the server itself, and the audit's configured output.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/audit/audit_log.h"
#include "daemon/config/config.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/broker.h"
#include "daemon/restart/inherit.h"

namespace gpumemd {

// Starts the configured audit.
//   others  the file cannot be opened, or no thread can be started
absl::StatusOr<std::unique_ptr<AuditLog>> StartAudit(const AuditConfig& config);

// Records what a daemon has taken over from the previous one: kRestored, kSessionEnded for each
// session whose process is gone, and kLost for each loss.
void AuditInheritance(const Broker::Restored& restored, const JournalImage& image,
                      const std::map<SessionId, Survivor>& survivors, uint64_t generation,
                      AuditSink* sink);

}  // namespace gpumemd
