// SPDX-License-Identifier: Apache-2.0
// Has a disk read files before anyone asks for their bytes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "client/files/file_reader.h"
#include "client/files/sources.h"

namespace gpumem::internal {

// From its construction on, a thread requests read-ahead of the files, in their order. It ends
// after kMostBytes of them, so that a long wait for memory does not fill the page cache, and at the
// latest with this object. A new CUDA context takes 0.2 s, in which a disk reads some hundred
// megabytes.
class ReadAhead {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{1} << 30;

  // The readers must outlive this.
  explicit ReadAhead(const Sources& sources) : thread_([this, &sources] { Run(sources); }) {}
  ~ReadAhead() {
    stopped_ = true;
    thread_.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

 private:
  // A request blocks until the disk's queue has room for it: the destructor waits for one.
  static constexpr uint64_t kStepBytes = uint64_t{8} << 20;

  void Run(const Sources& sources) {
    uint64_t left = kMostBytes;
    for (const auto& reader : sources.readers) {
      for (uint64_t at = 0; at < reader->bytes() && left > 0; at += kStepBytes) {
        if (stopped_) return;
        if (!reader->IsCached(at)) reader->AskBefore(at + kStepBytes);
        left -= std::min(left, kStepBytes);
      }
    }
  }

  std::atomic<bool> stopped_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace gpumem::internal
