// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/testing/contract.h"

#include <gmock/gmock.h>

#include <optional>

#include "daemon/device/context/process.h"
#include "daemon/device/testing/context_fault.h"
#include "daemon/device/testing/contract_peer.h"

namespace gpumemd {
namespace {

GPUMEM_INSTANTIATE_DEVICE_CONTRACT(Host, HostContracts());
GPUMEM_INSTANTIATE_DEVICE_CONTRACT(Cuda, CudaContracts(0));

}  // namespace
}  // namespace gpumemd

int main(int argc, char** argv) {
  if (const std::optional<int> status =
          gpumemd::RunAsContextProcess(argc, argv, gpumemd::MakeFaultyContext)) {
    return *status;
  }
  if (const std::optional<int> status = gpumemd::RunAsContractPeer(argc, argv)) return *status;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
