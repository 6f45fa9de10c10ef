// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/load_report.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/counted.h"

namespace gpumemd {

std::string LoadReport::Line() const {
  absl::MutexLock lock(&mutex_);
  std::string line =
      absl::StrCat(gpumem::Counted(devices_, backend_ == Backend::kCuda ? "device" : "host device"),
                   ", ", gpumem::Counted(load_.sessions, "session"), ", ",
                   gpumem::FormatBytes(load_.charged), " charged");
  if (load_.pinned > 0) absl::StrAppend(&line, ", ", gpumem::FormatBytes(load_.pinned), " pinned");
  if (load_.tier > 0) absl::StrAppend(&line, ", ", gpumem::FormatBytes(load_.tier), " suspended");
  if (load_.waiting > 0) absl::StrAppend(&line, ", ", load_.waiting, " waiting");
  if (load_.draining) absl::StrAppend(&line, ", draining");
  if (continuity_ != nullptr && (!continuity_->keeps_memory() || continuity_->unkept() > 0)) {
    absl::StrAppend(&line, "; a crash would lose memory, see gpumemctl status");
  }
  return line;
}

void LoadReport::Heartbeat(const BrokerLoad& load) {
  {
    absl::MutexLock lock(&mutex_);
    load_ = load;
  }
  std::string line = Line();
  {
    absl::MutexLock lock(&mutex_);
    if (line == told_status_) line.clear();
  }
  // One that finds the queue full is made up for by the next.
  const absl::Status told = manager_->NotifyAlive(line);
  if (line.empty() || !told.ok()) return;
  absl::MutexLock lock(&mutex_);
  told_status_ = std::move(line);
}

}  // namespace gpumemd
