// SPDX-License-Identifier: Apache-2.0
// Descriptions of memory: segments, leases, publications and devices.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/describer.h"
#include "client/cli/views/holdings.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

std::string StateSentence(const v1::SegmentInfo& segment) {
  switch (segment.state()) {
    case v1::SegmentInfo::STATE_PENDING:
      return "It is being created or handed over.";
    case v1::SegmentInfo::STATE_LEASED:
      return segment.leases() == 0 ? "A publication holds it; no session leases it."
                                   : "It is leased.";
    case v1::SegmentInfo::STATE_RETAINED:
      return absl::StrCat(
          "It is retained: no session leases it, and its tenant's next request of this size gets "
          "it. "
          "Memory that others need is taken from here first; gpumemctl trim --tenant ",
          segment.tenant(), " gives it back at once.");
    case v1::SegmentInfo::STATE_LINGERING:
      return "It lingers: its leases have ended, and a process that may still map it lives. It "
             "stays charged until that process is gone.";
    case v1::SegmentInfo::STATE_RELEASING:
      return "It is on its way back to the driver.";
    default:
      return "";
  }
}

}  // namespace

std::string Describer::Segment(uint64_t id) {
  const v1::SegmentInfo& segment = *snapshot_.Segment(id);
  std::string text = Title(absl::StrCat(
      "Segment ", id, ": ", Bytes(segment.size_bytes()), " of kind ", Word(segment.kind()), " on ",
      On(segment.device_uuid()), ", there for ", Age(segment.age_ms())));
  absl::StrAppend(&text,
                  Paragraph(absl::StrCat("It belongs to tenant ", segment.tenant(),
                                         ", which is charged for it. ", StateSentence(segment))));
  if (segment.dropped_bytes() > 0) {
    absl::StrAppend(&text, Paragraph(absl::StrCat(
                               "It is suspended scratch memory: its ",
                               Bytes(segment.dropped_bytes()), " on ", On(segment.home_uuid()),
                               " were dropped, and come back zeroed when a session resumes it.")));
  } else if (!segment.home_uuid().empty() && segment.kind() == v1::KIND_HOST) {
    absl::StrAppend(
        &text, Paragraph(absl::StrCat("It is demoted: it has the contents of memory on ",
                                      On(segment.home_uuid()),
                                      ", at the same addresses, and its session can promote it.")));
  } else if (!segment.home_uuid().empty()) {
    absl::StrAppend(&text,
                    Paragraph(absl::StrCat(
                        "It is suspended: its contents were moved from ", On(segment.home_uuid()),
                        " into the host tier, and go back when a session resumes it.")));
  } else if (segment.suspended() > 0) {
    absl::StrAppend(
        &text, Paragraph(absl::StrCat(
                   Counted(segment.suspended(), "lease"), " of ", segment.leases(),
                   segment.suspended() == 1 ? " is" : " are",
                   " suspended. It moves into the host tier when all are, and none maps it.")));
  }
  if (segment.scratch() && segment.dropped_bytes() == 0) {
    absl::StrAppend(&text,
                    Paragraph("It is scratch memory: its bytes are dropped when it is suspended."));
  }
  if (segment.revocable()) {
    absl::StrAppend(&text, Paragraph("It is revocable: it may be taken back when others need it."));
  }
  if (segment.lost()) {
    absl::StrAppend(&text, Paragraph("It is lost: its CUDA context is gone. Sessions that have it "
                                     "open keep it, and no other session can open it."));
  }
  std::vector<std::string> holders;
  std::set<uint64_t> leasing;
  for (const v1::LeaseInfo& lease : snapshot_.holders.leases()) {
    if (lease.segment_id() != id) continue;
    leasing.insert(lease.session_id());
    holders.push_back(
        absl::StrCat("lease ", lease.lease_id(), ", ", Who(lease.session_id()), Traits(lease)));
  }
  for (const v1::PublishedSegments& each : snapshot_.holders.publications()) {
    const auto place = std::find(each.segment_ids().begin(), each.segment_ids().end(), id);
    if (place == each.segment_ids().end()) continue;
    holders.push_back(absl::StrCat("publication ", each.tenant(), "/", each.name(), ", version ",
                                   each.version(), ", in which it is segment ",
                                   place - each.segment_ids().begin() + 1, " of ",
                                   each.segment_ids_size()));
  }
  absl::StrAppend(&text, List("Held by", holders));
  std::vector<std::string> mapping;
  for (uint64_t session : segment.session_ids()) {
    if (!leasing.contains(session)) mapping.push_back(Who(session));
  }
  absl::StrAppend(&text, List("May still be mapped, without a lease, by", mapping));
  return text;
}

