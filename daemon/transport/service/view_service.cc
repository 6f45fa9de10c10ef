// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/view_service.h"

#include <grpcpp/support/method_handler.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

// Refuses a call without its request. The server deletes it.
using Refusal = grpc::internal::ErrorMethodHandler<grpc::StatusCode::PERMISSION_DENIED>;

constexpr absl::string_view kServed[] = {
    "GetStatus",   "ListTenants",      "ListSessions",   "ListSegments", "ListHolders",
    "ListWaiting", "ListPublications", "GetPublication", "GetQuota",     "GetTenantUsage",
    "GetHistory",  "ListPods",         "ListPools",      "WatchEvents",
};

}  // namespace

absl::Span<const absl::string_view> ViewService::ServedCalls() { return kServed; }

ViewService::ViewService(Broker* broker, QuotaControl* quotas, Hooks hooks)
    : AdminService(broker, quotas, std::move(hooks)) {
  const google::protobuf::ServiceDescriptor& calls =
      *gpumem::v1::GetStatusRequest::descriptor()->file()->pool()->FindServiceByName(
          gpumem::v1::Admin::service_full_name());
  for (int i = 0; i < calls.method_count(); ++i) {
    const std::string& name = calls.method(i)->name();
    if (std::find(std::begin(kServed), std::end(kServed), name) != std::end(kServed)) continue;
    // gRPC numbers a service's methods in the order of its description.
    MarkMethodStreamed(i, new Refusal(absl::StrCat("the view socket is read-only: ", name,
                                                   " is a call of the admin socket, for root and "
                                                   "the group [daemon] admin_group")));
  }
}

}  // namespace gpumemd
