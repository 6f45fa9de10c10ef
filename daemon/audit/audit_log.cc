// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit/audit_log.h"

#include <utility>

#include "absl/time/clock.h"
#include "common/start_thread.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

// A few at a time, since no thread can record while they are copied.
constexpr size_t kAtOnce = 32;

}  // namespace

AuditLog::AuditLog(std::unique_ptr<AuditOutput> output, AuditLogOptions options)
    : output_(std::move(output)),
      options_(options),
      ring_(options.ring),
      filter_(&ring_, options.filter) {}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Start(std::unique_ptr<AuditOutput> output,
                                                          AuditLogOptions options) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(output), options));
  absl::StatusOr<std::thread> thread = gpumem::StartThread([it = log.get()] { it->Run(); });
  if (!thread.ok()) return thread.status();
  log->thread_ = *std::move(thread);
  return log;
}

AuditLog::~AuditLog() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  ring_.EndWaits();
  if (thread_.joinable()) thread_.join();
}

void AuditLog::Reopen() {
  if (output_ != nullptr) output_->Reopen();
}

absl::Status AuditLog::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

bool AuditLog::EndsWithin(absl::Duration time) const {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&ends_), time);
  return ends_;
}

void AuditLog::Run() {
  uint64_t from = 1;
  while (true) {
    const bool ends = EndsWithin(absl::ZeroDuration());
    filter_.Flush(ends ? absl::InfiniteFuture() : absl::Now());
    const AuditRing::Batch batch = ring_.Read(from, kAtOnce);
    from = batch.next;
    if (batch.missed > 0 &&
        !Write({.time = absl::Now(), .event = AuditEvent::kMissed, .count = batch.missed})) {
      return;
    }
    for (const AuditRecord& record : batch.records) {
      if (!Write(record)) return;
    }
    if (batch.records.size() == kAtOnce) continue;
    if (!batch.records.empty()) {
      EndsWithin(options_.pause);
    } else if (ends) {
      return;
    } else {
      ring_.Await(from, filter_.NextFlush());
    }
  }
}

bool AuditLog::Write(const AuditRecord& record) {
  if (output_ == nullptr) return true;
  while (true) {
    const absl::Status written = output_->Write(record);
    bool news = false;
    {
      absl::MutexLock lock(&mutex_);
      news = written.ok() != status_.ok();
      status_ = written;
    }
    if (news && written.ok()) spdlog::info("the audit is written again");
    if (news && !written.ok()) {
      spdlog::error("{}; records wait in memory until there is no room for more",
                    std::string(written.message()));
    }
    if (written.ok()) return true;
    // Each further record could take as long to fail.
    if (EndsWithin(options_.retry)) return false;
  }
}

}  // namespace gpumemd
