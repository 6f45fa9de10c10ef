// SPDX-License-Identifier: Apache-2.0
// The tests that need a GPU, in one program that runs on machines without the build's tools:
//
//   gpumem_gpu_test [--gtest_filter=...]
//
// With gpumemd, gpumem-keeper and gpumem_foreign beside it. Without a GPU every test skips itself.
// It fills the GPU's memory: run it on an unused GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "daemon/device/context/process.h"
#include "daemon/device/testing/context_fault.h"
#include "daemon/device/testing/contract.h"
#include "daemon/device/testing/contract_peer.h"
#include "tests/contract/actor.h"
#include "tests/contract/contract.h"
#include "tests/contract/instantiate.h"

namespace gpumemd {
namespace {

GPUMEM_INSTANTIATE_DEVICE_CONTRACT(Gpu0, CudaContracts(0));
GPUMEM_INSTANTIATE_DEVICE_CONTRACT(Gpu1, CudaContracts(1));

}  // namespace
}  // namespace gpumemd

namespace gpumem::contract {

GPUMEM_INSTANTIATE_CONTRACT(Gpu, "cuda");
INSTANTIATE_TEST_SUITE_P(Gpu, PeerSegments,
                         ::testing::Values(Place{"cuda", Kind::kVmm}, Place{"cuda", Kind::kMempool},
                                           Place{"cuda", Kind::kIpc}),
                         PlaceName);

}  // namespace gpumem::contract

int main(int argc, char** argv) {
  if (const std::optional<int> status =
          gpumemd::RunAsContextProcess(argc, argv, gpumemd::MakeFaultyContext)) {
    return *status;
  }
  if (const std::optional<int> status = gpumemd::RunAsContractPeer(argc, argv)) return *status;
  if (const std::optional<int> status = gpumem::contract::RunAsActor(argc, argv)) return *status;
  testing::InitGoogleMock(&argc, argv);
  const int status = RUN_ALL_TESTS();
  gpumem::contract::ContractTest::StopDaemons();
  return status;
}
