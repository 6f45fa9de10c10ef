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

// Requests read-ahead of the first `most_bytes` of the files, in their order, until `stopped`.
inline void RequestReadAhead(const Sources& sources, uint64_t most_bytes,
                             const std::atomic<bool>& stopped) {
  // A request blocks until the disk's queue has room for it.
  constexpr uint64_t kStepBytes = uint64_t{8} << 20;
  for (const auto& reader : sources.readers) {
    for (uint64_t at = 0; at < reader->bytes() && most_bytes > 0; at += kStepBytes) {
      if (stopped) return;
      if (!reader->IsCached(at)) reader->AskBefore(at + kStepBytes);
      most_bytes -= std::min(most_bytes, kStepBytes);
    }
  }
}

// Does so in a thread while it exists. A new CUDA context takes 0.2 s, in which a disk reads some
// hundred megabytes. It is no more than kMostBytes: a long wait for memory must not fill the page
// cache.
class ReadAhead {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{1} << 30;

  // The readers must outlive this.
  explicit ReadAhead(const Sources& sources)
      : thread_([this, &sources] { RequestReadAhead(sources, kMostBytes, stopped_); }) {}
  ~ReadAhead() {
    stopped_ = true;
    thread_.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

 private:
  std::atomic<bool> stopped_ = false;
  std::thread thread_;  // the last member: it uses the other
};

}  // namespace gpumem::internal
