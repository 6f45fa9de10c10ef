// SPDX-License-Identifier: Apache-2.0
// Suspends the pool's segments and brings them back. Blocks, heaps and streams stay as they are, so
// that frees take effect meanwhile: they touch no memory.
#include <utility>

#include "client/pool/engine.h"

namespace gpumem::internal {

absl::Status Engine::SuspendedError() {
  return absl::FailedPreconditionError(
      "the pool is suspended, or about to be: resume it before you allocate or share blocks");
}

bool Engine::suspended() const {
  if (!CheckProcess().ok()) return false;
  absl::MutexLock lock(&mutex_);
  return stage_ != Stage::kRunning;
}

absl::Status Engine::Suspend(const SuspendOptions& options) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<std::vector<uint64_t>> ids = BeginMove(Stage::kRunning);
  if (!ids.ok()) return ids.status();
  absl::Status suspended = ids->empty() ? absl::OkStatus() : source_->Suspend(*ids, options);
  // After an error that could not be undone some segments have no memory.
  EndMove(suspended.ok() || source_->AnySuspended(*ids) ? Stage::kSuspended : Stage::kRunning);
  return suspended;
}

absl::Status Engine::Resume(const ResumeOptions& options) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<std::vector<uint64_t>> ids = BeginMove(Stage::kSuspended);
  if (!ids.ok()) return ids.status();
  absl::Status resumed = ids->empty() ? absl::OkStatus() : source_->Resume(*ids, options);
  EndMove(resumed.ok() ? Stage::kRunning : Stage::kSuspended);
  return resumed;
}

absl::StatusOr<std::vector<uint64_t>> Engine::BeginMove(Stage from) {
  std::vector<std::shared_ptr<Interrupt>> awaiting;
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != from) {
      return absl::FailedPreconditionError(
          from == Stage::kRunning
              ? "the pool is suspended already, or another thread suspends or resumes it"
              : "the pool is not suspended, or another thread suspends or resumes it");
    }
    stage_ = Stage::kDraining;
    if (from == Stage::kRunning) ++waiting_;
    ++returns_;  // wakes threads that wait for memory: they fail
    awaiting = awaiting_;
  }
  for (const auto& interrupt : awaiting) interrupt->Nudge();
  {
    absl::MutexLock lock(&mutex_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !growing_ && sharing_ == 0;
    };
    mutex_.Await(absl::Condition(&idle));
  }
  // Only memory in use is worth moving. Memory that a stream does not free yet is moved as well.
  FreeAllBlocks(std::nullopt).IgnoreError();
  absl::MutexLock lock(&mutex_);
  stage_ = Stage::kMoving;
  std::vector<uint64_t> ids;
  for (const auto& [at, segment] : segments_) ids.push_back(segment.id);
  return ids;
}

void Engine::EndMove(Stage to) {
  std::vector<Segment> released;
  {
    absl::MutexLock lock(&mutex_);
    stage_ = to;
    if (to != Stage::kRunning) return;
    --waiting_;
    // Blocks may have been freed meanwhile.
    if (reserved_bytes_ - taken_bytes_.value() > release_threshold_)
      released = Shrink(release_threshold_);
  }
  ReleaseAll(released).IgnoreError();
}

}  // namespace gpumem::internal
