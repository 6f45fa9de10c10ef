// SPDX-License-Identifier: Apache-2.0
// main() of tests that open devices with kinds mempool and ipc.
#include <gmock/gmock.h>

#include <optional>

#include "daemon/device/context/process.h"

int main(int argc, char** argv) {
  if (const std::optional<int> status = gpumemd::RunAsContextProcess(argc, argv)) return *status;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
