// Work on a GPU that a test can hold back, and whose outcome it can see.
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

// Of one GPU, in its primary context. What the driver refuses fails the test, with its words.
// Thread-safe. Its end waits for all work.
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
  // By an event: what is submitted to `waiting` from now on comes after what `awaited` has.
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

// Holds back what is submitted to the stream from here on, until Release() or the end of its scope;
// for a per-thread default stream, of the thread that makes it. If a call waits for what is held
// back, the test fails after a while instead of hanging.
//
// No copy belongs on a stream that is held, as long as another stream is to get ahead with copies:
// they may share a queue.
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

// What was captured on a stream since BeginCapture().
class Graph {
 public:
  // Ends the capture.
  Graph(GpuWork& gpu, Stream stream);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Whether the capture was valid to its end, and can be launched.
  const absl::Status& status() const { return status_; }
  // Does nothing where it is not.
  void Launch(Stream stream);

 private:
  GpuWork& gpu_;
  absl::Status status_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

}  // namespace gpumem::testing

#endif
