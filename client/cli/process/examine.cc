// SPDX-License-Identifier: Apache-2.0
#include "client/cli/process/examine.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"

namespace gpumem::cli {
namespace {

// How much later than its process a session may seem to begin before it.
constexpr uint64_t kClockSlackMs = 1000;

// The process's part of the lists.
class Holdings {
 public:
  Holdings(const TargetFacts& target, const LedgerLists& lists) {
    for (const v1::SessionInfo& session : lists.sessions.sessions()) {
      if (session.pid() == target.pid) sessions_[session.session_id()] = &session;
    }
    for (const v1::SegmentInfo& segment : lists.segments.segments()) {
      segments_[segment.segment_id()] = &segment;
    }
    for (const v1::LeaseInfo& lease : lists.holders.leases()) {
      if (sessions_.contains(lease.session_id())) leases_.push_back(&lease);
    }
  }

  const std::map<uint64_t, const v1::SessionInfo*>& sessions() const { return sessions_; }
  const std::vector<const v1::LeaseInfo*>& leases() const { return leases_; }
  // Null: it has come after the list of segments, or has gone before.
  const v1::SegmentInfo* SegmentOf(const v1::LeaseInfo& lease) const {
    const auto found = segments_.find(lease.segment_id());
    return found == segments_.end() ? nullptr : found->second;
  }
  bool Has(uint64_t session) const { return sessions_.contains(session); }

  // Adds what forbids a checkpoint whether or not memory has been suspended.
  void AddLasting(const TargetFacts& target, const LedgerLists& lists,
                  std::vector<std::string>& forbids) const {
    std::set<std::string> tenants;
    for (const auto& [id, session] : sessions_) {
      tenants.insert(session->tenant());
      if (session->state() != v1::SessionInfo::STATE_LIVE) {
        forbids.push_back(absl::StrCat("session ", id,
                                       " is not connected, so its process may map memory that "
                                       "cannot be suspended"));
      }
      const bool same_user =
          std::find(target.uids.begin(), target.uids.end(), session->uid()) != target.uids.end();
      const auto age =
          static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(target.age)));
      if (!same_user || session->age_ms() > age + kClockSlackMs) {
        forbids.push_back(absl::StrCat("session ", id, " is of another process that had this pid"));
      }
    }
    for (const v1::SegmentInfo& segment : lists.segments.segments()) {
      // A process that has opened a pool keeps it open after its last release, and the list of its
      // sessions may leave it out then.
      if (segment.kind() == v1::KIND_MEMPOOL && tenants.contains(segment.tenant())) {
        forbids.push_back(absl::StrCat("tenant ", segment.tenant(),
                                       " has a memory pool (kind mempool), which the process may "
                                       "have open: the driver could not restore it"));
        tenants.erase(segment.tenant());
      }
      AddUnleased(segment, forbids);
    }
  }

 private:
  // Adds a segment that the process may map without a lease.
  void AddUnleased(const v1::SegmentInfo& segment, std::vector<std::string>& forbids) const {
    if (segment.kind() == v1::KIND_PINNED || segment.kind() == v1::KIND_MEMPOOL) return;
    for (const uint64_t session : segment.session_ids()) {
      const bool leased = std::any_of(leases_.begin(), leases_.end(), [&](const auto* lease) {
        return lease->session_id() == session && lease->segment_id() == segment.segment_id();
      });
      if (leased || !Has(session)) continue;
      forbids.push_back(absl::StrCat("session ", session, " may still map segment ",
                                     segment.segment_id(), " (kind ", Word(segment.kind()),
                                     "), which it does not lease"));
    }
  }

  std::map<uint64_t, const v1::SessionInfo*> sessions_;
  std::map<uint64_t, const v1::SegmentInfo*> segments_;
  std::vector<const v1::LeaseInfo*> leases_;
};

std::string LeaseName(const v1::LeaseInfo& lease) {
  return absl::StrCat("lease ", lease.lease_id(), " of session ", lease.session_id());
}

// Returns why a mapped lease cannot be suspended; empty if the daemon may do it.
std::string WhyNotSuspended(const v1::LeaseInfo& lease, const v1::SegmentInfo& segment) {
  if (lease.demoted()) return "is demoted: bring it back first (gpumemctl promote)";
  if (segment.kind() != v1::KIND_VMM) {
    return absl::StrCat("is of kind ", Word(segment.kind()),
                        ", which the driver could not restore");
  }
  if (segment.revocable()) return "is revocable, and cannot be suspended";
  if (segment.lost()) return "is lost, and cannot be suspended";
  if (segment.tenant() != lease.tenant()) return "is another tenant's, and cannot be suspended";
  return "";
}

}  // namespace

