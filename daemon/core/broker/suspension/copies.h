// SPDX-License-Identifier: Apache-2.0
// Copies contents of segments while the memory for later ones is still being made.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Not thread-safe. If an item has waited for `hold`, one more thread copies all that is there,
// one batch at a time. The caller's thread copies the rest at the end.
class Copies {
 public:
  // Copies between the device of this number and the tier (Device::Copy).
  using Copy = std::function<absl::Status(size_t device, const std::vector<CopyItem>& items)>;

  // Memory that is there in less time is copied in one batch: batches have a cost, and imports into
  // the copier compete with creations for the driver.
  static constexpr absl::Duration kHold = absl::Milliseconds(20);

  Copies(Copy copy, absl::Duration hold, std::function<absl::Time()> now)
      : copy_(std::move(copy)), hold_(hold), now_(std::move(now)) {}
  // Waits for the batch in progress. Others are not copied.
  ~Copies() { Await(); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Takes an item, and may begin to copy. Its memory must stay until Finish, or the destructor.
  void Add(size_t device, const CopyItem& item);
  // Copies the rest, and returns the first error.
  absl::Status Finish();

 private:
  using Batch = std::map<size_t, std::vector<CopyItem>>;  // by device

  absl::Status CopyAll(const Batch& batch) const;
  void Await();

  const Copy copy_;
  const absl::Duration hold_;
  const std::function<absl::Time()> now_;
  Batch waiting_;
  absl::Time waits_since_;  // of the first one in waiting_
  std::thread thread_;
  std::atomic<bool> copying_{false};
  Batch batch_;          // in progress; the thread's until it is joined, like status_
  absl::Status status_;  // of the batches that have ended
};

}  // namespace gpumemd
