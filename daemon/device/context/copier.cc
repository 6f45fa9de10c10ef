// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/copier.h"

#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/start_thread.h"
#include "daemon/device/context/copy_plan.h"

namespace gpumemd {
namespace {

absl::Status Ended(const std::string& device_uuid) {
  return absl::UnavailableError(
      absl::StrCat("the process that copies between ", device_uuid,
                   " and the host tier ended, or was killed because it did not answer; the next "
                   "copy starts another"));
}

}  // namespace

TierCopier::~TierCopier() {
  std::thread background;
  {
    absl::MutexLock lock(&mutex_);
    destroying_ = true;
    background = std::move(background_);
  }
  if (background.joinable()) background.join();
  absl::MutexLock lock(&copying_);
  End();
}

absl::Status TierCopier::EnsureBackground() {
  if (background_.joinable() || destroying_) return absl::OkStatus();
  absl::StatusOr<std::thread> thread = gpumem::StartThread([this] { StartAndEnd(); });
  if (!thread.ok()) return thread.status();
  background_ = *std::move(thread);
  return absl::OkStatus();
}

void TierCopier::Prepare() {
  absl::MutexLock lock(&mutex_);
  used_ = true;  // one that is idle stays
  if (process_ != nullptr && !process_->broken()) return;
  wanted_ = EnsureBackground().ok();  // otherwise the copy reports the error
}

void TierCopier::End() {
  std::shared_ptr<ContextProcess> dead;  // its end, which takes a while, needs no lock
  absl::MutexLock lock(&mutex_);
  ++ends_;
  wanted_ = false;
  pid_ = 0;
  dead = std::move(process_);
  // The copy holds its process, which ends with the copy.
  if (dead != nullptr && copies_ > 0) dead->Kill();
}

absl::StatusOr<std::shared_ptr<ContextProcess>> TierCopier::Process(uint64_t ends) {
  std::shared_ptr<ContextProcess> dead;
  {
    absl::MutexLock lock(&mutex_);
    if (ends != ends_) return Ended(spec_.device_uuid);
    if (process_ != nullptr && !process_->broken()) return process_;
    if (absl::Status status = EnsureBackground(); !status.ok()) return status;
    dead = std::move(process_);
  }
  dead.reset();
  absl::StatusOr<std::shared_ptr<ContextProcess>> started =
      ContextProcess::Start(spec_, [this](pid_t pid) { pid_.compare_exchange_strong(pid, 0); });
  if (!started.ok()) return started;
  absl::MutexLock lock(&mutex_);
  if (ends != ends_) return Ended(spec_.device_uuid);
  process_ = *started;
  pid_ = process_->pid();
  if (process_->broken()) pid_ = 0;  // it died before its number was set
  return started;
}

absl::Status TierCopier::Copy(absl::Span<const CopyItem> items) {
  const absl::StatusOr<std::vector<CopyBatch>> batches = PlanCopy(items);
  if (!batches.ok()) return batches.status();
  uint64_t ends = 0;
  {
    absl::MutexLock lock(&mutex_);
    ++copies_;
    ends = ends_;
  }
  const absl::Cleanup done = [this] {
    absl::MutexLock lock(&mutex_);
    --copies_;
    used_ = true;
  };
  absl::MutexLock lock(&copying_);
  const absl::StatusOr<std::shared_ptr<ContextProcess>> process = Process(ends);
  if (!process.ok()) return process.status();
  absl::Status status = CopyIn(**process, *batches);
  if (!absl::IsUnavailable(status)) return status;
  // Until then the copy engine may write to the targets.
  (*process)->Kill();
  (*process)->AwaitEnd();
  pid_t ended = (*process)->pid();
  pid_.compare_exchange_strong(ended, 0);  // its watcher may not have come to it yet
  return Ended(spec_.device_uuid);
}

absl::Status TierCopier::CopyIn(ContextProcess& process, absl::Span<const CopyBatch> batches) {
  absl::Status status;
  for (const CopyBatch& batch : batches) {
    status = process.StartCopy(batch);
    if (!status.ok()) break;
  }
  // Also after an error: the targets must not be written any more when this returns.
  status.Update(process.FinishCopies());
  return status;
}

void TierCopier::StartAndEnd() {
  const auto called = [this]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return destroying_ || wanted_; };
  while (true) {
    std::shared_ptr<ContextProcess> idle;  // ended without the lock
    bool start = false;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&called), idle_);
      if (destroying_) return;
      start = std::exchange(wanted_, false);
      const bool used = std::exchange(used_, false) || copies_ > 0;
      if (!start && !used && process_ != nullptr) {
        pid_ = 0;
        idle = std::move(process_);
      }
    }
    // On an error the copy tries again, and reports it.
    if (start) Copy({}).IgnoreError();
  }
}

}  // namespace gpumemd
