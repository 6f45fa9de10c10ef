// SPDX-License-Identifier: Apache-2.0
// gpumem.v1.Admin in a read-only role, for viewers: the calls that show something.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/transport/service/admin_service.h"

namespace gpumemd {

// Serves the calls of ServedCalls() as AdminService does. Refuses all others with
// PERMISSION_DENIED, also for root, and reads no request of theirs.
class ViewService final : public AdminService {
 public:
  // Returns the names of the calls that it serves. One that is added to the protocol is refused
  // until it is listed here.
  static absl::Span<const absl::string_view> ServedCalls();

  // As AdminService. Hooks of other calls may be absent.
  ViewService(Broker* broker, QuotaControl* quotas, Hooks hooks);
};

}  // namespace gpumemd
