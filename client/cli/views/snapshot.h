// SPDX-License-Identifier: Apache-2.0
// All that the daemon reports to operators, queried at one time, with look-ups by name.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/views/device_list.h"
#include "client/files/contents.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

struct Snapshot {
  v1::GetStatusResponse status;
  v1::ListTenantsResponse tenants;
  v1::ListSessionsResponse sessions;
  v1::ListSegmentsResponse segments;
  v1::ListWaitingResponse waiting;
  v1::ListPublicationsResponse publications;
  v1::ListHoldersResponse holders;
  // Of a publication to describe: the arrays that its metadata lists. Empty if it lists none.
  internal::Contents contents;

  DeviceList devices() const { return {status.devices().begin(), status.devices().end()}; }

  // Null if there is none: the calls were made one after another, and an object may have ended in
  // between.
  const v1::TenantInfo* Tenant(absl::string_view name) const;
  const v1::SessionInfo* Session(uint64_t id) const;
  const v1::SegmentInfo* Segment(uint64_t id) const;
  const v1::LeaseInfo* Lease(uint64_t id) const;
  const v1::Device* Device(absl::string_view uuid) const;
  const v1::PublicationInfo* Publication(absl::string_view full_name) const;  // "TENANT/NAME"
  const v1::PublishedSegments* Published(absl::string_view full_name) const;
};

// The kinds of objects; kAny: any kind.
enum class Subject { kAny, kTenant, kSession, kLease, kSegment, kPublication, kDevice };

// One object of a snapshot.
struct Thing {
  Subject what = Subject::kAny;  // never kAny
  uint64_t id = 0;               // of a session, lease or segment
  std::string name;              // of a tenant or publication ("TENANT/NAME"), a device's UUID
};

// Finds the object that the user names: by number, name or UUID, a publication also without its
// tenant. kAny: of any kind.
//   NOT_FOUND         there is none
//   INVALID_ARGUMENT  several match; the message names them
absl::StatusOr<Thing> Find(const Snapshot& snapshot, Subject subject, const std::string& name);

}  // namespace gpumem::cli