std::string Describer::Lease(uint64_t id) {
  const v1::LeaseInfo& lease = *snapshot_.Lease(id);
  std::string text =
      Title(absl::StrCat("Lease ", id, ": a session's right to segment ", lease.segment_id()));
  absl::StrAppend(&text, Paragraph(absl::StrCat("It is held by ", Who(lease.session_id()),
                                                Traits(lease), ".")));
  const v1::SegmentInfo* segment = snapshot_.Segment(lease.segment_id());
  std::string about = absl::StrCat("It is for ", What(lease.segment_id()));
  if (segment != nullptr) {
    absl::StrAppend(&about, segment->tenant() == lease.tenant()
                                ? ", which belongs to the same tenant"
                                : absl::StrCat(", which belongs to tenant ", segment->tenant(),
                                               " and is charged to that one"));
  }
  absl::StrAppend(&text, Paragraph(absl::StrCat(about, ".")));
  std::vector<std::string> others;
  for (const v1::LeaseInfo& other : snapshot_.holders.leases()) {
    if (other.segment_id() != lease.segment_id() || other.lease_id() == id) continue;
    others.push_back(
        absl::StrCat("lease ", other.lease_id(), ", ", Who(other.session_id()), Traits(other)));
  }
  absl::StrAppend(&text, List("Others that lease the same segment", others));
  return text;
}

// Publishers are untrusted.
std::string Describer::Contents() const {
  const internal::Contents& contents = snapshot_.contents;
  if (contents.arrays.empty()) return "";
  uint64_t bytes = 0;
  size_t checksums = 0;
  // The first array of each place: others there share its memory.
  std::map<std::tuple<size_t, uint64_t, uint64_t>, const std::string*> places;
  Table table({{"ARRAY"},
               {"DTYPE"},
               {"SHAPE"},
               {"SIZE", Align::kRight},
               Detail("SEGMENT", Align::kRight),
               Detail("OFFSET", Align::kRight),
               Detail("XXH128"),
               {"NOTE"}});
  for (const internal::PublishedArray& array : contents.arrays) {
    const internal::Extent& extent = array.extent;
    std::string note = array.contiguous ? "" : "strided";
    if (extent.bytes > 0) {
      const auto [place, is_new] =
          places.emplace(std::make_tuple(extent.segment, extent.offset, extent.bytes), &array.name);
      if (is_new) bytes += extent.bytes;
      if (!is_new) note = absl::StrCat("memory of ", *place->second);
    }
    checksums += extent.xxh128.has_value() ? 1 : 0;
    table.AddRow({array.name, array.dtype, absl::StrCat("[", absl::StrJoin(array.shape, ", "), "]"),
                  Bytes(extent.bytes), extent.bytes == 0 ? kNone : absl::StrCat(extent.segment),
                  extent.bytes == 0 ? kNone : absl::StrCat(extent.offset),
                  extent.xxh128.value_or(kNone), OrNone(note)});
  }
  std::string about = absl::StrCat("It has ", Counted(contents.arrays.size(), "array"), " of ",
                                   Bytes(bytes), " in all");
  if (!contents.files.empty()) {
    absl::StrAppend(&about, ", from ", Counted(contents.files.size(), "file"));
  }
  absl::StrAppend(&about, ", ",
                  checksums == contents.arrays.size() ? "with checksums (gpumemctl verify)."
                  : checksums == 0                    ? "without checksums."
                                                      : "some with checksums.");
  return absl::StrCat(Paragraph(about), "\n", table.ToString(layout_));
}

