// What needs a GPU, in one program that runs where the build's tools are not:
//
//   gpumem_gpu_test [--gtest_filter=...]
//
// Without a GPU every test skips itself. It fills the GPU's memory: run it on one that
// nobody needs.
#include <gtest/gtest.h>

#include <optional>

#include "daemon/device/contract.h"
#include "daemon/device/contract_peer.h"

namespace gpumemd {
namespace {

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceContract, testing::Values(CudaContract(0), CudaContract(1)),
                         ContractName);

}  // namespace
}  // namespace gpumemd

int main(int argc, char** argv) {
  if (const std::optional<int> status = gpumemd::RunAsContractPeer(argc, argv)) return *status;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
