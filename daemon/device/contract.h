// What every Device owes the broker, as one suite of tests.
//
// A program that links this library and instantiates DeviceContract has the suite; its
// main() first calls RunAsContractPeer (contract_peer.h).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace gpumemd {

struct ContractParam {
  std::string name;
  // A device of its own for each test. UNAVAILABLE skips the test, with the sentence.
  std::function<absl::StatusOr<std::unique_ptr<Device>>()> open;
  // True where nobody else takes memory from the device and its capacity is all there
  // to hand out; then sizes are exact to the byte. False for a GPU: the driver takes its
  // part, and so do others.
  bool exact = false;
};

// 64 MiB of host memory.
ContractParam HostContract();
// The `ordinal`-th GPU that this process sees. Its tests fill the GPU up: run them on
// one that nobody needs.
ContractParam CudaContract(int ordinal);

inline std::string ContractName(const testing::TestParamInfo<ContractParam>& info) {
  return info.param.name;
}
inline void PrintTo(const ContractParam& param, std::ostream* out) { *out << param.name; }

class DeviceContract : public testing::TestWithParam<ContractParam> {
 protected:
  void SetUp() override;

  Device& device() { return *device_; }
  const DeviceInfo& info() { return device_->info(); }
  bool exact() const { return GetParam().exact; }

  // Creates `granules` granules; a failure fails the test and returns null.
  std::unique_ptr<Allocation> Create(uint64_t granules);
  uint64_t FreeBytes();
  // Waits until the driver has at least `bytes` free: it may clear memory after it was
  // given back. False where that takes too long.
  bool AwaitFreeBytes(uint64_t bytes);

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace gpumemd
