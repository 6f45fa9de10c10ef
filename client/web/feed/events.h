// SPDX-License-Identifier: Apache-2.0
// Records of the audit for the page. Pure.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/web/feed/privacy.h"
#include "proto/gpumem/v1/event_record.pb.h"

namespace gpumem::web {

// Returns {"number", "time_ms", "event", "text", "tenant"?, "missed"?, "fields": {name: value or
// [values]}} on one line. "missed" is the number of records before it that are gone.
std::string EventText(const v1::EventRecord& record);

// Returns a record for readers of a stream that says that events cannot be read for now.
std::string EventsFailedText(const absl::Status& why, absl::Time now);

// Returns the record as a viewer of these tenants sees it: without reasons, operators and other
// tenants' names and numbers. nullopt: it is about none of them, or from before they were made, and
// not about the viewer's processes. `visible` null: the viewer sees all tenants' records as they
// are, but not the daemon's.
std::optional<v1::EventRecord> FilteredEvent(const v1::EventRecord& record,
                                             const VisibleTenants* visible);

}  // namespace gpumem::web
