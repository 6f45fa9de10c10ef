// SPDX-License-Identifier: Apache-2.0
// Requests of operators to the broker.
#pragma once

#include <cstdint>
#include <map>
#include <string>
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
#include "daemon/core/quota/overrides.h"
#include "daemon/core/quota/quota.h"
#include "daemon/core/suspension/suspension_requests.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Thread-safe.
class BrokerOperators {
 public:
  // `broker` must outlive this.
  explicit BrokerOperators(Broker* broker) : broker_(*broker) {}

  // As Tenants::Configure.
  void Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                 const std::map<std::string, OverriddenQuota>& overridden = {});
  // CheckQuota checks a change of a quota, so that the caller can save it before it makes the
  // change (Ledger). `asked`: the part of `quota` whose devices must exist.
  absl::Status CheckQuota(absl::string_view tenant, const Quota& quota, const Quota& asked) const;
  absl::StatusOr<TenantView> OverrideQuota(absl::string_view tenant, const OverriddenQuota& quota);
  absl::StatusOr<TenantView> UnsetQuota(absl::string_view tenant, const Quota& quota);
  struct Trimmed {
    uint64_t bytes = 0;
    uint32_t segments = 0;
  };
  // Statuses as Segments::Trim. Returns once the driver has the memory back.
  absl::StatusOr<Trimmed> Trim(absl::string_view tenant, absl::string_view device,
                               uint64_t keep_bytes);
  // What a session has done when an operator asked it to suspend or resume, demote or promote.
  struct Moved {
    std::string tenant;  // the session's
    uint64_t leases = 0;
    uint64_t segments = 0;        // of these leases
    uint64_t bytes = 0;           // of these that moved, or were exchanged
    uint64_t resident_bytes = 0;  // of suspended ones that are still on their devices
    uint64_t dropped_bytes = 0;   // of suspended scratch ones
  };
  // Asks the session to do this to all its leases for which it can; with a `tag`, to those of them
  // that have it. Blocks until it has. Calls `cancelled` some times a second; true ends the wait
  // with CANCELLED. Statuses as SuspendSession and DemoteSession in proto/gpumem/v1/admin.proto
  // (operator_suspensions.cc).
  absl::StatusOr<Moved> MoveSession(SessionId session, SuspensionRequests::Action action,
                                    absl::string_view tag, absl::Time deadline,
                                    absl::FunctionRef<bool()> cancelled);
  void SetDraining(bool draining);
  // As Ledger::Close: for the end of the daemon.
  void Close();
  // Sets which holders of the requested memory a denial names to workers. Operators see all.
  void SetHoldersShown(HoldersShown shown);
  // As Ledger::SetUnbrokered.
  void SetUnbrokered(std::vector<UnbrokeredBytes> uses);
  // As Overheads::Set.
  void SetOverhead(const DriverOverhead& overhead);

  // Memory pools, as in proto/gpumem/v1/admin.proto. In ListPools an empty name means all tenants
  // or devices. In the others an empty device means the first one on which the tenant has a pool.
  struct PoolView {
    std::string device_uuid;
    PoolStatus status;
  };
  absl::StatusOr<std::vector<PoolView>> ListPools(absl::string_view tenant,
                                                  absl::string_view device) const;
  absl::StatusOr<PoolView> SetPool(absl::string_view tenant, absl::string_view device,
                                   const PoolChange& change);
  absl::StatusOr<PoolView> TrimPool(absl::string_view tenant, absl::string_view device,
                                    uint64_t keep_bytes);

  // Ends a publication, of "TENANT/NAME". Returns its version. `by`: for the audit.
  absl::StatusOr<uint64_t> Unpublish(absl::string_view full_name,
                                     absl::Span<const AuditOperator> by = {});

 private:
  // Returns the device that has the tenant's pool.
  absl::StatusOr<Device*> FindPool(absl::string_view tenant, absl::string_view device) const;
  // Blocks until the session has done for these leases what it was asked.
  //   ABORTED            the request has ended
  //   CANCELLED          `cancelled` has returned true
  //   DEADLINE_EXCEEDED  asked.until has passed
  absl::Status AwaitMoved(SessionId session, absl::Span<const LeaseId> leases,
                          const SuspensionRequests::Request& asked,
                          absl::FunctionRef<bool()> cancelled) const;
  // Returns DEADLINE_EXCEEDED with the number of leases that are left.
  absl::Status NotInTime(SessionId session, absl::Span<const LeaseId> leases,
                         SuspensionRequests::Action action) const;

  Broker& broker_;
};

inline BrokerOperators Broker::operators() { return BrokerOperators(this); }

}  // namespace gpumemd
