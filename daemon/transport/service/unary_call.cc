// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/unary_call.h"

#include "absl/strings/string_view.h"
#include "common/grpc_status.h"

namespace gpumemd {
namespace {

absl::Status Cut(const absl::Status& status) {
  constexpr size_t kMaxMessage = 1000;
  if (status.message().size() <= kMaxMessage) return status;
  const absl::string_view begin = status.message().substr(0, kMaxMessage);
  return absl::Status(status.code(), absl::StrCat(begin, " …"));
}

}  // namespace

grpc::Status ToAnswer(const absl::Status& status) { return gpumem::ToGrpcStatus(Cut(status)); }

gpumem::v1::StatusDetails ToAnswerDetails(const absl::Status& status) {
  return gpumem::ToStatusDetails(Cut(status));
}

}  // namespace gpumemd
