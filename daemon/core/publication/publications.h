// SPDX-License-Identifier: Apache-2.0
// Publications: named, versioned lists of segments that outlive their publishers.
//
// A publication holds its segments as a lease does, without a session. While it exists, these are
// neither reused nor given back, and stay charged to their tenant, once. A session that attaches
// gets separate leases, by an operation like any other (Operations::BeginAttach), and keeps them
// whatever becomes of the publication. So a new version replaces the one before in one step: it is
// another publication, and the old one releases its segments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/ledger/sessions.h"
#include "daemon/core/publication/attach_waiters.h"
#include "daemon/core/publication/claims.h"

namespace gpumemd {

class Publications {
 public:
  using Name = LedgerState::PublicationName;

  // All must outlive this.
  Publications(LedgerBase* base, Segments* segments, Sessions* sessions, AttachWaiters* waiters,
               ContentClaims* claims)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        effects_(base->effects),
        segments_(*segments),
        sessions_(*sessions),
        waiters_(*waiters),
        claims_(*claims) {}

  // Sessions that wait for publications, and their claims on contents.
  AttachWaiters& waiters() { return waiters_; }
  ContentClaims& claims() { return claims_; }

  // Statuses as proto/gpumem/v1/broker.proto lists them.
  struct Published {
    PublicationId id{};  // none if the answer is repeated
    uint64_t version = 0;
    bool again = false;  // the request was answered before; nothing has changed
  };
  absl::StatusOr<Published> Publish(SessionId session, const PublishSpec& spec);
  // Returns an id for callers that store something under it before the publication exists. An
  // unused id is harmless.
  PublicationId NewId() { return PublicationId{state_.next_publication++}; }

  // Returns the version that was ended. If the session's request of this number (0: none) ended one
  // before, returns that version and changes nothing.
  absl::StatusOr<uint64_t> Unpublish(SessionId session, absl::string_view name,
                                     uint64_t request_id = 0);
  // Ends a publication for an operator, of "TENANT/NAME". `by`: for the audit.
  absl::StatusOr<uint64_t> Unpublish(absl::string_view full_name,
                                     absl::Span<const AuditOperator> by = {});

  // Returns when Expire next has a publication to end.
  absl::Time NextExpiry() const;
  // Ends publications that have expired, the earliest first. Stops once those that it has ended had
  // `steps` segments.
  void Expire(size_t steps = SIZE_MAX);

  // Ends the publication and remembers the last version of its name, unless the next version takes
  // its place.
  void End(PublicationId id, bool replaced = false, absl::Span<const AuditOperator> by = {});

  // --- Attached sessions

  // Splits "NAME" or "TENANT/NAME".
  //   INVALID_ARGUMENT  it is neither
  static absl::StatusOr<Name> ParseName(absl::string_view name, absl::string_view own_tenant);
  // Counts leases that the session is about to get through the publication.
  void Attach(PublicationId publication, SessionId session, uint32_t leases);
  // Ends one lease that was got through the publication, or was about to be.
  void Detach(std::optional<PublicationId> publication, SessionId session);

  // Adds a publication of an earlier daemon.
  void Restore(PublicationId id, records::Publication publication);

 private:
  using Publication = records::Publication;
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;

  absl::StatusOr<std::vector<SegmentId>> Publishable(const Session& session,
                                                     const PublishSpec& spec) const;
  absl::Status CheckRoom(Tenant& tenant, const Publication* replaced,
                         uint64_t metadata_bytes) const;
  static void Count(Tenant& tenant, int change);

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  Effects& effects_;
  Segments& segments_;
  Sessions& sessions_;
  AttachWaiters& waiters_;
  ContentClaims& claims_;
};

// Returns the same status whether the publication does not exist or this tenant may not know of it.
absl::Status NoSuchPublication(absl::string_view tenant, absl::string_view name);

}  // namespace gpumemd
