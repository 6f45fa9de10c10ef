#include "client/cli/views/describe_view.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/holdings.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

// The maximum of shown elements of a list that may have thousands.
constexpr size_t kLongest = 20;

class Describer {
 public:
  Describer(const Snapshot& snapshot, bool exact, size_t columns)
      : snapshot_(snapshot), devices_(snapshot.devices()), exact_(exact), columns_(columns) {}

  std::string Tenant(const std::string& name);
  std::string Session(uint64_t id);
  std::string Lease(uint64_t id);
  std::string Segment(uint64_t id);
  std::string Publication(const std::string& name);
  std::string Device(const std::string& uuid);

 private:
  std::string Bytes(uint64_t bytes) const { return Size(bytes, exact_); }
  std::string On(const std::string& uuid) const {
    return absl::StrCat("device ", ShortDevice(devices_, uuid));
  }

  // "session 7 of tenant training (trainer-3, python3, pid 4242)"
  std::string Who(uint64_t session) const {
    const v1::SessionInfo* info = snapshot_.Session(session);
    if (info == nullptr) return absl::StrCat("session ", session, ", which has just ended");
    std::string who = absl::StrCat("session ", session, " of tenant ", info->tenant(), " (");
    if (!info->client_name().empty()) absl::StrAppend(&who, info->client_name(), ", ");
    if (!info->command().empty()) absl::StrAppend(&who, info->command(), ", ");
    absl::StrAppend(&who, "pid ", info->pid(), ")");
    if (info->state() == v1::SessionInfo::STATE_LINGERING) absl::StrAppend(&who, ", lingering");
    if (info->state() == v1::SessionInfo::STATE_AWAY) absl::StrAppend(&who, ", away");
    return who;
  }

  // "segment 12 (64.00 MiB, vmm, device 0 GPU-…)"
  std::string What(uint64_t segment) const {
    const v1::SegmentInfo* info = snapshot_.Segment(segment);
    if (info == nullptr) return absl::StrCat("segment ", segment, ", which is just gone");
    return absl::StrCat("segment ", segment, " (", Bytes(info->size_bytes()), ", ",
                        Word(info->kind()), ", ", On(info->device_uuid()), ")");
  }

  // Returns the origin of the lease, and its other possible users.
  static std::string Traits(const v1::LeaseInfo& lease) {
    std::string text;
    if (lease.attached()) {
      absl::StrAppend(
          &text, ", attached through ",
          lease.publication().empty()
              ? "a publication or version that has ended since"
              : absl::StrCat("publication ", lease.publication(), ", version ", lease.version()));
    }
    if (lease.shared()) absl::StrAppend(&text, ", with a ticket for its tenant");
    if (lease.shared_to_any()) absl::StrAppend(&text, ", with a ticket for anybody");
    return text;
  }

  // Returns "Heading:" and its lines, indented; only some of them if there are many.
  std::string List(const std::string& heading, const std::vector<std::string>& lines,
                   const std::string& where_all = "") const {
    if (lines.empty()) return "";
    std::string text = absl::StrCat("\n", heading, ":\n");
    const size_t shown = lines.size() > kLongest + 1 ? kLongest : lines.size();
    for (size_t i = 0; i < shown; ++i) {
      const char* indent = "  ";
      for (const std::string& line : Wrapped(Printable(lines[i]), Width())) {
        absl::StrAppend(&text, indent, line, "\n");
        indent = "    ";  // further lines of the same object are indented
      }
    }
    if (shown < lines.size()) {
      absl::StrAppend(&text, "  and ", lines.size() - shown, " more",
                      where_all.empty() ? "" : absl::StrCat(" (", where_all, ")"), "\n");
    }
    return text;
  }

  std::string Paragraph(const std::string& text) const {
    std::string paragraph = "\n";
    for (const std::string& line : Wrapped(Printable(text), Width() + 4)) {
      absl::StrAppend(&paragraph, line, "\n");
    }
    return paragraph;
  }
  // Returns the width of a line at the deepest indent; readable on wide terminals, too.
  size_t Width() const {
    return columns_ == kAnyWidth ? kAnyWidth - 4 : std::clamp<size_t>(columns_, 24, 120) - 4;
  }

