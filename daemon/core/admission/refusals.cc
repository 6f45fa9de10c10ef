// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/refusals.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

using Tenant = records::Tenant;

}  // namespace

absl::Status Draining() {
  return absl::UnavailableError(
      "the daemon is draining: it admits no new requests; leases stay valid");
}

absl::Status SessionEnded() { return absl::AbortedError("the session has ended; connect again"); }

absl::Status TenantEnded(absl::string_view tenant) {
  return absl::FailedPreconditionError(
      absl::StrCat("tenant \"", tenant,
                   "\" has ended: it gets no new session and no new memory; what it holds stays "
                   "until it is released"));
}

absl::Status LostSegment(SegmentId segment) {
  return absl::FailedPreconditionError(
      absl::StrCat("segment ", ToInt(segment),
                   " is lost: its CUDA context ended, or no keeper held its memory when the daemon "
                   "ended; release it and acquire another"));
}

absl::Status NoSuchLease(LeaseId lease) {
  return absl::NotFoundError(absl::StrCat("this session has no lease ", ToInt(lease),
                                          "; it may have been released already"));
}

absl::Status Deny(Tenant& tenant, const Denial& denial) {
  ++tenant.denials[denial.cause];
  return DenialError(denial);
}

absl::Status DenyCount(Tenant& tenant, Denial::Cause cause, uint64_t asked, uint64_t used,
                       uint64_t limit, absl::string_view help, const Tenant* limited) {
  Denial denial;
  if (limited != nullptr && limited != &tenant) denial.limited_tenant = limited->name;
  denial.cause = cause;
  denial.tenant = tenant.name;
  denial.asked = asked;
  denial.used = used;
  denial.limit = limit;
  denial.help = std::string(help);
  return Deny(tenant, denial);
}

void HideHolders(const LedgerState& state, SessionId session, HoldersShown shown, Denial& denial) {
  if (shown == HoldersShown::kAll) return;
  auto asks = state.sessions.find(session);
  const Tenant* tree =
      asks == state.sessions.end() ? nullptr : LedgerState::TreeOf(*asks->second->tenant);
  const auto hidden = [&](const Denial::Holder& holder) {
    const Tenant* tenant = state.FindTenant(holder.tenant);
    return shown == HoldersShown::kNone || tenant == nullptr ||
           LedgerState::TreeOf(*tenant) != tree;
  };
  auto& holders = denial.holders;
  holders.erase(std::remove_if(holders.begin(), holders.end(), hidden), holders.end());
}

}  // namespace gpumemd
