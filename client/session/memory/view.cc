// SPDX-License-Identifier: Apache-2.0
#include "client/session/memory/view.h"

#include <utility>

#include "absl/time/clock.h"

namespace gpumem::internal {

std::optional<MemoryFigures> MemoryView::Read(absl::string_view device_uuid) const {
  const Page* const page = page_.load(std::memory_order_acquire);
  if (page == nullptr) return std::nullopt;
  for (size_t i = 0; i < page->device_uuids.size(); ++i) {
    if (page->device_uuids[i] == device_uuid) return page->reader->Read(i);
  }
  return std::nullopt;
}

bool MemoryView::BeginToAsk() {
  absl::MutexLock lock(&mutex_);
  if (asking_ || owned_ != nullptr || absl::Now() < ask_after_) return false;
  asking_ = true;
  return true;
}

void MemoryView::Set(Page page) {
  absl::MutexLock lock(&mutex_);
  asking_ = false;
  owned_ = std::make_unique<const Page>(std::move(page));
  page_.store(owned_.get(), std::memory_order_release);
}

void MemoryView::Refused(absl::Duration pause) {
  absl::MutexLock lock(&mutex_);
  asking_ = false;
  ask_after_ = absl::Now() + pause;
}

}  // namespace gpumem::internal
