// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/inherit.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/counted.h"
#include "daemon/transport/peer/peer_socket.h"

namespace gpumemd {
namespace {

// Tenants that were made at run time, by name. The image outlives them.
using MadeByName = std::map<absl::string_view, const journal::MadeTenant*>;

// Returns the tenant that the rules decide about for sessions in `tenant`: the nearest one above it
// that no session has made, or itself. Ends also where a damaged image has a cycle.
absl::string_view RuledTenant(const MadeByName& made, absl::string_view tenant) {
  for (size_t left = made.size(); left > 0; --left) {
    const auto found = made.find(tenant);
    if (found == made.end() || found->second->session == SessionId{}) break;
    tenant = found->second->parent.view();
  }
  return tenant;
}

}  // namespace

absl::StatusOr<std::map<SessionId, Survivor>> FindSurvivors(const JournalImage& image,
                                                            absl::Span<const Rule> rules) {
  std::map<SessionId, Survivor> survivors;
  MadeByName made;
  for (const auto& [id, tenant] : image.made_tenants) made.emplace(tenant.name.view(), &tenant);
  const auto is_made = [&made](absl::string_view tenant) {
    const auto found = made.find(tenant);
    return found != made.end() && found->second->session == SessionId{};
  };
  for (const auto& [id, session] : image.sessions) {
    absl::StatusOr<Peer> peer = FindPeer(session.pid, session.start_time);
    if (absl::IsNotFound(peer.status())) continue;
    if (!peer.ok()) return peer.status();
    Survivor survivor{.peer = *std::move(peer)};
    survivor.peer.identity.uid = session.uid;
    survivor.peer.identity.gid = session.gid;
    survivor.peer.certain &= session.certain;
    const std::string tenant(session.tenant.view());
    const absl::string_view ruled = RuledTenant(made, tenant);
    const absl::StatusOr<TenantMatch> match =
        MatchTenant(rules, survivor.peer.identity, ruled, is_made);
    if (match.ok() && match->tenant == ruled) {
      survivor.match = *match;
      survivor.match.rule = Printable(match->rule);
    } else {
      survivor.match.rule = "the rule that applied when it connected to a previous daemon";
    }
    survivor.match.tenant = tenant;
    survivor.details = {.peer = survivor.peer.identity,
                        .client_name = std::string(session.client_name.view()),
                        .command = std::string(session.command.view()),
                        .rule = survivor.match.rule,
                        .certain = survivor.peer.certain};
    survivors.emplace(id, std::move(survivor));
  }
  return survivors;
}

std::vector<std::string> DescribeInheritance(const Broker::Restored& restored,
                                             const JournalImage& image,
                                             const std::map<SessionId, Survivor>& survivors) {
  std::vector<std::string> sentences;
  const size_t dead = image.sessions.size() - survivors.size();
  sentences.push_back(absl::StrCat(
      "restored from the previous daemon: ", gpumem::Counted(restored.sessions, "session"), ", ",
      gpumem::Counted(restored.leases, "lease"), ", ",
      gpumem::Counted(restored.segments, "segment"), ", ",
      gpumem::Counted(restored.publications, "publication"), "; ", dead,
      dead == 1 ? " session's process has" : " sessions' processes have", " ended"));
  const auto uncertain = std::count_if(survivors.begin(), survivors.end(), [](const auto& each) {
    return !each.second.details.certain;
  });
  if (uncertain > 0) {
    sentences.push_back(absl::StrCat(
        gpumem::Counted(static_cast<uint64_t>(uncertain), "session"),
        uncertain == 1 ? " is of a process" : " are of processes",
        " that cannot be told from another with its pid, until its client has reconnected"));
  }
  for (const auto& [segment, why] : restored.refused) {
    sentences.push_back(
        absl::StrCat("segment ", ToInt(segment), " cannot be restored: ", why.message()));
  }
  for (const Restored::Lost& lost : restored.lost) {
    std::string holders;
    for (SessionId id : lost.sessions) {
      const auto& session = image.sessions.at(id);
      absl::StrAppend(&holders, holders.empty() ? "" : ", ", session.command.view(), " (pid ",
                      session.pid, ")");
    }
    sentences.push_back(absl::StrCat(
        "lost: segment ", ToInt(lost.segment), " of tenant ", lost.tenant, ", ",
        gpumem::FormatBytes(lost.bytes), " of kind ", KindName(lost.kind), " on ", lost.device_uuid,
        IsContextBound(lost.kind) ? ", which was in the previous daemon's CUDA context"
        : lost.kind == Kind::kTier
            ? ", whose contents or whose home device this daemon does not have"
            : ", whose descriptor the service manager did not hand over",
        lost.suspended ? "; suspended by " : "; mapped by ", holders,
        lost.suspended ? ", which cannot resume it" : ", which can use it but not share it"));
  }
  for (const std::string& sentence : restored.without_guarantees) sentences.push_back(sentence);
  for (const Restored::LostPublication& lost : restored.lost_publications) {
    sentences.push_back(absl::StrCat(
        "lost: publication ", lost.tenant, "/", lost.name, ", version ", lost.version, ": ",
        lost.segments.empty()
            ? std::string("its metadata was not handed over by the service manager")
            : absl::StrCat("of its segments ", lost.segments.size(),
                           " were not handed over by the service manager"),
        "; attached sessions keep their memory"));
  }
  return sentences;
}

}  // namespace gpumemd
