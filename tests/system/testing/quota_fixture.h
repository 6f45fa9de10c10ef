// SPDX-License-Identifier: Apache-2.0
// A daemon with the tenants of kConfig, and an operator who changes their quotas over the admin
// socket.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/daemon_process.h"
#include "tests/support/wire.h"

namespace gpumem::testing {

class QuotaTest : public ::testing::Test {
 protected:
  using Stub = v1::Admin::Stub;
  static constexpr char kConfig[] = R"([host]
device_bytes = "64MiB"
[[tenant]]
name = "team"
limit = "32MiB"
max_segments = 10
[[tenant]]
name = "other"
[[rule]]
tenant = "team"
default = true
[[rule]]
tenant = "other"
default = true
[[rule]]
tenant = "user-{uid}"
default = true
)";

  void SetUp() override {
    auto daemon = DaemonProcess::Start({.config = kConfig});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    Response response;
    Stub stub(ChannelTo(daemon_->Socket("admin.sock")));
    const grpc::Status status = (stub.*method)(ContextWith().get(), request, &response);
    if (status.ok()) return response;
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  static v1::SetQuotaRequest For(const std::string& tenant) {
    v1::SetQuotaRequest request;
    request.set_tenant(tenant);
    return request;
  }
  absl::Status Set(const v1::SetQuotaRequest& request) {
    return Call(&Stub::SetQuota, request).status();
  }
  absl::Status SetLimit(const std::string& tenant, uint64_t bytes) {
    v1::SetQuotaRequest request = For(tenant);
    request.mutable_quota()->set_limit_bytes(bytes);
    return Set(request);
  }
  absl::StatusOr<v1::GetQuotaResponse> Unset(const std::string& tenant,
                                             const std::vector<std::string>& fields = {}) {
    v1::UnsetQuotaRequest request;
    request.set_tenant(tenant);
    for (const std::string& field : fields) request.add_fields(field);
    return Call(&Stub::UnsetQuota, request);
  }
  v1::GetQuotaResponse Get(const std::string& tenant) {
    v1::GetQuotaRequest request;
    request.set_tenant(tenant);
    auto response = Call(&Stub::GetQuota, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::GetQuotaResponse());
  }
  absl::StatusOr<v1::ReloadResponse> Reload() { return Call(&Stub::Reload, v1::ReloadRequest()); }
  absl::StatusOr<v1::ReloadResponse> CheckReload() {
    return Call(&Stub::CheckReload, v1::CheckReloadRequest());
  }
  std::string ConfigFile() const {
    return std::filesystem::path(daemon_->runtime_dir()).parent_path() / "gpumemd.toml";
  }
  void WriteConfig(const std::string& text) const { std::ofstream(ConfigFile()) << text; }
  std::string OverridesFile() const { return daemon_->state_dir() + "/overrides.txt"; }

  std::unique_ptr<DaemonProcess> daemon_;
};

}  // namespace gpumem::testing
