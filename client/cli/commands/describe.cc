// SPDX-License-Identifier: Apache-2.0
// gpumemctl describe.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/commands/output.h"
#include "client/cli/commands/read_snapshot.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/views/describe_view.h"
#include "client/cli/views/snapshot.h"
#include "client/files/contents.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

// Returns the arrays of a publication; none if its metadata lists none, or if it has ended since.
internal::Contents ContentsOf(AdminConnection& admin, const std::string& name) {
  v1::GetPublicationRequest request;
  request.set_name(name);
  const auto answer = Call(admin, &Admin::Stub::GetPublication, request);
  if (!answer.ok()) return {};
  const std::vector<uint64_t> segments(answer->segment_bytes().begin(),
                                       answer->segment_bytes().end());
  return internal::DecodeContents(answer->metadata(), segments).value_or(internal::Contents());
}

Json ArrayJson(const internal::PublishedArray& array) {
  Json json = Json::object();
  json["name"] = array.name;
  json["dtype"] = array.dtype;
  json["shape"] = array.shape;
  json["contiguous"] = array.contiguous;
  json["size_bytes"] = array.extent.bytes;
  json["segment"] = nullptr;
  if (array.extent.bytes > 0) json["segment"] = array.extent.segment;
  json["offset_bytes"] = array.extent.offset;
  json["xxh128"] = nullptr;
  if (array.extent.xxh128) json["xxh128"] = *array.extent.xxh128;
  return json;
}

// Returns the elements of a list for which `of` is true.
template <typename List, typename Of>
Json Those(const List& list, Of of) {
  Json json = Json::array();
  for (const auto& each : list) {
    if (of(each)) json.push_back(ToJson(each));
  }
  return json;
}

// The object, and its references. The members are the same for all objects.
Json DescribeJson(const Snapshot& snapshot, const Thing& thing) {
  const std::string& name = thing.name;
  const uint64_t id = thing.id;
  const bool lease = thing.what == Subject::kLease;
  const v1::LeaseInfo* of_lease = lease ? snapshot.Lease(id) : nullptr;
  const v1::PublishedSegments* published =
      thing.what == Subject::kPublication ? snapshot.Published(name) : nullptr;
  const auto is_published = [&](uint64_t segment) {
    return published != nullptr &&
           std::find(published->segment_ids().begin(), published->segment_ids().end(), segment) !=
               published->segment_ids().end();
  };
  const auto leases_it = [&](uint64_t session, uint64_t segment) {
    return std::any_of(snapshot.holders.leases().begin(), snapshot.holders.leases().end(),
                       [&](const v1::LeaseInfo& each) {
                         return each.session_id() == session && each.segment_id() == segment;
                       });
  };
  Json json = Json::object();
  const char* words[] = {"", "tenant", "session", "lease", "segment", "publication", "device"};
  json["what"] = words[static_cast<int>(thing.what)];
  if (name.empty()) {
    json["id"] = id;
  } else {
    json["name"] = name;
  }
  json["tenants"] = Those(snapshot.tenants.tenants(), [&](const v1::TenantInfo& each) {
    return thing.what == Subject::kTenant &&
           (each.usage().tenant() == name || each.quota().parent() == name);
  });
  json["sessions"] = Those(snapshot.sessions.sessions(), [&](const v1::SessionInfo& each) {
    const v1::SegmentInfo* segment =
        thing.what == Subject::kSegment ? snapshot.Segment(id) : nullptr;
    return (thing.what == Subject::kSession && each.session_id() == id) ||
           (thing.what == Subject::kTenant && each.tenant() == name) ||
           (of_lease != nullptr && of_lease->session_id() == each.session_id()) ||
           (segment != nullptr &&
            std::find(segment->session_ids().begin(), segment->session_ids().end(),
                      each.session_id()) != segment->session_ids().end());
  });
  json["leases"] = Those(snapshot.holders.leases(), [&](const v1::LeaseInfo& each) {
    return (lease && each.lease_id() == id) ||
           (thing.what == Subject::kSegment && each.segment_id() == id) ||
           (thing.what == Subject::kSession && each.session_id() == id) ||
           (thing.what == Subject::kTenant && each.tenant() == name) ||
           (thing.what == Subject::kPublication && each.publication() == name);
  });
  json["segments"] = Those(snapshot.segments.segments(), [&](const v1::SegmentInfo& each) {
    return (thing.what == Subject::kSegment && each.segment_id() == id) ||
           (of_lease != nullptr && of_lease->segment_id() == each.segment_id()) ||
           (thing.what == Subject::kSession && leases_it(id, each.segment_id())) ||
           (thing.what == Subject::kTenant && each.tenant() == name) ||
           (thing.what == Subject::kDevice && each.device_uuid() == name) ||
           is_published(each.segment_id());
  });
  json["publications"] =
      Those(snapshot.publications.publications(), [&](const v1::PublicationInfo& each) {
        const std::string full_name = absl::StrCat(each.tenant(), "/", each.name());
        const v1::PublishedSegments* segments = snapshot.Published(full_name);
        const bool has_it =
            thing.what == Subject::kSegment && segments != nullptr &&
            std::find(segments->segment_ids().begin(), segments->segment_ids().end(), id) !=
                segments->segment_ids().end();
        return has_it || (thing.what == Subject::kPublication && full_name == name) ||
               (thing.what == Subject::kTenant && each.tenant() == name) ||
               (thing.what == Subject::kSession && each.publisher_session_id() == id);
      });
  json["devices"] = Those(snapshot.status.devices(), [&](const v1::Device& each) {
    return thing.what == Subject::kDevice && each.device_uuid() == name;
  });
  json["waiting"] = Those(snapshot.waiting.waiting(), [&](const v1::WaitingInfo& each) {
    return (thing.what == Subject::kSession && each.session_id() == id) ||
           (thing.what == Subject::kTenant && each.tenant() == name) ||
           (thing.what == Subject::kDevice && each.device_uuid() == name);
  });
  json["arrays"] = Json::array();
  for (const internal::PublishedArray& array : snapshot.contents.arrays) {
    json["arrays"].push_back(ArrayJson(array));
  }
  return json;
}

}  // namespace

absl::Status Run(const DescribeCommand& command, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  absl::StatusOr<Snapshot> snapshot = ReadSnapshot(**admin);
  if (!snapshot.ok()) return snapshot.status();
  absl::StatusOr<Thing> thing = Find(*snapshot, command.subject, command.name);
  if (!thing.ok()) return thing.status();
  if (thing->what == Subject::kPublication) snapshot->contents = ContentsOf(**admin, thing->name);
  Print(options.json ? Document(DescribeJson(*snapshot, *thing))
                     : DescribeView(*snapshot, *thing, options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
