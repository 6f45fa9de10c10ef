#include "daemon/device/contract.h"

#include <gtest/gtest.h>

#include <optional>

#include "daemon/device/contract_peer.h"

namespace gpumemd {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceContract, testing::Values(HostContract()), ContractName);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, testing::Values(CudaContract(0)), ContractName);

}  // namespace
}  // namespace gpumemd

int main(int argc, char** argv) {
  if (const std::optional<int> status = gpumemd::RunAsContractPeer(argc, argv)) return *status;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