absl::Status CheckMayAct(const TargetFacts& target, const v1::GetStatusResponse& daemon,
                         bool daemon_here, const Caller& caller) {
  if (daemon.backend() != v1::BACKEND_CUDA) {
    return absl::UnimplementedError(
        "a whole process is suspended only where the daemon's memory is of GPUs; its backend is "
        "another one");
  }
  const auto refuse = [](absl::string_view why) { return absl::FailedPreconditionError(why); };
  const auto name = absl::StrCat("process ", target.pid);
  if (!target.same_namespace || !daemon_here) {
    return refuse(absl::StrCat(name,
                               ", the daemon and gpumemctl have to be in one PID namespace, with "
                               "its own /proc"));
  }
  const auto daemon_pid = static_cast<pid_t>(daemon.pid());
  if (target.pid == daemon_pid) return refuse(absl::StrCat(name, " is the daemon"));
  bool context = target.parent == daemon_pid;
  for (const v1::Device& device : daemon.devices()) context |= device.context_pid() == target.pid;
  if (context) return refuse(absl::StrCat(name, " is one of the daemon's processes"));
  if (target.pid == caller.pid) return refuse(absl::StrCat(name, " is this gpumemctl"));
  if (caller.uid != 0 && std::any_of(target.uids.begin(), target.uids.end(),
                                     [&](uid_t uid) { return uid != caller.uid; })) {
    return absl::PermissionDeniedError(
        absl::StrCat(name, " is of another user: use sudo, or have its owner do it"));
  }
  // The driver would wait for it without a limit.
  if (target.state == 'T' || target.state == 't') {
    return refuse(absl::StrCat(name, " is stopped: continue it (SIGCONT)"));
  }
  return absl::OkStatus();
}

Examination ExamineBefore(const TargetFacts& target, const LedgerLists& lists) {
  const Holdings own(target, lists);
  Examination result;
  for (const auto& [id, session] : own.sessions()) result.sessions.push_back(id);
  if (own.sessions().empty()) {
    result.forbids.emplace_back(
        "it has no session with the daemon, which so cannot tell what it maps (see gpumemctl ps)");
  }
  own.AddLasting(target, lists, result.forbids);
  std::set<uint64_t> mapping;
  for (const v1::LeaseInfo* const lease : own.leases()) {
    if (lease->suspended()) continue;
    const v1::SegmentInfo* const segment = own.SegmentOf(*lease);
    if (segment != nullptr && segment->kind() == v1::KIND_PINNED) continue;
    mapping.insert(lease->session_id());
    const std::string why = segment == nullptr ? "" : WhyNotSuspended(*lease, *segment);
    if (!why.empty()) result.forbids.push_back(absl::StrCat(LeaseName(*lease), " ", why));
  }
  result.mapping.assign(mapping.begin(), mapping.end());
  return result;
}

std::vector<std::string> ExamineLocked(const TargetFacts& target, const LedgerLists& lists,
                                       const std::vector<uint64_t>& sessions) {
  const Holdings own(target, lists);
  std::vector<std::string> forbids;
  own.AddLasting(target, lists, forbids);
  for (const auto& [id, session] : own.sessions()) {
    if (std::find(sessions.begin(), sessions.end(), id) == sessions.end()) {
      forbids.push_back(absl::StrCat("session ", id, " has begun meanwhile"));
    }
  }
  for (const uint64_t id : sessions) {
    if (!own.Has(id)) forbids.push_back(absl::StrCat("session ", id, " has ended meanwhile"));
  }
  for (const v1::LeaseInfo* const lease : own.leases()) {
    const v1::SegmentInfo* const segment = own.SegmentOf(*lease);
    const bool unmapped =
        segment != nullptr && (lease->suspended() || segment->kind() == v1::KIND_PINNED);
    if (!unmapped) forbids.push_back(absl::StrCat(LeaseName(*lease), " is not suspended"));
  }
  return forbids;
}

std::vector<uint64_t> SuspendedSessions(const TargetFacts& target, const LedgerLists& lists) {
  const Holdings own(target, lists);
  std::set<uint64_t> suspended;
  for (const v1::LeaseInfo* const lease : own.leases()) {
    const auto* const session = own.sessions().at(lease->session_id());
    const auto* const segment = own.SegmentOf(*lease);
    const bool lost = segment != nullptr && segment->lost();  // it cannot come back
    if (lease->suspended() && !lost && session->state() == v1::SessionInfo::STATE_LIVE) {
      suspended.insert(lease->session_id());
    }
  }
  return {suspended.begin(), suspended.end()};
}

}  // namespace gpumem::cli
