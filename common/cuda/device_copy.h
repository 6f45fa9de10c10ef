// SPDX-License-Identifier: Apache-2.0
// Reads and writes mapped memory from the host: for tools, demos and tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gpumem {

// Copies between ordinary host memory and mapped memory of one device. Every copy is complete on
// return: another process sees its effect.
//
// Thread-safe. Restores the calling thread's current CUDA context. Statuses of the copying calls:
// INTERNAL, with the driver's name of the error.
class DeviceCopier {
 public:
  // For memory mapped by MapHost.
  static std::unique_ptr<DeviceCopier> ForHost();

  // Returns a copier for memory mapped by MapCuda for the same device. Keeps that device's primary
  // CUDA context alive, which costs a process some 500 MiB of GPU memory, as any use of the CUDA
  // runtime does.
  //   UNAVAILABLE         this process has no usable CUDA driver
  //   NOT_FOUND           this process does not see the device
  //   RESOURCE_EXHAUSTED  no memory for a context
  static absl::StatusOr<std::unique_ptr<DeviceCopier>> ForCuda(const std::string& device_uuid);

  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;
  virtual ~DeviceCopier() = default;

  virtual absl::Status CopyIn(void* mapped, const void* host, uint64_t bytes) = 0;
  virtual absl::Status CopyOut(void* host, const void* mapped, uint64_t bytes) = 0;
  virtual absl::Status Fill(void* mapped, uint8_t value, uint64_t bytes) = 0;

 protected:
  DeviceCopier() = default;
};

}  // namespace gpumem
