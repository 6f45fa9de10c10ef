// SPDX-License-Identifier: Apache-2.0
// Work on a GPU that a test can hold back, and whose outcome it can read.
#pragma once

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/cuda/context.h"
#include "gpumem/pool.h"

namespace gpumem::testing {

// The per-thread default stream of the thread that names it.
inline Stream PerThreadStream() { return reinterpret_cast<Stream>(CU_STREAM_PER_THREAD); }

// Work on one GPU, in its primary context. A driver error fails the test, with its message.
// Thread-safe. The destructor waits for all work.
class GpuWork {
 public:
  explicit GpuWork(const std::string& device_uuid);
  ~GpuWork();
  GpuWork(const GpuWork&) = delete;
  GpuWork& operator=(const GpuWork&) = delete;

  // Ended with this, unless EndStream() does it before.
  Stream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING);
  void EndStream(Stream stream);

  // Pinned words that the GPU can use, all zero; and GPU memory that no pool knows. Both end with
  // this. To be had before work is held back: the driver may wait for it.
  uint32_t* NewWords(size_t count);
  void* NewMemory(uint64_t bytes);

  // Submitted to the stream. `bytes`: a multiple of 4.
  void Set(void* data, uint32_t value, uint64_t bytes, Stream stream);
  void CopyWord(uint32_t* to, const void* from, Stream stream);
  // Makes later work on `waiting` come after the work submitted to `awaited`, by an event.
  void MakeWait(Stream waiting, Stream awaited);

  bool IsDone(Stream stream);
  void Synchronize(Stream stream);
  void SynchronizeAll();

  // OK where every word of it is `value`; DATA_LOSS with the first that is not.
  absl::Status Check(const void* data, uint32_t value, uint64_t bytes);

  void BeginCapture(Stream stream, CUstreamCaptureMode mode);

 private:
  friend class Hold;
  friend class Graph;
  static constexpr size_t kMostHolds = 16;

  template <typename Work>
  void Do(const char* what, Work work) const;

  const CudaDriver& driver_;
  const std::shared_ptr<const CudaContext> context_;
  CUmodule module_ = nullptr;
  CUfunction hold_ = nullptr;
  uint32_t* hold_words_ = nullptr;  // kMostHolds
  std::atomic<size_t> holds_{0};    // that there were
  absl::Mutex mutex_;
  std::vector<CUstream> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t*> words_ ABSL_GUARDED_BY(mutex_);
  std::vector<CUdeviceptr> memory_ ABSL_GUARDED_BY(mutex_);
};

// Holds back work submitted to the stream after its construction, until Release() or the end of its
// scope. For a per-thread default stream, that of the constructing thread. If a call waits for work
// that is held back, the test fails after a while instead of hanging.
//
// Put no copy on a held stream as long as another stream must overtake it with copies: they may
// share a queue.
class Hold {
 public:
  Hold(GpuWork& gpu, Stream stream);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void Release();

 private:
  void Open();

  uint32_t* const word_;
  absl::Notification released_;
  std::thread watchdog_;
};

// The work captured on a stream since BeginCapture().
class Graph {
 public:
  // Ends the capture.
  Graph(GpuWork& gpu, Stream stream);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // OK if the capture was valid to its end, and can be launched.
  const absl::Status& status() const { return status_; }
  // Launches the graph; does nothing if the capture was not valid.
  void Launch(Stream stream);

 private:
  GpuWork& gpu_;
  absl::Status status_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

}  // namespace gpumem::testing

#endif
