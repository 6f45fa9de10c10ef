// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/node.h"

#include "absl/strings/str_cat.h"
#include "common/held_memory.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"

namespace gpumem::kubernetes {

bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

template <typename Request, typename Response>
absl::StatusOr<Response> Node::Call(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                            const Request&,
                                                                            Response*),
                                    const Request& request) {
  if (admin_ == nullptr) {
    auto admin = cli::ConnectAdmin(options_.runtime_dir, options_.timeout);
    if (!admin.ok()) return admin.status();
    admin_ = *std::move(admin);
  }
  absl::StatusOr<Response> response = cli::Call(*admin_, method, request);
  if (IsAway(response.status())) admin_ = nullptr;
  return response;
}

absl::StatusOr<v1::ListTenantsResponse> Node::Tenants() {
  return Call(&v1::Admin::Stub::ListTenants, v1::ListTenantsRequest());
}

absl::StatusOr<v1::GetStatusResponse> Node::Status() {
  return Call(&v1::Admin::Stub::GetStatus, v1::GetStatusRequest());
}

absl::StatusOr<v1::ListPodsResponse> Node::Pods() {
  return Call(&v1::Admin::Stub::ListPods, v1::ListPodsRequest());
}

absl::Status Node::SetPods(const v1::SetPodsRequest& request) {
  return Call(&v1::Admin::Stub::SetPods, request).status();
}

absl::Status Node::Carry(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kEnd: {
      v1::EndTenantRequest request;
      request.set_tenant(step.tenant);
      request.set_owner(options_.owner);
      const auto ended = Call(&v1::Admin::Stub::EndTenant, request);
      if (absl::IsNotFound(ended.status())) return absl::OkStatus();
      if (!ended.ok()) return ended.status();
      return ended->gone() ? absl::OkStatus()
                           : absl::FailedPreconditionError(
                                 absl::StrCat("it has ended: ", HeldInWords(*ended)));
    }
    case Step::Kind::kUpdate: {
      v1::UpdateTenantRequest request;
      request.set_tenant(step.tenant);
      request.set_owner(options_.owner);
      *request.mutable_quota() = ToQuota(step.quota);
      return Call(&v1::Admin::Stub::UpdateTenant, request).status();
    }
    case Step::Kind::kCreate: {
      v1::CreateTenantRequest request;
      request.set_tenant(step.tenant);
      request.set_owner(options_.owner);
      request.set_parent(options_.parent);
      *request.mutable_quota() = ToQuota(step.quota);
      return Call(&v1::Admin::Stub::CreateTenant, request).status();
    }
  }
  return absl::InternalError("an unknown step");
}

}  // namespace gpumem::kubernetes
