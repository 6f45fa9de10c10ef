// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/snapshot.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gpumem::cli {
namespace {

template <typename List, typename Is>
auto* FindIn(const List& list, Is is) {
  const auto it = std::find_if(list.begin(), list.end(), is);
  return it == list.end() ? nullptr : &*it;
}

const char* SubjectWord(Subject subject) {
  switch (subject) {
    case Subject::kTenant:
      return "tenant";
    case Subject::kSession:
      return "session";
    case Subject::kLease:
      return "lease";
    case Subject::kSegment:
      return "segment";
    case Subject::kPublication:
      return "publication";
    case Subject::kDevice:
      return "device";
    case Subject::kAny:
      break;
  }
  return "tenant, session, lease, segment, publication or device";
}

}  // namespace

const v1::TenantInfo* Snapshot::Tenant(absl::string_view name) const {
  return FindIn(tenants.tenants(), [&](const auto& each) { return each.usage().tenant() == name; });
}
const v1::SessionInfo* Snapshot::Session(uint64_t id) const {
  return FindIn(sessions.sessions(), [&](const auto& each) { return each.session_id() == id; });
}
const v1::SegmentInfo* Snapshot::Segment(uint64_t id) const {
  return FindIn(segments.segments(), [&](const auto& each) { return each.segment_id() == id; });
}
const v1::LeaseInfo* Snapshot::Lease(uint64_t id) const {
  return FindIn(holders.leases(), [&](const auto& each) { return each.lease_id() == id; });
}
const v1::Device* Snapshot::Device(absl::string_view uuid) const {
  return FindIn(status.devices(), [&](const auto& each) { return each.device_uuid() == uuid; });
}
const v1::PublicationInfo* Snapshot::Publication(absl::string_view full_name) const {
  return FindIn(publications.publications(), [&](const auto& each) {
    return absl::StrCat(each.tenant(), "/", each.name()) == full_name;
  });
}
const v1::PublishedSegments* Snapshot::Published(absl::string_view full_name) const {
  return FindIn(holders.publications(), [&](const auto& each) {
    return absl::StrCat(each.tenant(), "/", each.name()) == full_name;
  });
}

absl::StatusOr<Thing> Find(const Snapshot& snapshot, Subject subject, const std::string& name) {
  std::vector<Thing> found;
  const auto wanted = [subject](Subject what) {
    return subject == Subject::kAny || subject == what;
  };
  if (wanted(Subject::kTenant) && snapshot.Tenant(name) != nullptr) {
    found.push_back({Subject::kTenant, 0, name});
  }
  uint64_t id = 0;
  if (absl::SimpleAtoi(name, &id)) {
    if (wanted(Subject::kSession) && snapshot.Session(id) != nullptr) {
      found.push_back({Subject::kSession, id, ""});
    }
    if (wanted(Subject::kLease) && snapshot.Lease(id) != nullptr) {
      found.push_back({Subject::kLease, id, ""});
    }
    if (wanted(Subject::kSegment) && snapshot.Segment(id) != nullptr) {
      found.push_back({Subject::kSegment, id, ""});
    }
  }
  if (wanted(Subject::kPublication)) {
    for (const v1::PublicationInfo& each : snapshot.publications.publications()) {
      const std::string full_name = absl::StrCat(each.tenant(), "/", each.name());
      if (name == full_name || name == each.name()) {
        found.push_back({Subject::kPublication, 0, full_name});
      }
    }
  }
  if (wanted(Subject::kDevice)) {
    const absl::StatusOr<std::string> uuid = ResolveDevice(snapshot.devices(), name);
    if (uuid.ok()) {
      found.push_back({Subject::kDevice, 0, *uuid});
    } else if (absl::IsInvalidArgument(uuid.status()) || subject == Subject::kDevice) {
      return uuid.status();
    }
  }
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no ", SubjectWord(subject), " \"", name,
                                            "\" (see gpumemctl ps, segments, publications and "
                                            "quota list)"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is ambiguous: use ",
                   absl::StrJoin(found, ", or ", [&](std::string* out, const Thing& thing) {
                     const bool publication = thing.what == Subject::kPublication;
                     absl::StrAppend(out, "describe ", SubjectWord(thing.what), " ",
                                     publication ? thing.name : name);
                   })));
}

}  // namespace gpumem::cli
