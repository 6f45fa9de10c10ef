// SPDX-License-Identifier: Apache-2.0
// A connection's view of its tenant's memory: the page that the daemon offers
// (common/memory_page.h) and the devices that it is about.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/memory_page.h"

namespace gpumem::internal {

class MemoryView {
 public:
  struct Page {
    std::unique_ptr<MemoryPageReader> reader;
    std::vector<std::string> device_uuids;  // in the order of the page
  };

  MemoryView() = default;
  MemoryView(const MemoryView&) = delete;
  MemoryView& operator=(const MemoryView&) = delete;

  // Returns the figures of a device; nullopt without a page, or if that has none. Takes no lock.
  std::optional<MemoryFigures> Read(absl::string_view device_uuid) const;

  // True if the caller is to ask for the page, and to call Set or Refused. One caller at a time.
  bool BeginToAsk();
  void Set(Page page);
  // The daemon gave no page. It is asked again after `pause`.
  void Refused(absl::Duration pause);

 private:
  std::atomic<const Page*> page_ = nullptr;  // owned_, once it is there
  absl::Mutex mutex_;
  std::unique_ptr<const Page> owned_ ABSL_GUARDED_BY(mutex_);
  bool asking_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time ask_after_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace gpumem::internal
