// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/unary_call.h"

#include "absl/strings/string_view.h"
#include "common/grpc_status.h"

namespace gpumemd {

grpc::Status ToAnswer(const absl::Status& status) {
  constexpr size_t kMaxMessage = 1000;
  if (status.message().size() <= kMaxMessage) return gpumem::ToGrpcStatus(status);
  const absl::string_view begin = status.message().substr(0, kMaxMessage);
  return gpumem::ToGrpcStatus(absl::Status(status.code(), absl::StrCat(begin, " …")));
}

}  // namespace gpumemd
