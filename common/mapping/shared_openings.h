// SPDX-License-Identifier: Apache-2.0
// Memory that this process has opened by export data, once for all users.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/export_data.h"
#include "common/mapping/mapping.h"

namespace gpumem {

// Another process's memory, opened. The destructor closes it.
class Opening {
 public:
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
  virtual ~Opening() = default;

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 protected:
  Opening(void* data, uint64_t bytes) : data_(data), bytes_(bytes) {}

 private:
  void* data_;
  uint64_t bytes_;
};

// Thread-safe. Opens and closes one at a time, so that no memory is opened while it is being
// closed.
class SharedOpenings : public std::enable_shared_from_this<SharedOpenings> {
 public:
  using Open = absl::FunctionRef<absl::StatusOr<std::unique_ptr<Opening>>()>;

  // Returns a share of the memory of `key`: already open, or opened by `open`.
  //   INVALID_ARGUMENT  it is not of `bytes` bytes
  //   and the statuses of `open`
  absl::StatusOr<std::unique_ptr<Mapping>> Get(const ExportData& key, uint64_t bytes, Open open);

 private:
  class Share;
  struct Entry {
    std::unique_ptr<Opening> opening;
    int shares = 0;
  };

  void Drop(const ExportData& key);

  absl::Mutex mutex_;
  std::map<ExportData, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

// Rejects options that neither CUDA's IPC handles nor its memory pools support.
absl::Status CheckOpenOptions(const MapOptions& options);

}  // namespace gpumem
