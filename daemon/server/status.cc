// SPDX-License-Identifier: Apache-2.0
// The server's facts for operators: gpumemctl status, notices, and the log.
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/cuda/toolkit.h"
#include "common/version.h"
#include "daemon/server/server.h"

namespace gpumemd {

void Server::FillStatus(gpumem::v1::GetStatusResponse& status) const {
  status.set_version(GPUMEM_VERSION);
  status.set_cuda_toolkit(gpumem::CudaToolkit());
  status.set_pid(static_cast<uint32_t>(getpid()));
  status.set_backend(backend_ == Backend::kCuda ? gpumem::v1::BACKEND_CUDA
                                                : gpumem::v1::BACKEND_HOST);
  status.set_uptime_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Now() - started_)));
  status.set_config_file(config_.file);
  status.set_runtime_dir(config_.runtime_dir);
  status.set_keeps_memory(continuity_ != nullptr && continuity_->keeps_memory());
  status.set_store_full(continuity_ != nullptr && continuity_->full());
  status.set_generation(continuity_ == nullptr ? 1 : continuity_->generation());
  if (continuity_ != nullptr) {
    status.set_unkept_segments(static_cast<uint32_t>(continuity_->unkept()));
  }
  if (monitor_ != nullptr) {
    for (const DeviceProcess& process : monitor_->Foreign()) {
      gpumem::v1::ForeignProcess& foreign = *status.add_foreign_processes();
      foreign.set_device_uuid(process.device_uuid);
      foreign.set_pid(process.pid);
      foreign.set_command(process.command);
      foreign.set_bytes(process.bytes.value_or(0));
    }
  }
  for (std::string& notice : Notices()) status.add_notices(std::move(notice));
}

std::vector<std::string> Server::Notices() const {
  std::vector<std::string> notices;
  {
    absl::MutexLock lock(&mutex_);
    notices = notices_;
  }
  const auto add = [&](std::vector<std::string> more) {
    for (std::string& notice : more) notices.push_back(std::move(notice));
  };
  add(quotas_->Skipped());
  if (continuity_ != nullptr) add(continuity_->Notices());
  if (!metrics_notice_.empty()) notices.push_back(metrics_notice_);
  if (const absl::Status written = audit_->status(); !written.ok()) {
    notices.push_back(std::string(written.message()));
  }
  return notices;
}

std::string Server::Summary() const {
  std::string devices;
  for (const DeviceInfo& device : DeviceInfos()) {
    absl::StrAppend(&devices, devices.empty() ? "" : ", ", device.name, " (", device.uuid, ")");
  }
  return absl::StrCat("gpumemd ", GPUMEM_VERSION,
                      " ready: ", backend_ == Backend::kCuda ? "CUDA" : "host", " backend, ",
                      devices, "; sockets in ", config_.runtime_dir);
}

}  // namespace gpumemd
