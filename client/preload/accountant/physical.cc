// SPDX-License-Identifier: Apache-2.0
#include "client/preload/accountant/physical.h"

#include <fcntl.h>
#include <unistd.h>

#include <memory>

namespace gpumem::preload {
namespace {

// True for a refusal that the driver's memory is not subject to.
bool IsOfSegmentsAlone() {
  gpumem_denial denial = {.struct_size = sizeof(denial)};
  if (gpumem_last_denial(&denial) != GPUMEM_OK) return false;
  switch (denial.cause) {
    case GPUMEM_CAUSE_MAX_SEGMENTS:
    case GPUMEM_CAUSE_DAEMON_LIMIT:
      return true;
    default:
      return false;
  }
}

int AnswerTo(int status) {
  switch (status) {
    case GPUMEM_OK:
      return GPUMEM_ACCOUNTANT_OK;
    case GPUMEM_CANCELLED:
      return GPUMEM_ACCOUNTANT_SUSPENDED;
    case GPUMEM_INVALID_ARGUMENT:  // more than the device has
      return GPUMEM_ACCOUNTANT_NO_MEMORY;
    case GPUMEM_RESOURCE_EXHAUSTED:
      return IsOfSegmentsAlone() ? GPUMEM_ACCOUNTANT_UNLIMITED : GPUMEM_ACCOUNTANT_NO_MEMORY;
    case GPUMEM_UNIMPLEMENTED:  // a device without memory of this kind
    case GPUMEM_FAILED_PRECONDITION:
      return GPUMEM_ACCOUNTANT_UNLIMITED;
    default:
      return GPUMEM_ACCOUNTANT_GONE;
  }
}

}  // namespace

int PhysicalMemory::Create(const std::string& device_uuid, uint64_t bytes, bool may_wait,
                           absl::FunctionRef<bool()> make_room, GpumemPhysical** physical,
                           uint64_t* address) {
  int status = GPUMEM_OK;
  if (may_wait && wait_ms_ == 0) return GPUMEM_ACCOUNTANT_NO_MEMORY;
  gpumem_segment* segment = may_wait ? Await(device_uuid, bytes, &status)
                                     : Acquire(device_uuid, bytes, 0, nullptr, &status);
  int answer = AnswerTo(status);
  if (answer == GPUMEM_ACCOUNTANT_NO_MEMORY && !may_wait && make_room()) {
    segment = Acquire(device_uuid, bytes, 0, nullptr, &status);
    answer = AnswerTo(status);
  }
  if (answer != GPUMEM_ACCOUNTANT_OK) return answer;
  gpumem_segment_info info = {.struct_size = sizeof(info)};
  if (gpumem_segment_get_info(segment, &info) != GPUMEM_OK || info.bytes != bytes) {
    // The daemon's granularity is not the driver's.
    (void)gpumem_segment_release(segment);
    return GPUMEM_ACCOUNTANT_UNLIMITED;
  }
  *physical = new GpumemPhysical{.device = device_uuid, .bytes = bytes, .segment = segment};
  *address = reinterpret_cast<uintptr_t>(info.data);
  absl::MutexLock lock(&mutex_);
  all_.insert(*physical);
  held_[device_uuid] += bytes;
  return GPUMEM_ACCOUNTANT_OK;
}

gpumem_segment* PhysicalMemory::Acquire(const std::string& device_uuid, uint64_t bytes,
                                        uint64_t wait_ms, const gpumem_cancel_token* cancel,
                                        int* status) {
  gpumem_acquire_options options = {.struct_size = sizeof(options)};
  options.bytes = bytes;
  options.device = device_uuid.c_str();
  options.kind = GPUMEM_KIND_VMM;
  options.wait_ms = wait_ms;
  options.cancel = cancel;
  gpumem_segment* segment = nullptr;
  *status = gpumem_client_acquire(client_, &options, &segment);
  return segment;
}

gpumem_segment* PhysicalMemory::Await(const std::string& device_uuid, uint64_t bytes, int* status) {
  gpumem_cancel_token* token = nullptr;
  *status = gpumem_cancel_token_create(&token);
  if (*status != GPUMEM_OK) return nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (suspended_) (void)gpumem_cancel_token_cancel(token);
    awaiting_.insert(token);
  }
  gpumem_segment* segment = Acquire(device_uuid, bytes, wait_ms_, token, status);
  bool suspended = false;
  {
    absl::MutexLock lock(&mutex_);
    awaiting_.erase(token);
    suspended = suspended_;
  }
  (void)gpumem_cancel_token_destroy(token);
  if (segment == nullptr || !suspended) return segment;
  // Served at the same moment.
  (void)gpumem_segment_release(segment);
  *status = GPUMEM_CANCELLED;
  return nullptr;
}

