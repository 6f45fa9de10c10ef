// SPDX-License-Identifier: Apache-2.0
// The requirements of the broker on every Device, for each kind of memory, as suites of tests:
//   DeviceContract   what it makes, refuses and gives back
//   SharingContract  what processes do with its memory, for each identity of a process
//   ContextContract  kinds that live in a context: its loss, its end, its pools
//
// A program that links this library and instantiates them has them. Its main() first calls
// RunAsContextProcess with MakeFaultyContext (context_fault.h), then RunAsContractPeer
// (contract_peer.h).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/testing/contract_peer.h"

namespace gpumemd {

struct ContractParam {
  std::string name;
  Kind kind = Kind::kVmm;
  PeerIdentity identity = PeerIdentity::kSameUser;
  // Opens a separate device for each test; the folder is that of the host backend's sockets.
  // UNAVAILABLE and UNIMPLEMENTED skip the test, with the sentence.
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const std::string& runtime_dir)> open;
  // True if no other process takes memory from the device and all its capacity can be handed out;
  // then sizes are exact to the byte. False for a GPU: the driver takes its part, and so do other
  // processes.
  bool exact = false;
  // Of kind host: the ordinal of the GPU that uses it. Absent on the host backend.
  std::optional<int> user = std::nullopt;
};

// 64 MiB of host memory: every kind that the host backend makes.
std::vector<ContractParam> HostContracts();
// The `ordinal`-th GPU that this process sees: every kind of CUDA. Its tests fill the GPU up: run
// them on an unused one.
std::vector<ContractParam> CudaContracts(int ordinal);

// Returns each of them for peers of every identity.
std::vector<ContractParam> ForEachIdentity(const std::vector<ContractParam>& params);
// Those with a context.
std::vector<ContractParam> OnlyContextBound(std::vector<ContractParam> params);

inline std::string ContractName(const testing::TestParamInfo<ContractParam>& info) {
  return info.param.name;
}
inline void PrintTo(const ContractParam& param, std::ostream* out) { *out << param.name; }

// All suites, for `params`.
#define GPUMEM_INSTANTIATE_DEVICE_CONTRACT(Name, params)                                       \
  INSTANTIATE_TEST_SUITE_P(Name, DeviceContract, testing::ValuesIn(params), ContractName);     \
  INSTANTIATE_TEST_SUITE_P(Name, SharingContract, testing::ValuesIn(ForEachIdentity(params)),  \
                           ContractName);                                                      \
  INSTANTIATE_TEST_SUITE_P(Name, ContextContract, testing::ValuesIn(OnlyContextBound(params)), \
                           ContractName)

// The properties of a kind on every backend.
struct KindRules {
  bool by_descriptor = false;  // fd() shares it, else export_data()
  bool in_ranges = false;      // many are mapped in one range of addresses
  bool read_only = false;      // a mapping may be
  bool counted = false;        // opened twice in a process, it is at the same address
};
KindRules RulesOf(Kind kind);

class DeviceContract : public testing::TestWithParam<ContractParam> {
 protected:
  DeviceContract();
  ~DeviceContract() override;
  void SetUp() override;

  Device& device() { return *device_; }
  const DeviceInfo& info() { return device_->info(); }
  bool exact() const { return GetParam().exact; }
  Kind kind() const { return GetParam().kind; }
  KindRules rules() const { return RulesOf(kind()); }
  // Returns the granularity of the tested kind.
  uint64_t granule() { return GranularityOf(info(), kind()); }
  // Returns `bytes`, rounded down to granules.
  uint64_t WholeGranules(uint64_t bytes) { return bytes - bytes % granule(); }

  // Returns a request for `bytes` of the tested kind.
  CreateSpec Spec(uint64_t bytes, const std::string& tenant = "tenant") const;
  // Creates `granules` granules. Null after a failure, which fails the test.
  std::unique_ptr<Allocation> Create(uint64_t granules, const std::string& tenant = "tenant");
  uint64_t FreeBytes();
  // Blocks until the driver has at least `bytes` free: it may clear returned memory first. False if
  // that takes too long.
  bool AwaitFreeBytes(uint64_t bytes);
  // As a client is told of it.
  SharedMemory Share(const Allocation& allocation, uint64_t granules);
  // Starts a peer of the tested identity. Null after a failure, which fails the test.
  std::unique_ptr<ContractPeer> StartPeer();
  const std::string& runtime_dir() const { return runtime_dir_; }

 private:
  std::string runtime_dir_;
  std::unique_ptr<Device> device_;
};

class SharingContract : public DeviceContract {
 protected:
  void SetUp() override;

  bool InOneProcess() const { return GetParam().identity == PeerIdentity::kThisProcess; }
};

class ContextContract : public DeviceContract {};

}  // namespace gpumemd
