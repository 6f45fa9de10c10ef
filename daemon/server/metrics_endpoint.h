// SPDX-License-Identifier: Apache-2.0
// The daemon's endpoint for Prometheus: a listener as configured, and the page's contents
// (docs/reference/metrics.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/config/config.h"
#include "daemon/core/broker/broker.h"
#include "daemon/metrics/http_server.h"

namespace gpumemd {

// The sources of the page. They outlive the endpoint; the functions are called on its thread.
struct MetricsSources {
  const Broker* broker = nullptr;
  // Bytes of processes without a session, by device.
  std::function<std::map<std::string, uint64_t>()> foreign_bytes;
  std::function<uint64_t()> notices;  // how many
  // As in MetricsFacts; null: there is no store.
  std::function<uint64_t()> store_places, store_used, unkept;
  std::function<absl::Duration()> spun;  // as in MetricsFacts
  uint32_t generation = 1;               // of the daemon, from 1
  Backend backend = Backend::kHost;
  absl::Time started;
};

class MetricsEndpoint {
 public:
  // Starts serving, on one thread that sleeps between requests. `config` names a place.
  //   ALREADY_EXISTS      another process listens there
  //   RESOURCE_EXHAUSTED  no thread or descriptor is left
  //   others              the system's error, in a sentence
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const MetricsConfig& config,
                                                                MetricsSources sources);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  // Returns the address, for people: "http://127.0.0.1:9400/metrics", with the port that the system
  // chose if the configuration says 0; "unix:/run/gpumem/metrics.sock".
  const std::string& where() const { return where_; }

 private:
  MetricsEndpoint() = default;

  std::string where_;
  std::string socket_file_;  // empty: none
  std::unique_ptr<HttpServer> server_;
};

}  // namespace gpumemd
