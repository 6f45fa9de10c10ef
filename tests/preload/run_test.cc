// SPDX-License-Identifier: Apache-2.0
// gpumemctl run: programs that know nothing of gpumem, within a quota of their own.
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/preload/with_daemon.h"

namespace gpumem::preload {
namespace {

using testing::Child;
using testing::Eventually;

class RunTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    if (IsSkipped()) return;
    StartDaemon(
        "[host]\ndevice_bytes = \"1GiB\"\n"
        "[tenant_defaults]\nlimit = \"512MiB\"\n");
  }

  std::vector<std::string> Command(const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {Path("GPUMEMCTL"), "run"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  Finished RunIn(const std::vector<std::string>& arguments) {
    return Run(Command(arguments), Via::kNone);
  }
  uint64_t Charged() { return Usage().charged_bytes; }
};

TEST_F(RunTest, HoldsAProgramToItsLimitAndTellsWhatItUsed) {
  const Finished run =
      RunIn({"--limit", "288MiB", "--", Path("WAYS_DLSYM"), "alloc", std::to_string(32 * kMiB)});
  EXPECT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.value("device_total"), std::to_string(288 * kMiB));
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"8", "8"})) << run.output;
  EXPECT_EQ(run.errors,
            "gpumem: ways_dlsym used at most 272.00 MiB of 288.00 MiB on "
            "HOST-00000000-0000-0000-0000-000000000000\n");
  EXPECT_EQ(Charged(), 0u);
}

TEST_F(RunTest, TheDriverCanLoadTheLibraryInstead) {
  if (SkipsInjection()) return;
  // The library is not preloaded: a program without CUDA sees the driver's variable alone.
  const std::string print = "echo preload=$LD_PRELOAD injection=$CUDA_INJECTION64_PATH";
  const Finished told = RunIn({"--via", "injection", "--", "/bin/sh", "-c", print});
  EXPECT_EQ(told.value("preload"), "") << told.output << told.errors;
  EXPECT_EQ(told.value("injection"), Path("PRELOAD"));
  EXPECT_EQ(RunIn({"--via", "preload", "--", "/bin/sh", "-c", print}).value("injection"), "");
  const Finished run = RunIn({"--limit", "288MiB", "--via", "injection", "--", Path("WAYS_PROC"),
                              "async", std::to_string(32 * kMiB)});
  EXPECT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"8", "8"})) << run.output;
  EXPECT_EQ(run.errors,
            "gpumem: ways_proc used at most 272.00 MiB of 288.00 MiB on "
            "HOST-00000000-0000-0000-0000-000000000000\n");
  // Inside another run.
  environment["CUDA_INJECTION64_PATH"] = Path("PRELOAD");
  EXPECT_EQ(RunIn({"--via", "injection", "--", "/bin/true"}).status, 0);
}

TEST_F(RunTest, LeavesAProfilersVariableAlone) {
  if (SkipsInjection()) return;
  environment["CUDA_INJECTION64_PATH"] = "/opt/profiler.so";
  const Finished refused = RunIn({"--via", "injection", "--", "/bin/echo", "started=1"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.output, "");
  EXPECT_NE(refused.errors.find("CUDA_INJECTION64_PATH is set already, to /opt/profiler.so"),
            std::string::npos)
      << refused.errors;
  const Finished run = RunIn({"--", "/bin/sh", "-c", "echo injection=$CUDA_INJECTION64_PATH"});
  EXPECT_EQ(run.value("injection"), "/opt/profiler.so") << run.errors;
}

TEST_F(RunTest, StartsNothingWithoutTheRelocator) {
  if (SkipsInjection()) return;
  environment.erase("GPUMEM_PRELOAD_RELOCATOR");
  const Finished refused = RunIn({"--via", "injection", "--", "/bin/echo", "started=1"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.output, "");
  EXPECT_NE(refused.errors.find("libgpumem-relocator.so; name it in $GPUMEM_PRELOAD_RELOCATOR"),
            std::string::npos)
      << refused.errors;
}

TEST_F(RunTest, IsBoundByTheTenantAboveAsWell) {
  auto held = client_->Acquire({.bytes = 400 * kMiB, .kind = Kind::kDriver});
  ASSERT_TRUE(held.ok()) << held.status();
  const Finished run = RunIn({"--limit", "288MiB", "--quiet", "--", Path("WAYS_DLSYM"), "alloc",
                              std::to_string(32 * kMiB)});
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"3", "3"})) << run.output << run.errors;
  EXPECT_EQ(run.errors, "");
}

