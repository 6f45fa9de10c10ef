// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/suspension/copies.h"

#include "absl/status/statusor.h"
#include "common/start_thread.h"

namespace gpumemd {

void Copies::Add(size_t device, const CopyItem& item) {
  const absl::Time now = now_();
  if (waiting_.empty()) waits_since_ = now;
  waiting_[device].push_back(item);
  if (now - waits_since_ < hold_ || copying_) return;
  Await();
  if (!status_.ok()) return;
  batch_.swap(waiting_);
  copying_ = true;
  absl::StatusOr<std::thread> thread = gpumem::StartThread([this] {
    status_ = CopyAll(batch_);
    copying_ = false;
  });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {  // the caller's thread copies it at the end
    copying_ = false;
    batch_.swap(waiting_);
  }
}

absl::Status Copies::Finish() {
  Await();
  if (status_.ok()) status_ = CopyAll(waiting_);
  waiting_.clear();
  return status_;
}

absl::Status Copies::CopyAll(const Batch& batch) const {
  for (const auto& [device, items] : batch) {
    if (absl::Status copied = copy_(device, items); !copied.ok()) return copied;
  }
  return absl::OkStatus();
}

void Copies::Await() {
  if (thread_.joinable()) thread_.join();
  batch_.clear();
}

}  // namespace gpumemd