  std::vector<std::string> WaitingLines(
      const std::function<bool(const v1::WaitingInfo&)>& of) const {
    std::vector<std::string> lines;
    for (const v1::WaitingInfo& waiting : snapshot_.waiting.waiting()) {
      if (!of(waiting)) continue;
      lines.push_back(absl::StrCat(
          Who(waiting.session_id()), ": ",
          waiting.count() == 1 ? "" : absl::StrCat(waiting.count(), " x "), Bytes(waiting.bytes()),
          " on ", On(waiting.device_uuid()), " since ", Age(waiting.age_ms()), ", at place ",
          waiting.position(), "; in its way: ", WaitsFor(waiting.blocked_by(), exact_)));
    }
    return lines;
  }

  const Snapshot& snapshot_;
  const DeviceList devices_;
  const bool exact_;
  const size_t columns_;
};

std::string StateSentence(const v1::SegmentInfo& segment) {
  switch (segment.state()) {
    case v1::SegmentInfo::STATE_PENDING:
      return "It is being created or handed over.";
    case v1::SegmentInfo::STATE_LEASED:
      return segment.leases() == 0 ? "It is held by what was published, and leased by nobody."
                                   : "It is leased.";
    case v1::SegmentInfo::STATE_RETAINED:
      return absl::StrCat(
          "It is retained: nobody leases it, and its tenant's next request of this size gets it. "
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

std::string Describer::Segment(uint64_t id) {
  const v1::SegmentInfo& segment = *snapshot_.Segment(id);
  std::string text = absl::StrCat("Segment ", id, ": ", Bytes(segment.size_bytes()), " of kind ",
                                  Word(segment.kind()), " on ", On(segment.device_uuid()),
                                  ", there for ", Age(segment.age_ms()), "\n");
  absl::StrAppend(&text,
                  Paragraph(absl::StrCat("It belongs to tenant ", segment.tenant(),
                                         ", which is charged for it. ", StateSentence(segment))));
  if (segment.revocable()) {
    absl::StrAppend(&text, Paragraph("It is revocable: it may be taken back when others need it."));
  }
  if (segment.lost()) {
    absl::StrAppend(&text, Paragraph("It is lost: the CUDA context that it lived in is gone. Who "
                                     "has it open keeps it, and nobody can open it any more."));
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
      absl::StrCat("Lease ", id, ": a session's right to segment ", lease.segment_id(), "\n");
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

std::string Describer::Session(uint64_t id) {
  const v1::SessionInfo& session = *snapshot_.Session(id);
  std::string text =
      absl::StrCat("Session ", id, ": ", session.command(), " (pid ", session.pid(), ") of tenant ",
                   session.tenant(), ", there for ", Age(session.age_ms()), "\n");
  std::string who =
      absl::StrCat("Its process runs as uid ", session.uid(), " and gid ", session.gid());
  if (!session.client_name().empty())
    absl::StrAppend(&who, ", calls itself ", session.client_name());
  if (!session.cgroup().empty()) absl::StrAppend(&who, ", and is in cgroup ", session.cgroup());
  absl::StrAppend(&text, Paragraph(absl::StrCat(who, ".",
                                                session.rule().empty()
                                                    ? ""
                                                    : absl::StrCat(" Its tenant was named by ",
                                                                   session.rule(), "."))));
  if (session.state() == v1::SessionInfo::STATE_LINGERING) {
    absl::StrAppend(&text, Paragraph("It lingers: it has ended, and its process may still map "
                                     "memory. What it may map stays charged until it is gone."));
  } else if (session.state() == v1::SessionInfo::STATE_AWAY) {
    absl::StrAppend(&text, Paragraph("It is away: the daemon that it began with is gone, and its "
                                     "client has not come back. It keeps what it holds."));
  }
  if (session.unbrokered_bytes() > 0) {
    absl::StrAppend(
        &text, Paragraph(absl::StrCat("Its process has taken ", Bytes(session.unbrokered_bytes()),
                                      " past the broker (cudaMalloc).")));
  }
  std::vector<std::string> leases;
  for (const v1::LeaseInfo& lease : snapshot_.holders.leases()) {
    if (lease.session_id() != id) continue;
    leases.push_back(
        absl::StrCat("lease ", lease.lease_id(), " on ", What(lease.segment_id()), Traits(lease)));
  }
  absl::StrAppend(&text, leases.empty() ? Paragraph("It leases nothing.") : "",
                  List(absl::StrCat("It has ", Counted(leases.size(), "lease"), ", ",
                                    Bytes(session.leased_bytes())),
                       leases));
  absl::StrAppend(&text, List("It waits for memory", WaitingLines([&](const auto& waiting) {
                                return waiting.session_id() == id;
                              })));
  std::vector<std::string> published;
  for (const v1::PublicationInfo& each : snapshot_.publications.publications()) {
    if (each.publisher_session_id() != id) continue;
    published.push_back(absl::StrCat(each.tenant(), "/", each.name(), ", version ", each.version(),
                                     each.ephemeral() ? ", which ends with it" : ""));
  }
  absl::StrAppend(&text, List("It has published", published));
  return text;
}

std::string Describer::Tenant(const std::string& name) {
  const v1::TenantInfo& tenant = *snapshot_.Tenant(name);
  const v1::Usage& usage = tenant.usage();
  std::string text = absl::StrCat("Tenant ", name, ": holds ", Bytes(usage.charged_bytes()), " in ",
                                  Counted(usage.segments(), "segment"), ", with ",
                                  Counted(usage.sessions(), "session"), "\n");
  std::string about = tenant.configured()
                          ? "It is named in the configuration."
                          : "It was made by a rule for one user, and is forgotten when idle.";
  if (!tenant.quota().parent().empty()) {
    absl::StrAppend(&about, " It is under tenant ", tenant.quota().parent(),
                    ", whose quota counts what it has, too.");
  }
  std::vector<std::string> under;
  for (const v1::TenantInfo& each : snapshot_.tenants.tenants()) {
    if (each.quota().parent() == name) under.push_back(each.usage().tenant());
  }
  if (!under.empty()) {
    absl::StrAppend(&about, " What it holds has in it what those under it hold: ",
                    absl::StrJoin(under, ", "), ".");
  }
  absl::StrAppend(&text, Paragraph(about), "\n");
  v1::GetQuotaResponse quota;
  *quota.mutable_quota() = tenant.quota();
  *quota.mutable_usage() = usage;
  *quota.mutable_overridden() = tenant.overridden();
  absl::StrAppend(&text, QuotaView(quota, devices_, exact_, columns_));

  if (usage.denials() > 0) {
    std::vector<std::string> causes;
    for (const v1::DenialCount& each : usage.denials_by_cause()) {
      causes.push_back(absl::StrCat(CauseWords(each.cause()), ": ", each.count()));
    }
    absl::StrAppend(&text, List("It was refused memory or counts", causes));
  }
  std::vector<std::string> sessions;
  for (const v1::SessionInfo& session : snapshot_.sessions.sessions()) {
    if (session.tenant() != name) continue;
    sessions.push_back(absl::StrCat(Who(session.session_id()), ": ",
                                    Counted(session.leases(), "lease"), ", ",
                                    Bytes(session.leased_bytes())));
  }
  absl::StrAppend(&text, List("Its sessions", sessions, "gpumemctl ps --tenant " + name));
  std::map<std::string, std::pair<uint64_t, uint64_t>> kinds;  // count, bytes
  for (const v1::SegmentInfo& segment : snapshot_.segments.segments()) {
    if (segment.tenant() != name) continue;
    auto& [count, bytes] = kinds[absl::StrCat(
        StateWord(segment.state()), ", ", Word(segment.kind()), ", ", On(segment.device_uuid()))];
    ++count;
    bytes += segment.size_bytes();
  }
  std::vector<std::string> segments;
  for (const auto& [what, sum] : kinds) {
    segments.push_back(
        absl::StrCat(what, ": ", Counted(sum.first, "segment"), ", ", Bytes(sum.second)));
  }
  absl::StrAppend(&text, List("Its own segments", segments, "gpumemctl segments --tenant " + name));
  std::vector<std::string> published;
  for (const v1::PublicationInfo& each : snapshot_.publications.publications()) {
    if (each.tenant() != name) continue;
    published.push_back(absl::StrCat(
        each.name(), ", version ", each.version(), ": ", Counted(each.segments(), "segment"), ", ",
        Bytes(each.bytes()), ", attached by ", Counted(each.attached_sessions(), "session")));
  }
  absl::StrAppend(&text,
                  List("Its publications", published, "gpumemctl publications --of " + name));
  absl::StrAppend(&text, List("Its requests that wait", WaitingLines([&](const auto& waiting) {
                                return waiting.tenant() == name;
                              })));
  return text;
}

std::string Describer::Publication(const std::string& name) {
  const v1::PublicationInfo& publication = *snapshot_.Publication(name);
  std::string text =
      absl::StrCat("Publication ", name, ", version ", publication.version(), ": ",
                   Counted(publication.segments(), "segment"), ", ", Bytes(publication.bytes()),
                   ", there for ", Age(publication.age_ms()), "\n");
  std::string about = absl::StrCat(publication.access() == v1::PUBLICATION_ACCESS_ANY
                                       ? "Sessions of every tenant"
                                       : "Sessions of its tenant alone",
                                   " may attach to it. It stays ");
  if (publication.expires_in_ms() > 0) {
    absl::StrAppend(&about, "for ", Age(publication.expires_in_ms()), " if nobody attaches");
  } else if (publication.expire_after_ms() > 0) {
    absl::StrAppend(&about, "while somebody is attached, and ", Age(publication.expire_after_ms()),
                    " longer");
  } else if (publication.ephemeral()) {
    absl::StrAppend(&about, "as long as its publisher's session");
  } else {
    absl::StrAppend(&about, "until it is unpublished");
  }
  absl::StrAppend(&about, ". Its metadata has ", Bytes(publication.metadata_bytes()), ".");
  absl::StrAppend(&text, Paragraph(about));
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
  absl::StrAppend(&text, sessions.empty() ? Paragraph("Nobody is attached.") : "",
                  List("Attached", sessions));
  return text;
}

std::string Describer::Device(const std::string& uuid) {
  const v1::Device& device = *snapshot_.Device(uuid);
  const DeviceHoldings holdings = HoldingsOn(device, snapshot_.tenants);
  std::string text = absl::StrCat("Device ", device.index(), ": ", device.name(), ", ", uuid, "\n");
  std::string about =
      absl::StrCat("It has ", Bytes(device.capacity_bytes()), " to hand out, of which ",
                   Bytes(holdings.all.held()), " (",
                   Percent(holdings.all.held(), device.capacity_bytes()), ") are held");
  if (holdings.outside > 0) {
    absl::StrAppend(&about, " and ", Bytes(holdings.outside), " were taken past the broker");
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
  absl::StrAppend(&text, tenants.empty() ? Paragraph("Nobody holds anything on it.") : "",
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

}  // namespace

std::string DescribeView(const Snapshot& snapshot, const Thing& thing, bool exact, size_t columns) {
  Describer describer(snapshot, exact, columns);
  switch (thing.what) {
    case Subject::kTenant:
      return describer.Tenant(thing.name);
    case Subject::kSession:
      return describer.Session(thing.id);
    case Subject::kLease:
      return describer.Lease(thing.id);
    case Subject::kSegment:
      return describer.Segment(thing.id);
    case Subject::kPublication:
      return describer.Publication(thing.name);
    case Subject::kDevice:
      return describer.Device(thing.name);
    case Subject::kAny:
      break;
  }
  return "";
}

}  // namespace gpumem::cli
