// SPDX-License-Identifier: Apache-2.0
// Programs under the preload, with the plug-in that speaks to a real gpumemd.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpumem/client.h"
#include "tests/preload/run_preloaded.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::preload {

class DaemonTest : public PreloadTest {
 protected:
  // Starts the daemon with its host backend, whose devices have the UUIDs of the fake driver's, or
  // with its CUDA backend on the fake driver.
  void StartDaemon(const std::string& config, bool cuda = false);

  // Returns the usage of the test's tenant on the first device.
  DeviceUsage Usage();
  void ExpectAllBack();

  // Returns a command for Child, with the environment of Run().
  std::vector<std::string> Preloaded(const std::vector<std::string>& command,
                                     Via via = Via::kPreload) const;
  std::vector<std::string> Plain(const std::vector<std::string>& command) const;

  // Runs gpumemctl.
  Finished Ctl(std::vector<std::string> arguments);

  std::unique_ptr<testing::DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
};

}  // namespace gpumem::preload