void PhysicalMemory::Release(GpumemPhysical* physical) {
  const std::unique_ptr<GpumemPhysical> owned(physical);
  {
    absl::MutexLock lock(&mutex_);
    all_.erase(physical);
    held_[physical->device] -= physical->bytes;
  }
  // On an error a lease ends with the next daemon's reconciliation, or with the process.
  if (physical->kept != nullptr) (void)gpumem_segment_release_async(physical->kept);
  (void)gpumem_segment_release_async(physical->segment);
}

gpumem_client* PhysicalMemory::Keeper() {
  if (keeper_ != nullptr) return keeper_;
  gpumem_connect_options options = {.struct_size = sizeof(options)};
  options.name = "exported memory";
  options.no_wait = 1;
  if (gpumem_client_connect(&options, &keeper_) != GPUMEM_OK) keeper_ = nullptr;
  return keeper_;
}

void PhysicalMemory::PinLocked(GpumemPhysical* physical) {
  if (!physical->pinned) {
    // Others may have it by ways that the daemon does not know, such as a dma-buf. A segment whose
    // descriptor was asked for is never given to another process.
    int borrowed = -1;
    (void)gpumem_segment_get_fd(physical->segment, &borrowed);
  }
  physical->pinned = true;
  if (physical->kept != nullptr || Keeper() == nullptr) return;
  // Without the second lease the first one is not suspended at all.
  const char* ticket = nullptr;
  if (gpumem_segment_share(physical->segment, GPUMEM_SCOPE_TENANT, &ticket) != GPUMEM_OK ||
      gpumem_client_open(keeper_, ticket, nullptr, &physical->kept) != GPUMEM_OK) {
    physical->kept = nullptr;
  }
}

void PhysicalMemory::Pin(GpumemPhysical* physical) {
  absl::MutexLock lock(&mutex_);
  PinLocked(physical);
}

bool PhysicalMemory::Export(GpumemPhysical* physical, int* fd) {
  absl::MutexLock lock(&mutex_);
  PinLocked(physical);
  int borrowed = -1;
  gpumem_segment* const of = physical->kept != nullptr ? physical->kept : physical->segment;
  if (gpumem_segment_get_fd(of, &borrowed) != GPUMEM_OK) return false;
  // Closed in programs that the process starts, as the driver's descriptors are.
  *fd = fcntl(borrowed, F_DUPFD_CLOEXEC, 0);
  return *fd >= 0;
}

uint64_t PhysicalMemory::HeldOn(const std::string& device_uuid) {
  absl::MutexLock lock(&mutex_);
  const auto found = held_.find(device_uuid);
  return found == held_.end() ? 0 : found->second;
}

std::vector<gpumem_segment*> PhysicalMemory::Movable(bool suspended) {
  std::vector<gpumem_segment*> segments;
  absl::MutexLock lock(&mutex_);
  for (const GpumemPhysical* const physical : all_) {
    int is_suspended = 0;
    if (physical->pinned && physical->kept == nullptr) continue;
    if (gpumem_segment_is_suspended(physical->segment, &is_suspended) != GPUMEM_OK) continue;
    if ((is_suspended != 0) == suspended) segments.push_back(physical->segment);
  }
  return segments;
}

int PhysicalMemory::Suspend() {
  {
    absl::MutexLock lock(&mutex_);
    suspended_ = true;
    for (gpumem_cancel_token* const token : awaiting_) (void)gpumem_cancel_token_cancel(token);
  }
  const std::vector<gpumem_segment*> segments = Movable(/*suspended=*/false);
  if (segments.empty()) return GPUMEM_OK;
  gpumem_suspend_options options = {.struct_size = sizeof(options)};
  options.context = this;
  options.quiesce = [](void* self) -> int {
    return static_cast<PhysicalMemory*>(self)->preload_.detach_physical() != 0 ? GPUMEM_OK
                                                                               : GPUMEM_INTERNAL;
  };
  return gpumem_client_suspend(client_, segments.data(), segments.size(), &options);
}

int PhysicalMemory::Resume(uint64_t wait_ms) {
  const std::vector<gpumem_segment*> segments = Movable(/*suspended=*/true);
  if (!segments.empty()) {
    gpumem_resume_options options = {.struct_size = sizeof(options), .wait_ms = wait_ms};
    const int status = gpumem_client_resume(client_, segments.data(), segments.size(), &options);
    if (status != GPUMEM_OK) return status;
  }
  if (preload_.attach_physical() == 0) return GPUMEM_INTERNAL;
  absl::MutexLock lock(&mutex_);
  suspended_ = false;
  return GPUMEM_OK;
}

}  // namespace gpumem::preload
