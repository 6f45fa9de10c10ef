// SPDX-License-Identifier: Apache-2.0
// Samples what tenants hold, and answers Admin.GetHistory.
#pragma once

#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/history/history.h"
#include "proto/gpumem/v1/history.pb.h"

namespace gpumemd {

// Its thread sleeps between two samples. Thread-safe.
class HistorySampler {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(10);
  // A measurement takes the broker's lock for all tenants: readers share one.
  static constexpr absl::Duration kReuse = absl::Seconds(1);

  // Takes the first sample soon. `broker` outlives this.
  //   RESOURCE_EXHAUSTED  the system starts no further thread
  static absl::StatusOr<std::unique_ptr<HistorySampler>> Start(const Broker* broker);
  ~HistorySampler();

  // Returns the history up to a measurement that is at most kReuse old.
  //   NOT_FOUND  there is no such device, or a tenant is named that is neither there nor kept
  absl::StatusOr<gpumem::v1::GetHistoryResponse> Read(const gpumem::v1::GetHistoryRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Measured {
    absl::Time time;
    Measures measures;
  };

  explicit HistorySampler(const Broker* broker) : broker_(*broker) {}
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the last measurement for readers if it is younger than `age`, or a new one.
  std::shared_ptr<const Measured> Measure(absl::Duration age) ABSL_LOCKS_EXCLUDED(measure_mutex_);

  const Broker& broker_;
  // Held for a measurement, which those wait for who would make the same.
  absl::Mutex measure_mutex_;
  std::shared_ptr<const Measured> last_ ABSL_GUARDED_BY(measure_mutex_);
  absl::Mutex mutex_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  History history_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gpumemd
