// SPDX-License-Identifier: Apache-2.0
// Tenants that operators and sessions make at run time (ledger/made/made_tenants.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/made/made_tenants.h"
#include "daemon/core/quota/overrides.h"
#include "daemon/core/quota/quota.h"

namespace gpumemd {

// Thread-safe.
class BrokerTenants {
 public:
  // `broker` must outlive this.
  explicit BrokerTenants(Broker* broker) : broker_(*broker) {}

  // --- Operators. QuotaControl makes and changes tenants, since it knows the overrides.

  // Statuses of these as MadeTenants.
  absl::StatusOr<TenantView> Create(const MadeTenantSpec& spec);
  absl::StatusOr<TenantView> Update(absl::string_view tenant,
                                    const std::optional<std::string>& owner,
                                    const QuotaOverride& change,
                                    absl::Span<const AuditOperator> by = {});
  // What a tenant that has ended, and those under it, still have.
  struct Held {
    bool gone = false;                                        // nothing; the tenant is forgotten
    std::vector<std::pair<std::string, uint64_t>> by_device;  // bytes, by UUID; only those above 0
    std::vector<std::pair<SessionId, pid_t>> sessions;        // a few of them, and their processes
    uint32_t session_count = 0;
  };
  // Ends the tenant, and blocks until `deadline` or until it has nothing. Calls `cancelled` some
  // times a second; true ends the wait.
  absl::StatusOr<Held> End(const std::string& tenant, const std::optional<std::string>& owner,
                           absl::Span<const AuditOperator> by, absl::Time deadline,
                           absl::FunctionRef<bool()> cancelled);

  // Returns the made tenants' quotas without overrides, as they would be with these defaults; and
  // that of one, or nullopt if it was not made at run time.
  std::map<std::string, Quota> MadeQuotas(const Quota& defaults) const;
  std::optional<Quota> MadeQuota(absl::string_view tenant) const;

  // What a tenant has used: if it is there, and what the last ones of its name had used at their
  // ends, the newest first. Not both are empty.
  struct Uses {
    std::optional<TenantView> present;
    std::vector<EndedTenantView> ended;
  };
  //   NOT_FOUND  no such tenant, nor one among the last that ended (EndedTenants)
  absl::StatusOr<Uses> UsesOf(absl::string_view tenant) const;

  // --- Sessions

  // As UsesOf, if it is the session's tenant, or was made for its user.
  //   ABORTED    the session has ended
  //   NOT_FOUND  as above, or it is another's
  absl::StatusOr<Uses> UsesFor(const BrokerCall& call, absl::string_view tenant) const;

  absl::StatusOr<TenantView> CreateChild(const BrokerCall& call, absl::string_view name,
                                         const QuotaOverride& quota, bool lasting = false);
  absl::StatusOr<TenantView> UpdateChild(const BrokerCall& call, absl::string_view tenant,
                                         const QuotaOverride& change);
  // Does not wait: it answers with the present holdings.
  absl::StatusOr<Held> EndChild(const BrokerCall& call, const std::string& tenant);

  // Returns the tenants that sessions of the same uid have made under this session's, by name.
  absl::StatusOr<std::vector<TenantView>> ListChildren(const BrokerCall& call) const;

  // Sends the descriptor of the page in which the session can read its tenant's memory. Returns the
  // devices in the order of the page (pages/page_calls.cc).
  //   ABORTED             the session has ended
  //   RESOURCE_EXHAUSTED  the user or the daemon has too many pages
  //   UNIMPLEMENTED       the kernel cannot seal such a page
  absl::StatusOr<std::vector<std::string>> OpenMemoryPage(const BrokerCall& call, Deliver deliver);

  // --- Who may begin in a tenant

  std::optional<std::string> RuledBy(absl::string_view tenant, uid_t uid) const;
  bool IsMadeByOperator(absl::string_view tenant) const;
  // Returns the tenant that counts what this one's sessions have (records::Tenant::books).
  std::string BooksOf(const std::string& tenant) const;

 private:
  Held HeldBy(const std::string& tenant) const;

  Broker& broker_;
};

inline BrokerTenants Broker::tenants() { return BrokerTenants(this); }

}  // namespace gpumemd
