// SPDX-License-Identifier: Apache-2.0
// Copies contents of segments while the memory for later ones is still being made.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Not thread-safe. It copies in a thread of its own, one batch at a time: all that is there when
// the one before has ended, and in the caller's thread at the end.
class Copies {
 public:
  // Copies between the device of this number and the tier (Device::Copy).
  using Copy = std::function<absl::Status(size_t device, const std::vector<CopyItem>& items)>;

  // A batch in the thread has so many bytes at least, so that few wait for each other.
  static constexpr uint64_t kBatchBytes = uint64_t{256} << 20;

  explicit Copies(Copy copy, uint64_t batch_bytes = kBatchBytes)
      : copy_(std::move(copy)), batch_bytes_(batch_bytes) {}
  // Waits for the batch in progress. Others are not copied.
  ~Copies() { Await(); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Takes an item, and may begin to copy. Its memory must stay until Finish, or the destructor.
  void Add(size_t device, const CopyItem& item);
  // True if it has been given nothing.
  bool empty() const { return empty_; }
  // Copies the rest, and returns the first error.
  absl::Status Finish();

 private:
  using Batch = std::map<size_t, std::vector<CopyItem>>;  // by device

  absl::Status CopyAll(const Batch& batch) const;
  void Await();

  const Copy copy_;
  const uint64_t batch_bytes_;
  bool empty_ = true;
  Batch waiting_;
  uint64_t waiting_bytes_ = 0;
  std::thread thread_;
  std::atomic<bool> copying_{false};
  Batch batch_;          // in progress; the thread's until it is joined, like status_
  absl::Status status_;  // of the batches that have ended
};

}  // namespace gpumemd
