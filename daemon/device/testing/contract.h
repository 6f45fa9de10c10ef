// What every Device owes the broker, for each kind of memory, as suites of tests:
//   DeviceContract   what it makes, refuses and gives back
//   SharingContract  what processes do with what it made, for each identity of a process
//   ContextContract  kinds that live in a context: its loss, its end, its pools
//
// A program that links this library and instantiates them has them; its main() first calls
// RunAsContextProcess with MakeFaultyContext (context_fault.h), then RunAsContractPeer
// (contract_peer.h).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
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
  // A device of its own for each test; the folder is that of the host backend's sockets.
  // UNAVAILABLE and UNIMPLEMENTED skip the test, with the sentence.
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const std::string& runtime_dir)> open;
  // True where nobody else takes memory from the device and its capacity is all there
  // to hand out; then sizes are exact to the byte. False for a GPU: the driver takes its
  // part, and so do others.
  bool exact = false;
};

// 64 MiB of host memory: every kind that the host backend makes.
std::vector<ContractParam> HostContracts();
// The `ordinal`-th GPU that this process sees: every kind of CUDA. Its tests fill the GPU up:
// run them on one that nobody needs.
std::vector<ContractParam> CudaContracts(int ordinal);

// Each of them for peers of every identity.
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

// What is true of a kind on every backend.
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
  // What sizes of the tested kind are multiples of.
  uint64_t granule() { return GranularityOf(info(), kind()); }
  // `bytes`, rounded down to granules.
  uint64_t WholeGranules(uint64_t bytes) { return bytes - bytes % granule(); }

  // What Create is asked for `bytes` of the tested kind.
  CreateSpec Spec(uint64_t bytes, const std::string& tenant = "tenant") const;
  // Creates `granules` granules; a failure fails the test and returns null.
  std::unique_ptr<Allocation> Create(uint64_t granules, const std::string& tenant = "tenant");
  uint64_t FreeBytes();
  // Waits until the driver has at least `bytes` free: it may clear memory after it was
  // given back. False where that takes too long.
  bool AwaitFreeBytes(uint64_t bytes);
  // As a client is told of it.
  SharedMemory Share(const Allocation& allocation, uint64_t granules);
  // A peer of the tested identity; a failure fails the test and returns null.
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