TEST_F(RunTest, MakesTheRunsTenantWithItsMode) {
  const std::string tool = Path("GPUMEMCTL");
  const auto mode = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments = options;
    for (const char* each : {"--", "/bin/sh", "-c"}) arguments.emplace_back(each);
    arguments.push_back(absl::StrCat(tool, " quota list --json"));
    const Finished run = RunIn(arguments);
    EXPECT_EQ(run.status, 0) << run.errors;
    // The run's tenant is below ours: the list names it with its maker.
    const size_t made = run.output.find("run-");
    const size_t at = run.output.find("\"preload\": ", made);
    return made == std::string::npos || at == std::string::npos
               ? "none in " + run.output
               : run.output.substr(at, run.output.find_first_of(",}\n", at) - at);
  };
  EXPECT_EQ(mode({"--mode", "broker"}), "\"preload\": \"broker\"");
  EXPECT_EQ(mode({"--mode", "account"}), "\"preload\": \"account\"");
  EXPECT_EQ(mode({}), "\"preload\": \"account\"");
}

TEST_F(RunTest, ExitsAsTheProgramDoes) {
  EXPECT_EQ(RunIn({"--", "/bin/true"}).status, 0);
  EXPECT_EQ(RunIn({"--", "/bin/sh", "-c", "exit 7"}).status, 7);
  EXPECT_EQ(RunIn({"--", "/bin/sh", "-c", "kill -KILL $$"}).status, 128 + SIGKILL);
  EXPECT_EQ(RunIn({"--", "/no/such/program"}).status, 127);
  EXPECT_EQ(RunIn({"--", "/etc"}).status, 126);
}

TEST_F(RunTest, StartsOnlyWithTheMemoryThatItNeeds) {
  auto held = client_->Acquire({.bytes = 300 * kMiB, .kind = Kind::kDriver});
  ASSERT_TRUE(held.ok()) << held.status();
  const Finished refused = RunIn({"--need", "300MiB", "--", "/bin/echo", "started=1"});
  EXPECT_EQ(refused.status, 5) << refused.errors;
  EXPECT_EQ(refused.output, "");
  ASSERT_EQ(held->Release(), absl::OkStatus());
  EXPECT_EQ(RunIn({"--need", "300MiB", "--", "/bin/echo", "started=1"}).value("started"), "1");
  EXPECT_EQ(RunIn({"--need", "3MiB", "--limit", "2MiB", "--", "/bin/true"}).status, 1);
}

TEST_F(RunTest, PassesSignalsOnAndLeavesNothingBehind) {
  Child child(Plain(Command({"--", Path("HOLDER"), std::to_string(100 * kMiB)})));
  ASSERT_TRUE(Eventually([&] { return Charged() == 116 * kMiB; })) << Charged();
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), 128 + SIGTERM);
  EXPECT_TRUE(Eventually([&] { return Charged() == 0; }));
}

// The program lives on without its tenant's keeper, and stays charged until it ends.
TEST_F(RunTest, ItsDeathEndsNoCharge) {
  Child killed(
      Plain(Command({"--", "/usr/bin/timeout", "3", Path("HOLDER"), std::to_string(100 * kMiB)})));
  ASSERT_TRUE(Eventually([&] { return Charged() == 116 * kMiB; })) << Charged();
  killed.Signal(SIGKILL);
  killed.Wait();
  EXPECT_EQ(Charged(), 116 * kMiB);
  EXPECT_TRUE(Eventually([&] { return Charged() == 0; }));
}

}  // namespace
}  // namespace gpumem::preload