std::string Describer::Publication(const std::string& name) {
  const v1::PublicationInfo& publication = *snapshot_.Publication(name);
  std::string text =
      Title(absl::StrCat("Publication ", name, ", version ", publication.version(), ": ",
                         Counted(publication.segments(), "segment"), ", ",
                         Bytes(publication.bytes()), ", there for ", Age(publication.age_ms())));
  std::string about = absl::StrCat(publication.access() == v1::PUBLICATION_ACCESS_ANY
                                       ? "Sessions of every tenant"
                                       : "Sessions of its tenant alone",
                                   " may attach to it. It stays ");
  if (publication.expires_in_ms() > 0) {
    absl::StrAppend(&about, "for ", Age(publication.expires_in_ms()), " if no session attaches");
  } else if (publication.expire_after_ms() > 0) {
    absl::StrAppend(&about, "while a session is attached, and ", Age(publication.expire_after_ms()),
                    " longer");
  } else if (publication.ephemeral()) {
    absl::StrAppend(&about, "as long as its publisher's session");
  } else {
    absl::StrAppend(&about, "until it is unpublished");
  }
  absl::StrAppend(&about, ". Its metadata has ", Bytes(publication.metadata_bytes()), ".");
  if (!publication.content_id().empty()) {
    absl::StrAppend(&about, " Its content id is ", absl::BytesToHexString(publication.content_id()),
                    ".");
  }
  absl::StrAppend(&text, Paragraph(about));
  if (publication.suspended_segments() > 0) {
    absl::StrAppend(
        &text, Paragraph(absl::StrCat("It is suspended: the host tier has the contents of ",
                                      Counted(publication.suspended_segments(), "segment"),
                                      ". They come back when a session attaches, or with gpumemctl "
                                      "resume --publication ",
                                      name, ".")));
  }
  if (publication.publisher_pid() != 0) {
    absl::StrAppend(
        &text,
        Paragraph(
            publication.publisher_alive()
                ? absl::StrCat("It was published by ", Who(publication.publisher_session_id()), ".")
                : absl::StrCat("It was published by session ", publication.publisher_session_id(),
                               " (", publication.publisher_client_name(), ", pid ",
                               publication.publisher_pid(), "), which has ended.")));
  }
  const v1::PublishedSegments* published = snapshot_.Published(name);
  if (published != nullptr) {
    std::vector<std::string> segments;
    for (uint64_t id : published->segment_ids()) segments.push_back(What(id));
    absl::StrAppend(&text, List("It holds, in this order", segments));
  }
  std::map<uint64_t, size_t> attached;  // leases by session
  for (const v1::LeaseInfo& lease : snapshot_.holders.leases()) {
    if (lease.publication() == name) ++attached[lease.session_id()];
  }
  std::vector<std::string> sessions;
  for (const auto& [session, leases] : attached) {
    sessions.push_back(absl::StrCat(Who(session), ", ", Counted(leases, "lease")));
  }
  absl::StrAppend(&text, sessions.empty() ? Paragraph("No session is attached.") : "",
                  List("Attached", sessions), Contents());
  return text;
}

std::string Describer::Device(const std::string& uuid) {
  const v1::Device& device = *snapshot_.Device(uuid);
  const DeviceHoldings holdings = HoldingsOn(device, snapshot_.tenants);
  std::string text =
      Title(absl::StrCat("Device ", device.index(), ": ", device.name(), ", ", uuid));
  std::string about =
      absl::StrCat("It has ", Bytes(device.capacity_bytes()), " to hand out, of which ",
                   Bytes(holdings.all.held()), " (",
                   Percent(holdings.all.held(), device.capacity_bytes()), ") are held");
  if (holdings.outside > 0) {
    absl::StrAppend(&about, " and ", Bytes(holdings.outside), " were allocated past the broker");
  }
  absl::StrAppend(&about, "; ", Bytes(holdings.free), " are free. Sizes are rounded up to ",
                  Bytes(device.granularity_bytes()), ".");
  if (!device.pci_bus_id().empty()) {
    absl::StrAppend(&about, " Its PCI bus id is ", device.pci_bus_id(), ".");
  }
  if (device.context_pid() != 0) {
    absl::StrAppend(&about, " Process ", device.context_pid(),
                    " of the daemon has a CUDA context on it.");
  }
  absl::StrAppend(&text, Paragraph(about));
  std::vector<std::string> tenants;
  for (const Holding& holding : holdings.tenants) {
    std::string line = absl::StrCat("tenant ", holding.tenant, ": ", Bytes(holding.held()));
    std::vector<std::string> parts;
    if (holding.leased > 0) parts.push_back(Bytes(holding.leased) + " leased");
    if (holding.retained > 0) parts.push_back(Bytes(holding.retained) + " retained");
    if (holding.lingering > 0) parts.push_back(Bytes(holding.lingering) + " lingering");
    if (parts.size() > 1 || holding.leased == 0) {
      absl::StrAppend(&line, " (", absl::StrJoin(parts, ", "), ")");
    }
    tenants.push_back(std::move(line));
  }
  absl::StrAppend(&text, tenants.empty() ? Paragraph("No tenant holds memory on it.") : "",
                  List("Held by", tenants));
  std::vector<std::string> foreign;
  for (const v1::ForeignProcess& process : snapshot_.status.foreign_processes()) {
    if (process.device_uuid() != uuid) continue;
    foreign.push_back(
        absl::StrCat(process.command().empty() ? "a process" : process.command(),
                     process.pid() == 0 ? "" : absl::StrCat(" (pid ", process.pid(), ")"),
                     process.bytes() == 0 ? "" : ": " + Bytes(process.bytes())));
  }
  absl::StrAppend(&text, List("Used without a session by", foreign));
  absl::StrAppend(&text, List("Waiting for memory of it", WaitingLines([&](const auto& waiting) {
                                return waiting.device_uuid() == uuid;
                              })));
  return text;
}

}  // namespace gpumem::cli
