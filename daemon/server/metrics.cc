// SPDX-License-Identifier: Apache-2.0
// The server's facts for its metrics.
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/server/server.h"
#include "daemon/transport/polling/callback_queue.h"
#include "spdlog/spdlog.h"

namespace gpumemd {

void Server::StartMetrics() {
  if (!config_.metrics.enabled()) return;
  MetricsSources sources{.broker = broker_.get(),
                         .notices = [this] { return static_cast<uint64_t>(Notices().size()); },
                         .spun = [] { return GetCallbackThreadsStats().spun; },
                         .generation = continuity_ == nullptr ? 1 : continuity_->generation(),
                         .backend = backend_,
                         .started = started_};
  if (continuity_ != nullptr) {
    sources.store_places = [this] { return continuity_->places(); };
    sources.store_used = [this] { return continuity_->used_places(); };
    sources.unkept = [this] { return static_cast<uint64_t>(continuity_->unkept()); };
  }
  sources.foreign_bytes = [this] {
    std::map<std::string, uint64_t> bytes;
    if (monitor_ == nullptr) return bytes;
    for (const DeviceProcess& process : monitor_->Foreign()) {
      bytes[process.device_uuid] += process.bytes.value_or(0);
    }
    return bytes;
  };
  auto endpoint = MetricsEndpoint::Start(config_.metrics, std::move(sources));
  if (!endpoint.ok()) {
    metrics_notice_ = absl::StrCat("Metrics are not served: ", endpoint.status().message(),
                                   "; the daemon tries again when it is restarted.");
    spdlog::error("{}", metrics_notice_);
    return;
  }
  metrics_ = *std::move(endpoint);
  spdlog::info("metrics: {}", metrics_->where());
}

}  // namespace gpumemd
