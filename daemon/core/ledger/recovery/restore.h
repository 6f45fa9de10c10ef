// SPDX-License-Identifier: Apache-2.0
// Continues from the state of an earlier daemon, at whatever moment it stopped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "daemon/core/ids.h"
#include "daemon/core/journal/image.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/endings.h"
#include "daemon/core/ledger/made/made_tenants.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/ledger/sessions.h"
#include "daemon/core/ledger/tenants.h"
#include "daemon/core/publication/claims.h"
#include "daemon/core/publication/publications.h"

namespace gpumemd {

// The objects in the journal that still exist.
struct Survivors {
  // Sessions whose processes live, with their present details.
  absl::btree_map<SessionId, SessionDetails> sessions;
  absl::flat_hash_set<SegmentId> memory;  // segments whose memory still exists
  absl::flat_hash_set<PublicationId> metadata;
};

// Returns the places of a segment's contents in the tier's file, in order.
std::vector<TierExtent> ExtentsOf(const JournalImage& image, SegmentId segment);

struct Restored {
  uint32_t sessions = 0, segments = 0, leases = 0, publications = 0;
  // Segments that had holders and whose memory is gone. If a live process may still map the
  // segment, it stays charged, as lost, until the process lets go.
  struct Lost {
    SegmentId segment{};
    std::string tenant, device_uuid;
    Kind kind = Kind::kVmm;
    uint64_t bytes = 0;
    std::vector<SessionId> sessions;  // live ones that had it
    bool suspended = false;           // by all of them: their processes do not map it
  };
  std::vector<Lost> lost;
  struct LostPublication {
    std::string tenant, name;
    uint64_t version = 0;
    std::vector<SegmentId> segments;  // whose memory is gone; none: its metadata is
  };
  std::vector<LostPublication> lost_publications;
  // One sentence for each made tenant whose guarantees are not in force (MadeTenants::Restore).
  std::vector<std::string> without_guarantees;
};

class Restorer {
 public:
  // All must outlive this.
  Restorer(LedgerBase* base, Segments* segments, Tenants* tenants, MadeTenants* made_tenants,
           Sessions* sessions, ContentClaims* claims, Publications* publications, Endings* endings)
      : state_(base->state),
        changes_(base->changes),
        effects_(base->effects),
        segments_(*segments),
        tenants_(*tenants),
        made_tenants_(*made_tenants),
        sessions_(*sessions),
        claims_(*claims),
        publications_(*publications),
        endings_(*endings) {}

  Restored Restore(const JournalImage& image, const Survivors& survivors);

 private:
  using Lease = records::Lease;
  using Process = records::Process;
  using Publication = records::Publication;
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;

  void RestoreSessions(const JournalImage& image, const Survivors& survivors);
  void RestoreSegments(const JournalImage& image, const Survivors& survivors, Restored& restored);
  void RestorePublications(const JournalImage& image, const Survivors& survivors,
                           Restored& restored);
  void RestoreHolders(const JournalImage& image);

  LedgerState& state_;
  ChangeLog& changes_;
  Effects& effects_;
  Segments& segments_;
  Tenants& tenants_;
  MadeTenants& made_tenants_;
  Sessions& sessions_;
  ContentClaims& claims_;
  Publications& publications_;
  Endings& endings_;
};

}  // namespace gpumemd
