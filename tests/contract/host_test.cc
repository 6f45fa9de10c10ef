// SPDX-License-Identifier: Apache-2.0
// The contract on the host backend: every path but the CUDA calls.
#include <optional>

#include "tests/contract/contract.h"
#include "tests/contract/instantiate.h"

namespace gpumem::contract {

GPUMEM_INSTANTIATE_CONTRACT(Host, "host");

}  // namespace gpumem::contract

int main(int argc, char** argv) {
  if (const std::optional<int> status = gpumem::contract::RunAsActor(argc, argv)) return *status;
  ::testing::InitGoogleMock(&argc, argv);
  const int status = RUN_ALL_TESTS();
  gpumem::contract::ContractTest::StopDaemons();
  return status;
}
