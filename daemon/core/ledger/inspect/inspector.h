// SPDX-License-Identifier: Apache-2.0
// Answers questions about the ledger's state. Changes nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/inspect/measures.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/state.h"
#include "daemon/core/quota/quota.h"

namespace gpumemd {

// Empty names of tenants and devices mean all of them.
class Inspector {
 public:
  // `state` must outlive this.
  explicit Inspector(const LedgerState* state) : state_(*state) {}

  // --- Tenants

  //   NOT_FOUND  no such tenant
  absl::StatusOr<TenantView> GetTenant(absl::string_view tenant) const;
  absl::StatusOr<Quota> GetQuota(absl::string_view tenant) const;
  std::vector<TenantView> ListTenants() const;
  TenantView View(const records::Tenant& tenant) const;
  // For the metrics (measures.cc).
  LedgerMeasures Measure() const;

  // --- Sessions

  //   ABORTED  the session has ended
  absl::StatusOr<std::string> TenantOf(SessionId session) const;
  // Returns 0 if there is no such session.
  size_t LeaseCountOf(SessionId session) const;
  // Returns a record that identifies the session's process.
  // Requires that the session exists.
  AuditRecord AuditOf(AuditEvent event, SessionId session) const;

  // --- Leases

  LeaseView Describe(const Operation::Item& item) const;
  struct Revoked {
    std::vector<LeaseId> leases;  // of the session's leases, those being taken back
    absl::Time until = absl::InfiniteFuture();
  };
  Revoked RevokedLeases(SessionId session) const;
  std::vector<LeaseId> LostLeases(SessionId session) const;
  // The same in parts, of `count` leases from `next` on. Return the lease to continue from, or
  // nothing.
  std::optional<LeaseId> RevokedLeases(SessionId session, LeaseId next, size_t count,
                                       Revoked& revoked) const;
  std::optional<LeaseId> LostLeases(SessionId session, LeaseId next, size_t count,
                                    std::vector<LeaseId>& lost) const;

  // --- Publications

  //   NOT_FOUND  it has ended
  absl::StatusOr<PublicationView> GetPublication(PublicationId id) const;
  //   NOT_FOUND  no such tenant
  absl::StatusOr<std::vector<PublicationView>> ListPublications(absl::string_view tenant) const;
  // Returns those that the session may attach to. A tenant without any is no error.
  //   ABORTED  the session has ended
  absl::StatusOr<std::vector<PublicationView>> ListAttachable(SessionId session,
                                                              absl::string_view tenant) const;
  // The same in parts: looks at `count` names from `next` on. Returns the name to continue from, or
  // nothing.
  using PublicationName = LedgerState::PublicationName;
  absl::StatusOr<std::optional<PublicationName>> ListAttachable(
      SessionId session, absl::string_view tenant, const PublicationName& next, size_t count,
      std::vector<PublicationView>& views) const;

  // --- Lists

  //   NOT_FOUND  no such tenant
  absl::StatusOr<std::vector<SessionView>> ListSessions(absl::string_view tenant) const;
  //   NOT_FOUND  no such tenant or device
  absl::StatusOr<std::vector<SegmentView>> ListSegments(absl::string_view tenant,
                                                        absl::string_view device) const;
  // Returns leases by number, publications by name; of one segment alone if it is given.
  HoldersView ListHolders(std::optional<SegmentId> only) const;

  // The same in parts, for callers that release the mutex between parts. First all ids, in no
  // order. Then views of those of them that still exist, in the order given.
  std::vector<SessionId> SessionIds() const;
  std::vector<SegmentId> SegmentIds() const;
  absl::Status CheckListed(absl::string_view tenant, absl::string_view device) const;
  void View(absl::Span<const SessionId> ids, absl::string_view tenant,
            std::vector<SessionView>& views) const;
  void View(absl::Span<const SegmentId> ids, absl::string_view tenant, absl::string_view device,
            std::vector<SegmentView>& views) const;
  // Adds up to `count` leases of a session, from `next` on. Returns the lease to continue from, or
  // nothing.
  std::optional<LeaseId> View(SessionId session, std::optional<SegmentId> only, LeaseId next,
                              size_t count, std::vector<LeaseHolderView>& views) const;
  std::vector<PublicationHolderView> PublicationHolders(std::optional<SegmentId> only) const;

 private:
  using Lease = records::Lease;
  using Publication = records::Publication;
  using Request = records::Request;
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;

  PublicationView View(PublicationId id, const Publication& publication) const;
  // Adds the view of a segment's suspended leases.
  void AddSuspended(const Segment& segment, SegmentView& view) const;

  const LedgerState& state_;
};

}  // namespace gpumemd
