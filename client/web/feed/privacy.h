// SPDX-License-Identifier: Apache-2.0
// What a viewer may see of the state. Pure.
//
// Of tenants that a viewer may not see, only sums per device are left, as of one tenant "(others)".
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "client/cli/views/snapshot.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::web {

inline constexpr char kOthers[] = "(others)";  // no tenant can have this name

// The tenants that a viewer sees. kOperator: all, and facts for operators.
enum class Sees {
  kOperator,
  kAll,
  kOwn,   // those of the viewer's teams: all under the same topmost tenants as the viewer's own
  kNone,  // the viewer's own: those of sessions of its uid, and those made by it or for it
};

// Returns "all", "own" or "none".
absl::string_view WordOf(Sees sees);

class VisibleTenants {
 public:
  bool contains(absl::string_view tenant) const { return tenants_.contains(tenant); }
  const absl::flat_hash_set<std::string>& names() const { return tenants_; }
  // True of a visible tenant if one under it is not visible: amounts of the whole are not shown.
  bool has_hidden(absl::string_view tenant) const { return with_hidden_.contains(tenant); }
  // The Unix time at which a visible tenant was made; 0: not at run time. Before it the name may
  // have been of another user's tenant.
  int64_t since_ms(absl::string_view tenant) const {
    const auto since = since_ms_.find(tenant);
    return since == since_ms_.end() ? 0 : since->second;
  }
  uid_t uid() const { return uid_; }

 private:
  friend class Privacy;
  absl::flat_hash_set<std::string> tenants_, with_hidden_;
  absl::flat_hash_map<std::string, int64_t> since_ms_;
  uid_t uid_ = 0;
};

// The rules for one snapshot. What all viewers need is computed once.
class Privacy {
 public:
  // `snapshot` outlives this.
  explicit Privacy(const cli::Snapshot& snapshot);

  // Requires `sees` to be kOwn or kNone.
  VisibleTenants Visible(Sees sees, uid_t uid) const;

  // Returns the snapshot without anything of other tenants: no name, number or size. Costs time in
  // proportion to the snapshot's objects.
  cli::Snapshot Filtered(const VisibleTenants& visible) const;

 private:
  void AddTeams(VisibleTenants* visible) const;
  void FindHidden(VisibleTenants* visible) const;
  const std::string& TopOf(const std::string& tenant) const;
  v1::GetStatusResponse Status() const;
  v1::ListTenantsResponse Tenants(const VisibleTenants& visible) const;
  v1::TenantInfo Others(const VisibleTenants& visible) const;
  absl::flat_hash_map<std::string, v1::Usage> UsageWithoutHidden(
      const VisibleTenants& visible) const;
  v1::ListSegmentsResponse Segments(const VisibleTenants& visible) const;
  v1::ListHoldersResponse Holders(const VisibleTenants& visible,
                                  const v1::ListSegmentsResponse& segments) const;
  v1::ListWaitingResponse Waiting(const VisibleTenants& visible) const;
  v1::Denial Denied(const v1::Denial& denial, const VisibleTenants& visible) const;

  const cli::Snapshot& snapshot_;
  absl::flat_hash_map<std::string, std::string> parents_;  // of tenants that have one
  absl::flat_hash_map<std::string, v1::Usage> own_;        // sums without tenants under it
  absl::flat_hash_map<uint64_t, std::string> sessions_;    // their tenants
};

// Returns the snapshot without facts for operators: the configuration's path, notices, and names of
// processes without a session.
cli::Snapshot WithoutOperatorsFacts(cli::Snapshot snapshot);

}  // namespace gpumem::web
