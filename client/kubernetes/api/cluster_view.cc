// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/cluster_view.h"

#include "absl/strings/str_cat.h"
#include "client/kubernetes/api/objects.h"

namespace gpumem::kubernetes {

ClusterView::ClusterView(const ViewOptions& options)
    : claims_(kClaimKind, [driver = options.driver, pool = options.pool](
                              const Json& object) { return ReadClaim(object, driver, pool); }),
      slices_(kSliceKind,
              [driver = options.driver](const Json& object) { return ReadSlice(object, driver); }),
      claims_reflector_(options.api_server, "resourceclaims", /*selector=*/"", &claims_, &mutex_),
      slices_reflector_(
          options.api_server, "resourceslices",
          absl::StrCat("spec.nodeName=", options.node, ",spec.driver=", options.driver), &slices_,
          &mutex_) {}

absl::Status ClusterView::WaitFresh(absl::Time deadline) {
  absl::Status claims = claims_reflector_.WaitFresh(deadline);
  return claims.ok() ? slices_reflector_.WaitFresh(deadline) : claims;
}

absl::Status ClusterView::Read(absl::FunctionRef<void(const State&)> read) const {
  absl::MutexLock lock(&mutex_);
  State state;
  state.stale =
      claims_reflector_.stale().ok() ? slices_reflector_.stale() : claims_reflector_.stale();
  if (claims_.version().empty() || slices_.version().empty()) return state.stale;
  state.claims = claims_.objects();
  state.slices = slices_.objects();
  state.changes = Changes();
  read(state);
  return absl::OkStatus();
}

uint64_t ClusterView::changes() const {
  absl::MutexLock lock(&mutex_);
  return Changes();
}

uint64_t ClusterView::slice_changes() const {
  absl::MutexLock lock(&mutex_);
  return slices_.changes();
}

bool ClusterView::WaitForChange(uint64_t seen, absl::Time until) const {
  struct Wait {
    const ClusterView* self;
    uint64_t seen;
  } const wait{this, seen};
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(absl::Condition(
                                      +[](const Wait* w) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                        return w->self->Changes() != w->seen;
                                      },
                                      &wait),
                                  until);
}

}  // namespace gpumem::kubernetes
