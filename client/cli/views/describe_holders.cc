// SPDX-License-Identifier: Apache-2.0
// Descriptions of those that hold memory: tenants and sessions.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/text/format.h"
#include "client/cli/views/describer.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {

std::string Describer::Session(uint64_t id) {
  const v1::SessionInfo& session = *snapshot_.Session(id);
  std::string text =
      Title(absl::StrCat("Session ", id, ": ", session.command(), " (pid ", session.pid(),
                         ") of tenant ", session.tenant(), ", there for ", Age(session.age_ms())));
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
    absl::StrAppend(&text, Paragraph("It is away: the daemon has restarted, and its client has not "
                                     "reconnected. It keeps what it holds."));
  }
  if (session.unbrokered_bytes() > 0) {
    absl::StrAppend(&text, Paragraph(absl::StrCat("Its process has allocated ",
                                                  Bytes(session.unbrokered_bytes()),
                                                  " past the broker (cudaMalloc).")));
  }
  std::vector<std::string> leases;
  for (const v1::LeaseInfo& lease : snapshot_.holders.leases()) {
    if (lease.session_id() != id) continue;
    leases.push_back(
        absl::StrCat("lease ", lease.lease_id(), " on ", What(lease.segment_id()), Traits(lease)));
  }
  absl::StrAppend(
      &text, leases.empty() ? Paragraph("It leases nothing.") : "",
      List(absl::StrCat(
               "It has ", Counted(leases.size(), "lease"), ", ", Bytes(session.leased_bytes()),
               session.suspended_bytes() == 0
                   ? ""
                   : absl::StrCat(", of which it has suspended ", Bytes(session.suspended_bytes())),
               session.demoted_bytes() == 0
                   ? ""
                   : absl::StrCat(", of which it has demoted ", Bytes(session.demoted_bytes()))),
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
  std::string text = Title(absl::StrCat("Tenant ", name, ": holds ", Bytes(usage.charged_bytes()),
                                        " in ", Counted(usage.segments(), "segment"), ", with ",
                                        Counted(usage.sessions(), "session")));
  std::string about =
      tenant.configured() ? "It is named in the configuration."
      : tenant.has_made()
          ? absl::StrCat("It was made at run time by ", MakerOf(tenant.made()),
                         tenant.made().has_uid() && !tenant.made().lasting()
                             ? absl::StrCat(" (uid ", tenant.made().uid(), ")")
                             : "",
                         tenant.made().ending() ? ", and has ended: it gets nothing new."
                         : tenant.made().session_id() != 0 && !tenant.made().lasting()
                             ? ", and ends with it."
                             : ", and stays until it is ended.")
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
  absl::StrAppend(&text, QuotaView(quota, devices_, exact_, layout_));

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
                  List("Its publications", published, "gpumemctl publications --tenant " + name));
  absl::StrAppend(&text, List("Its requests that wait", WaitingLines([&](const auto& waiting) {
                                return waiting.tenant() == name;
                              })));
  return text;
}

}  // namespace gpumem::cli
