// SPDX-License-Identifier: Apache-2.0
// Tenants that are made at run time, by operators or by sessions, and that end when their maker
// says so. One that a session has made also ends with that session, unless it is lasting: then a
// session of the same user ends it, or an operator, or the end of the tenant above it.
//
// A made tenant exists without sessions. Once it has ended it gets no new session and no new
// memory, and neither does any made tenant under it. It is forgotten when its last session and its
// last segment are gone.
//
// An operator chooses any tenant's name. A session's tenants are children of the session's tenant.
// Their names have a ':', which no other tenant's name has. So they cannot be mistaken for a name
// of the configuration or of a rule, nor take one. The name also has the uid of its maker:
//   PARENT:UID.NAME          under a tenant that no session has made
//   PARENT:UID.OTHER:NAME    under "PARENT:UID.OTHER"
// Only sessions of that uid may make tenants under it, or begin in it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/ids.h"
#include "daemon/core/journal/image.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/ledger/tenants.h"
#include "daemon/core/quota/overrides.h"

namespace gpumemd {

// True if only a session can have made a tenant of this name.
bool IsNameOfChild(absl::string_view tenant);
// Returns the devices for which the override has values, in order.
std::set<std::string> DevicesOf(const QuotaOverride& own);

struct MadeTenantSpec {
  std::string tenant;
  std::string parent;  // empty: as the default quota says
  std::string owner;   // at most kMaxOwnerTag printable characters
  QuotaOverride quota;
  std::optional<uid_t> user;      // whose sessions may read its use (BrokerTenants::UsesFor)
  std::vector<AuditOperator> by;  // the operator; all candidates, if there are several
};

class MadeTenants {
 public:
  // All must outlive this.
  MadeTenants(LedgerBase* base, Segments* segments, Tenants* tenants)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        segments_(*segments),
        tenants_(*tenants) {}

  // --- Operators

  // Makes a tenant. A tenant that only a rule has made becomes this one. True if it is new; the
  // same request once more is no error, and changes nothing.
  //   ALREADY_EXISTS       the configuration names it, or it was made in another way, or has ended
  //   NOT_FOUND            no such parent (configured or made by an operator), or no such device
  //   INVALID_ARGUMENT     a malformed name or owner; a value makes no sense
  //   FAILED_PRECONDITION  guarantees could not be kept; the parent has ended; too many levels
  //   RESOURCE_EXHAUSTED   too many made tenants
  absl::StatusOr<bool> Create(const MadeTenantSpec& spec);
  // Changes the made tenant's own quota.
  //   NOT_FOUND            no such made tenant or device
  //   PERMISSION_DENIED    `owner` is given, and is not its owner
  //   INVALID_ARGUMENT     nothing is changed, or a value makes no sense
  //   FAILED_PRECONDITION  guarantees could not be kept; it has ended
  absl::Status Update(absl::string_view tenant, const std::optional<std::string>& owner,
                      const QuotaOverride& change, absl::Span<const AuditOperator> by = {});
  // Ends a made tenant, and those under it. A tenant that the configuration names goes on without
  // the made part.
  //   NOT_FOUND, PERMISSION_DENIED  as Update
  absl::Status End(absl::string_view tenant, const std::optional<std::string>& owner,
                   absl::Span<const AuditOperator> by = {});

  // --- Sessions

  // Makes a tenant under the session's. Returns its name. With an empty `name` the daemon chooses
  // one. The same request of the same session once more is no error; for a lasting tenant, of any
  // session of the user.
  //   ABORTED              the session has ended
  //   INVALID_ARGUMENT     a malformed name, or the whole would be too long; no name, if lasting; a
  //                        value makes no sense
  //   ALREADY_EXISTS       another session, or another request, has made it, or it has ended
  //   NOT_FOUND            no such device
  //   PERMISSION_DENIED    the quota has a guarantee, max_in_flight, or a priority above the
  //                        parent's
  //   FAILED_PRECONDITION  the session's tenant has ended; too many levels
  //   RESOURCE_EXHAUSTED   the user, the tenant or the daemon has too many
  absl::StatusOr<std::string> CreateChild(SessionId session, absl::string_view name,
                                          const QuotaOverride& quota, bool lasting = false);
  // Change or end a tenant that a session of the same uid has made under this session's tenant, or
  // that this session has made.
  //   ABORTED, NOT_FOUND, INVALID_ARGUMENT, PERMISSION_DENIED, FAILED_PRECONDITION  as above
  absl::Status UpdateChild(SessionId session, absl::string_view tenant,
                           const QuotaOverride& change);
  absl::Status EndChild(SessionId session, absl::string_view tenant);
  // Returns the names of the tenants that sessions of the same uid have made under this session's
  // tenant, on all levels: max_made_per_uid at most.
  //   ABORTED  the session has ended
  absl::StatusOr<std::vector<std::string>> ListChildren(SessionId session) const;
  // Ends the tenants that the session has made and that are not lasting.
  void EndOf(SessionId id, records::Session& session);

  // Returns the tenant above `tenant` that no session has made: a process of `uid` may begin in
  // `tenant` if the rules give it that one. Returns nullopt if no session has made `tenant`, or if
  // another uid has made it or one above it.
  std::optional<std::string> RuledBy(absl::string_view tenant, uid_t uid) const;
  // True if an operator has made the tenant.
  bool IsMadeByOperator(absl::string_view tenant) const;

  // Restores the made tenants, before the sessions and segments. Returns one sentence for each
  // whose guarantees no longer fit.
  std::vector<std::string> Restore(const JournalImage& image);
  // Restores their use of devices, once the segments are restored.
  void RestoreUses(const JournalImage& image);
  // Ends those whose session is gone, once the sessions are restored.
  void EndOrphans();

 private:
  using MadeTenant = records::MadeTenant;
  using Session = records::Session;
  using Tenant = records::Tenant;

  absl::StatusOr<Tenant*> FindMade(absl::string_view tenant,
                                   const std::optional<std::string>& owner) const;
  absl::StatusOr<Tenant*> FindChildOf(SessionId session, absl::string_view tenant) const;
  // Returns the quota that a made tenant would have.
  //   as Create
  absl::StatusOr<Quota> Check(absl::string_view tenant, const MadeTenant& made,
                              const QuotaOverride& asked) const;
  // Returns OK if the quota of a session's tenant fits with the override that the name has. Only
  // an override can give it guarantees.
  absl::Status CheckUnderOverride(absl::string_view tenant, const MadeTenant& made,
                                  Quota quota) const;
  absl::Status CheckLevels(const Tenant& parent) const;
  // RESOURCE_EXHAUSTED, as CreateChild: a denial, which counts for `parent`.
  absl::Status CheckCounts(Tenant& parent, uid_t uid, bool lasting) const;
  absl::Status Change(Tenant& tenant, const QuotaOverride& change, SessionId session,
                      absl::Span<const AuditOperator> by);
  Tenant& Make(absl::string_view name, MadeTenant made, absl::Span<const AuditOperator> by);
  // Puts the guarantees of restored tenants in force, in this order, but those that cannot be kept
  // beside the others. Names these.
  std::vector<std::string> RestoreGuarantees(const std::vector<Tenant*>& restored);
  // Ends the tenant for this session, or for an operator, and those under it.
  struct Cause {
    SessionId session{};
    absl::Span<const AuditOperator> by;
    absl::string_view why;
  };
  void EndTree(Tenant& tenant, const Cause& cause);

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  Segments& segments_;
  Tenants& tenants_;
};

}  // namespace gpumemd
