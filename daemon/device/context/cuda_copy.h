// SPDX-License-Identifier: Apache-2.0
// Copies between a GPU's segments of kind vmm and the host tier.
#pragma once

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/context.h"
#include "daemon/device/context/context.h"
#include "daemon/device/context/tier_file.h"

namespace gpumemd {

// While one batch is copied, the next one is imported and mapped, and the one before is unmapped.
//
// The windows of the tier's file that a batch touches are registered with the driver, and stay so
// until another file comes: the driver registers some 30 GB/s and copies 55. Each GiB registered
// costs the GPU 2 MiB. If the driver has no memory for that, it copies from unregistered memory, at
// a quarter of the speed.
//
// Not thread-safe. Statuses are the driver's (CudaDriver::Error) or INTERNAL. Not to be destroyed:
// the end of its process frees everything, faster than calls can.
class CudaCopy {
 public:
  // `stream` is the context's.
  CudaCopy(std::shared_ptr<const gpumem::CudaContext> context, CUstream stream);
  ~CudaCopy();
  CudaCopy(const CudaCopy&) = delete;
  CudaCopy& operator=(const CudaCopy&) = delete;

  // As Context's.
  absl::Status Start(const CopyBatch& batch);
  absl::Status Finish();

 private:
  class Segments;

  // All of these run with the context current.
  absl::Status StartHere(const CopyBatch& batch);
  absl::Status FinishHere();
  absl::Status UseFile(int fd);
  // Registers the windows of the batch that are not.
  absl::Status Register(const CopyBatch& batch);
  // Queues the copies of the batch, whose segments are mapped one after another from `base`.
  absl::Status Queue(const CopyBatch& batch, CUdeviceptr base);
  CUresult QueueOne(CopyDirection direction, CUdeviceptr at, char* in_tier, uint64_t bytes);

  const std::shared_ptr<const gpumem::CudaContext> context_;
  const gpumem::CudaDriver& driver_;
  CUstream stream_;
  std::unique_ptr<TierFile> file_;
  std::vector<bool> registered_;         // by window of file_
  std::unique_ptr<Segments> in_flight_;  // the last batch; null once it is done
};

}  // namespace gpumemd

#endif
