// SPDX-License-Identifier: Apache-2.0
#include "common/grpc_status.h"

#include <optional>
#include <string>

#include "common/denial.h"

namespace gpumem {
namespace {

constexpr char kTypeUrlPrefix[] = "type.googleapis.com/";

// Returns the Denial in a peer's status details. Peers are untrusted: unparsable details are
// ignored.
std::optional<v1::Denial> DenialIn(const std::string& serialized) {
  v1::StatusDetails details;
  if (serialized.empty() || !details.ParseFromString(serialized)) return std::nullopt;
  const std::string url = kTypeUrlPrefix + v1::Denial::descriptor()->full_name();
  for (const google::protobuf::Any& any : details.details()) {
    v1::Denial denial;
    if (any.type_url() == url && denial.ParseFromString(any.value())) return denial;
  }
  return std::nullopt;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message(status.message());
  if (!DenialOf(status).has_value()) return grpc::Status(code, message);
  return grpc::Status(code, message, ToStatusDetails(status).SerializeAsString());
}

v1::StatusDetails ToStatusDetails(const absl::Status& status) {
  v1::StatusDetails details;
  details.set_code(static_cast<int32_t>(status.code()));
  details.set_message(std::string(status.message()));
  if (const std::optional<v1::Denial> denial = DenialOf(status); denial.has_value()) {
    google::protobuf::Any* any = details.add_details();
    any->set_type_url(kTypeUrlPrefix + v1::Denial::descriptor()->full_name());
    any->set_value(denial->SerializeAsString());
  }
  return details;
}

grpc::Status FromStatusDetails(const v1::StatusDetails& details) {
  return grpc::Status(static_cast<grpc::StatusCode>(details.code()), details.message(),
                      details.details().empty() ? "" : details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (result.code() == absl::StatusCode::kResourceExhausted) {
    if (std::optional<v1::Denial> denial = DenialIn(status.error_details())) {
      AttachDenial(*denial, &result);
    }
  }
  return result;
}

}  // namespace gpumem
