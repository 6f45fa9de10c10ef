// SPDX-License-Identifier: Apache-2.0
// Interprocess events: which sessions may register and find which events (ipc_events.h keeps them).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/sessions.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Functions return the statuses that proto/gpumem/v1/broker.proto lists, and ABORTED if the session
// has ended.
class Events {
 public:
  // Where sessions find an event.
  struct Place {
    std::string name;              // in the session's tenant
    std::optional<LeaseId> lease;  // instead of a name: beside the segment of this lease
  };

  // All must outlive this.
  Events(LedgerBase* base, Sessions* sessions)
      : state_(base->state), changes_(base->changes), sessions_(*sessions) {}

  // Registers an event. If the session's request of this number (0: none) has registered one
  // before, returns that one.
  absl::StatusOr<IpcEventId> Register(SessionId session, const Place& place,
                                      absl::string_view device_uuid, const ExportData& handle,
                                      uint64_t request_id = 0);
  absl::StatusOr<std::vector<IpcEventView>> Find(SessionId session, const Place& place);
  // True if another session was given the handle.
  absl::StatusOr<bool> Unregister(SessionId session, IpcEventId event);

 private:
  using Session = records::Session;

  LedgerState& state_;
  ChangeLog& changes_;
  Sessions& sessions_;
};

}  // namespace gpumemd
