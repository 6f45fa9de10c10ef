// SPDX-License-Identifier: Apache-2.0
// Programs under the preload, with the plug-in that speaks to a real gpumemd. The daemon's host
// backend stands in for the fake driver's GPUs.
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpumem/client.h"
#include "tests/preload/run_preloaded.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::preload {
namespace {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;

class BrokerTest : public PreloadTest {
 protected:
  void SetUp() override {
    PreloadTest::SetUp();
    if (IsSkipped()) return;
    auto daemon = DaemonProcess::Start({.config = "[host]\ndevices = 2\ndevice_bytes = \"1GiB\"\n"
                                                  "[tenant_defaults]\nlimit = \"288MiB\"\n"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = daemon_->Connect();
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    std::string& folders = environment["LD_LIBRARY_PATH"];
    const std::string library = Path("LIBGPUMEM");
    absl::StrAppend(&folders, ":", library.substr(0, library.rfind('/')));
    environment["GPUMEM_PRELOAD_ACCOUNTANT"] = Path("BROKER_ACCOUNTANT");
    environment["GPUMEM_PRELOAD_CONTEXT"] = std::to_string(16 * kMiB);  // of the fake driver
    environment["GPUMEM_RUNTIME_DIR"] = daemon_->runtime_dir();
    environment["FAKE_CUDA_DEVICES"] = "2";
    environment["FAKE_CUDA_HOST_UUIDS"] = "1";
  }

  // Of the tenant on the first device.
  DeviceUsage Usage() {
    const auto usage = client_->GetUsage();
    EXPECT_TRUE(usage.ok()) << usage.status();
    return usage.ok() ? usage->devices.at(0) : DeviceUsage();
  }
  void ExpectAllBack() {
    EXPECT_TRUE(Eventually([&] { return Usage().charged_bytes == 0; })) << Usage().charged_bytes;
  }
  std::vector<std::string> Command(const std::string& program) {
    // The test's parent process may have other preloads.
    std::vector<std::string> command = {"/usr/bin/env", "-i"};
    for (const auto& [name, value] : environment) command.push_back(absl::StrCat(name, "=", value));
    command.push_back(absl::StrCat("LD_PRELOAD=", Path("PRELOAD")));
    command.push_back(program);
    return command;
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
};

class BrokerViaTest : public BrokerTest, public ::testing::WithParamInterface<Via> {};
INSTANTIATE_TEST_SUITE_P(Via, BrokerViaTest, ::testing::Values(Via::kPreload, Via::kInjection),
                         NameOf);

TEST_P(BrokerViaTest, TheTenantsLimitHoldsForEachWayOfAllocating) {
  if (GetParam() == Via::kInjection && SkipsInjection()) return;
  for (const char* way : {"alloc", "managed", "vmm", "async", "pool", "node", "capture", "array"}) {
    SCOPED_TRACE(way);
    const Finished run = Run({Path("WAYS_DLSYM"), way, std::to_string(32 * kMiB)}, GetParam());
    ASSERT_EQ(run.status, 0) << run.errors;
    EXPECT_EQ(run.value("device_total"), std::to_string(288 * kMiB));
    EXPECT_EQ(run.values("got"), (std::vector<std::string>{"8", "8"})) << run.output;
    EXPECT_EQ(run.values("code"), (std::vector<std::string>{"2", "2"})) << run.output;
    EXPECT_EQ(run.values("total"), (std::vector<std::string>(2, std::to_string(288 * kMiB))));
    EXPECT_EQ(run.values("free"), (std::vector<std::string>(2, std::to_string(16 * kMiB))));
    EXPECT_LE(Usage().peak_bytes, 288 * kMiB);
    ExpectAllBack();
  }
  EXPECT_EQ(Usage().peak_bytes, 272 * kMiB) << "eight pieces and the context";
}

TEST_F(BrokerTest, ProcessesOfOneTenantNeverGetMoreThanItsLimitTogether) {
  std::string script;
  for (int i = 0; i < 6; ++i) {
    absl::StrAppend(&script, Path("WAYS_DLSYM"), " alloc ", 24 * kMiB, " & ");
  }
  for (int round = 0; round < 3; ++round) {
    const Finished run = Run({"/bin/sh", "-c", script + "wait"});
    EXPECT_EQ(run.status, 0) << run.errors;
  }
  EXPECT_LE(Usage().peak_bytes, 288 * kMiB);
  EXPECT_GE(Usage().peak_bytes, 240 * kMiB);
  ExpectAllBack();
}

TEST_F(BrokerTest, MemoryOfAKilledProcessComesBack) {
  for (int round = 0; round < 5; ++round) {
    std::vector<std::string> command = Command(Path("HOLDER"));
    command.push_back(std::to_string(200 * kMiB));
    Child holder(command);
    ASSERT_TRUE(Eventually([&] { return Usage().charged_bytes == 216 * kMiB; }));
    // Not enough for a second one.
    const Finished refused = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(64 * kMiB)});
    EXPECT_EQ(refused.values("got"), (std::vector<std::string>{"0", "0"})) << refused.output;
    holder.Signal(SIGKILL);
    holder.Wait();
    ExpectAllBack();
  }
}

TEST_F(BrokerTest, WithoutADaemonAProgramGetsNoMemoryAndIsToldWhy) {
  environment["GPUMEM_RUNTIME_DIR"] = "/nonexistent";
  const Finished run = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(kMiB)});
  EXPECT_NE(run.status, 0);
  EXPECT_NE(run.errors.find("gpumem: "), std::string::npos) << run.errors;
}

TEST_F(BrokerTest, ASessionIsOfTheProgramsName) {
  std::vector<std::string> command = Command(Path("HOLDER"));
  command.push_back(std::to_string(kMiB));
  Child holder(command);
  ASSERT_TRUE(Eventually([&] { return Usage().charged_bytes > 16 * kMiB; }));
  EXPECT_EQ(client_->GetUsage()->sessions, 2u);
}

}  // namespace
}  // namespace gpumem::preload
