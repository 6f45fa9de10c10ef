// SPDX-License-Identifier: Apache-2.0
// The ledger's state according to the journal: the sum of all changes so far. No I/O. Not
// thread-safe.
#pragma once

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "daemon/core/journal/records.h"

namespace gpumemd {

struct JournalImage {
  template <typename T>
  using Map = absl::btree_map<typename T::Key, T>;

  Map<journal::Session> sessions;
  Map<journal::Segment> segments;
  Map<journal::Lease> leases;
  Map<journal::Exposure> exposures;
  Map<journal::PoolImport> pool_imports;
  Map<journal::Publication> publications;
  Map<journal::PublicationItem> publication_items;  // of one publication, in order
  Map<journal::IpcEvent> ipc_events;
  Map<journal::Answer> answers;
  Map<journal::TierExtent> tier_extents;  // of one segment, in order
  Map<journal::PublicationContent> publication_contents;
  Map<journal::Claim> claims;
  Map<journal::MadeTenant> made_tenants;
  Map<journal::MadeTenantQuota> made_tenant_quotas;    // one for each of these
  Map<journal::MadeTenantDevice> made_tenant_devices;  // of one tenant, in order
  Map<journal::MadeTenantUse> made_tenant_uses;
  journal::Counters counters;  // at least the highest number that was ever put

  // Applies a change. Erasing an absent object changes nothing. Counters never go down.
  void Apply(const journal::Change& change);

  // Checks that all objects that others refer to exist, and that each publication has items 0 to
  // n-1 or none. Holds between batches; within one it need not.
  //   DATA_LOSS  names the first missing object
  absl::Status CheckReferences() const;

  // ForEach visits all objects, Counters first; size() counts them.
  void ForEach(absl::FunctionRef<void(const journal::Object&)> visit) const;
  size_t size() const;

  bool operator==(const JournalImage&) const = default;
};

}  // namespace gpumemd
