// SPDX-License-Identifier: Apache-2.0
#include "tests/preload/with_daemon.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumem::preload {

using testing::DaemonProcess;
using testing::Eventually;

void DaemonTest::StartDaemon(const std::string& config, bool cuda) {
  if (cuda) {
    // For daemons alone: this process has started already, and looks for no library.
    setenv("LD_LIBRARY_PATH", environment["LD_LIBRARY_PATH"].c_str(), 1);
    setenv("FAKE_CUDA_MEMORY", environment["FAKE_CUDA_MEMORY"].c_str(), 1);
    setenv("FAKE_CUDA_DEVICES", environment["FAKE_CUDA_DEVICES"].c_str(), 1);
  } else {
    environment["FAKE_CUDA_HOST_UUIDS"] = "1";
  }
  auto daemon = DaemonProcess::Start({.backend = cuda ? "cuda" : "host", .config = config});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  daemon_ = *std::move(daemon);
  auto client = daemon_->Connect();
  ASSERT_TRUE(client.ok()) << client.status();
  client_ = *std::move(client);
  const std::string library = Path("LIBGPUMEM");
  absl::StrAppend(&environment["LD_LIBRARY_PATH"], ":", library.substr(0, library.rfind('/')));
  environment["GPUMEM_PRELOAD_ACCOUNTANT"] = Path("BROKER_ACCOUNTANT");
  environment["GPUMEM_PRELOAD_LIBRARY"] = Path("PRELOAD");
  environment["GPUMEM_PRELOAD_CONTEXT"] = std::to_string(16 * kMiB);  // of the fake driver
  environment["GPUMEM_RUNTIME_DIR"] = daemon_->runtime_dir();
}

DeviceUsage DaemonTest::Usage() {
  const auto usage = client_->GetUsage();
  EXPECT_TRUE(usage.ok()) << usage.status();
  return usage.ok() ? usage->devices.at(0) : DeviceUsage();
}

void DaemonTest::ExpectAllBack() {
  // Freed memory may stay with the tenant, for its next process.
  EXPECT_TRUE(Eventually([&] { return Usage().leased_bytes == 0; })) << Usage().leased_bytes;
}

std::vector<std::string> DaemonTest::Plain(const std::vector<std::string>& command) const {
  // The test's parent process may have other preloads.
  std::vector<std::string> whole = {"/usr/bin/env", "-i"};
  for (const auto& [name, value] : environment) whole.push_back(absl::StrCat(name, "=", value));
  whole.insert(whole.end(), command.begin(), command.end());
  return whole;
}

std::vector<std::string> DaemonTest::Preloaded(const std::vector<std::string>& command,
                                               Via via) const {
  const char* const variable = via == Via::kInjection ? "CUDA_INJECTION64_PATH=" : "LD_PRELOAD=";
  std::vector<std::string> whole = Plain({absl::StrCat(variable, Path("PRELOAD"))});
  whole.insert(whole.end(), command.begin(), command.end());
  return whole;
}

Finished DaemonTest::Ctl(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), Path("GPUMEMCTL"));
  return Run(std::move(arguments), Via::kNone);
}

}  // namespace gpumem::preload
