// SPDX-License-Identifier: Apache-2.0
#include "client/cli/doctor/examine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/cli/doctor/collect.h"
#include "client/cli/doctor/findings_view.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using State = SocketFacts::State;

// A node without problems.
Facts Healthy() {
  Facts facts{.cli_version = "0.1.0", .runtime_dir = "/run/gpumem", .runtime_dir_there = true};
  for (const char* name : {"session.sock", "admin.sock"}) {
    facts.sockets.push_back({.name = name, .state = State::kOpen, .mode = "0666 root root"});
  }
  facts.daemon = DaemonFacts{.version = "0.1.0",
                             .pid = 42,
                             .cuda = true,
                             .cuda_toolkit = "13.0",
                             .uptime_ms = 185'000,
                             .keeps_memory = true,
                             .sessions = 3,
                             .segments = 100};
  facts.worker = {.version = "0.1.0", .tenant = "user-0", .rule = "rule 1"};
  facts.process = {.seen = true,
                   .files_limit = 65536,
                   .files_open = 200,
                   .parent = "systemd",
                   .unit = "gpumemd.service"};
  facts.unit = {.store_max = 4096, .store_now = 10};
  facts.driver.module = "580.159.04";
  facts.driver.version = "580.159.04";
  facts.driver.cuda_version = "13.0";
  facts.driver.gpus = {{.uuid = "GPU-1", .persistent = true}};
  facts.driver.files = {{.path = "/dev/nvidia0", .usable = true, .mode = "0666 root root"}};
  facts.files_soft = 1024;
  facts.files_hard = 4096;
  facts.cgroups = CgroupLayout::kUnified;
  return facts;
}

std::string Text(const Facts& facts) {
  return ToString(DoctorView(Examine(facts), 1000), false, kAnyWidth);
}

size_t Problems(const Facts& facts) { return CountOf(Examine(facts), Level::kProblem); }

// Finds the finding whose text contains `part`, with this level and help.
testing::AssertionResult Finds(const Facts& facts, Level level, const std::string& part,
                               const std::string& help = "") {
  for (const Finding& finding : Examine(facts)) {
    if (finding.text.find(part) == std::string::npos) continue;
    if (finding.level == level && finding.help.find(help) != std::string::npos) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure()
           << "level " << static_cast<int>(finding.level) << ", help \"" << finding.help << "\"";
  }
  return testing::AssertionFailure() << "not found; there is:\n" << Text(facts);
}

TEST(ExamineTest, AHealthyNodeIsOkThroughout) {
  const std::vector<Finding> findings = Examine(Healthy());
  EXPECT_EQ(CountOf(findings, Level::kOk), findings.size()) << Text(Healthy());
  EXPECT_THAT(Text(Healthy()),
              AllOf(HasSubstr("  ok       gpumemd 0.1.0 answers at /run/gpumem (pid 42, up 3m05s, "
                              "backend cuda)\n"),
                    HasSubstr("systemd keeps the memory when the daemon dies (gpumemd.service)"),
                    HasSubstr("the FD store has 10 of 4096 places in use"),
                    HasSubstr("driver 580.159.04, CUDA 13.0"),
                    HasSubstr(" ok, 0 warnings, 0 problems, 0 not seen\n")));
}

TEST(ExamineTest, WithoutADaemon) {
  Facts facts;
  facts.runtime_dir = "/run/gpumem";
  facts.files_soft = 1024;
  for (const char* name : {"session.sock", "admin.sock"}) {
    facts.sockets.push_back({.name = name});
  }
  EXPECT_EQ(Problems(facts), 1u) << Text(facts);
  EXPECT_TRUE(Finds(facts, Level::kProblem, "the folder does not exist", "start one"));
  EXPECT_TRUE(Finds(facts, Level::kWarning, "no NVIDIA driver"));
  facts.runtime_dir_there = true;
  EXPECT_TRUE(Finds(facts, Level::kProblem, "has no sockets"));
  facts.sockets[0].state = State::kNobodyListens;
  EXPECT_TRUE(Finds(facts, Level::kProblem, "no process listens"));
}

TEST(ExamineTest, AsAnOrdinaryUserItSaysWhatItCouldNotSee) {
  Facts facts = Healthy();
  facts.sockets[1].state = State::kDenied;
  facts.daemon.reset();
  facts.process = {};
  EXPECT_EQ(Problems(facts), 0u) << Text(facts);
  EXPECT_TRUE(Finds(facts, Level::kUnseen, "the daemon's state", "sudo gpumemctl doctor"));
  EXPECT_TRUE(Finds(facts, Level::kUnseen, "whether memory outlives the daemon"));
  EXPECT_TRUE(Finds(facts, Level::kUnseen, "memory past the broker"));
  EXPECT_TRUE(Finds(facts, Level::kOk, "admin.sock (0666 root root) is closed to this user"));
  EXPECT_TRUE(Finds(facts, Level::kOk, "this user's processes are tenant user-0, by rule 1"));
  EXPECT_TRUE(Finds(facts, Level::kOk, "has the same version"));
}

TEST(ExamineTest, TheDaemon) {
  Facts facts = Healthy();
  facts.daemon->version = "0.2.0";
  facts.daemon->draining = true;
  facts.daemon->notices = {"the state folder cannot be written"};
  EXPECT_TRUE(Finds(facts, Level::kWarning, "gpumemctl has version 0.1.0, the daemon 0.2.0"));
  EXPECT_TRUE(Finds(facts, Level::kWarning, "draining", "gpumemctl undrain"));
  EXPECT_TRUE(Finds(facts, Level::kWarning, "the daemon reports: the state folder"));
  facts.daemon.reset();
  facts.admin_error = "deadline exceeded";
  EXPECT_TRUE(Finds(facts, Level::kProblem, "deadline exceeded", "journalctl"));
}

TEST(ExamineTest, Sockets) {
  Facts facts = Healthy();
  facts.sockets[0].state = State::kDenied;
  facts.sockets[1].state = State::kMissing;
  EXPECT_TRUE(Finds(facts, Level::kProblem, "its workers get no memory", "session_socket_mode"));
  EXPECT_TRUE(Finds(facts, Level::kProblem, "admin.sock (0666 root root) is missing"));
  facts = Healthy();
  facts.worker = {.error = "no rule matches"};
  EXPECT_TRUE(Finds(facts, Level::kProblem, "no session for this user: no rule matches"));
}

TEST(ExamineTest, WhatOutlivesTheDaemon) {
  Facts facts = Healthy();
  facts.daemon->keeps_memory = false;
  EXPECT_TRUE(Finds(facts, Level::kWarning, "nothing keeps the memory", "gpumem-keeper"));
  facts = Healthy();
  facts.process.parent = "gpumem-keeper";
  facts.daemon->generation = 3;
  EXPECT_TRUE(Finds(facts, Level::kOk, "gpumem-keeper keeps the memory"));
  EXPECT_TRUE(Finds(facts, Level::kOk, "number 3"));
  facts.unit = {.store_max = 100, .store_now = 90};
  EXPECT_TRUE(Finds(facts, Level::kWarning, "90 of 100", "FileDescriptorStoreMax"));
}

TEST(ExamineTest, TheDriver) {
  Facts facts = Healthy();
  facts.driver.module = "570.1";
  facts.driver.gpus = {{.uuid = "GPU-1", .persistent = false},
                       {.uuid = "GPU-2", .unknown = "no such device"}};
  facts.driver.files = {{.path = "/dev/nvidia0", .usable = false, .mode = "0660 root video"}};
  EXPECT_TRUE(Finds(facts, Level::kProblem, "module has version 570.1", "reload the module"));
  EXPECT_TRUE(Finds(facts, Level::kWarning, "persistence mode is off for GPU-1", "nvidia-smi -pm"));
  EXPECT_TRUE(Finds(facts, Level::kUnseen, "GPU-2: no such device"));
  EXPECT_TRUE(Finds(facts, Level::kProblem, "/dev/nvidia0 (0660 root video)", "group"));
  facts.driver.cuda_error = "no device";
  facts.driver.nvml_error = "Driver/library version mismatch";
  EXPECT_TRUE(Finds(facts, Level::kProblem, "CUDA does not work here: no device"));
  EXPECT_TRUE(Finds(facts, Level::kProblem, "NVML does not work here", "reboot"));
  facts.driver = {};
  EXPECT_TRUE(Finds(facts, Level::kProblem, "no NVIDIA driver is visible"));
  facts.daemon->cuda = false;
  EXPECT_TRUE(Finds(facts, Level::kOk, "needs none"));
}

TEST(ExamineTest, ADaemonWithoutCudaWhereThereIsAGpu) {
  Facts facts = Healthy();
  facts.daemon->cuda = false;  // by configuration
  EXPECT_EQ(Problems(facts), 0u) << Text(facts);
  facts.daemon->cuda_toolkit = "";
  EXPECT_EQ(Problems(facts), 1u) << Text(facts);
  EXPECT_TRUE(Finds(facts, Level::kProblem, "the daemon was built without CUDA",
                    "built with the CUDA toolkit"));
  facts.daemon->cuda_toolkit.reset();  // an older daemon does not say
  EXPECT_EQ(Problems(facts), 0u) << Text(facts);
  facts.daemon->cuda_toolkit = "";
  facts.driver = {};
  EXPECT_EQ(Problems(facts), 0u) << Text(facts);
}

TEST(ExamineTest, AFullStore) {
  Facts facts = Healthy();
  facts.daemon->store_full = true;
  // If further segments are refused, no data is lost.
  EXPECT_EQ(Problems(facts), 0u) << Text(facts);
  EXPECT_TRUE(Finds(facts, Level::kWarning, "store is full: it keeps its content",
                    "FileDescriptorStoreMax="));
  EXPECT_TRUE(Finds(facts, Level::kOk, "systemd keeps the memory"));
  facts.daemon->unkept_segments = 508;
  EXPECT_TRUE(
      Finds(facts, Level::kProblem, "no place for 508 segments", "FileDescriptorStoreMax="));
  EXPECT_TRUE(Finds(facts, Level::kOk, "systemd keeps the memory"));
  facts.daemon->keeps_memory = false;
  EXPECT_THAT(Text(facts), testing::Not(HasSubstr("keeps the memory")));
}

TEST(ExamineTest, Descriptors) {
  Facts facts = Healthy();
  facts.daemon->largest_publication = 2000;
  facts.daemon->largest_publication_name = "a/llama";
  EXPECT_TRUE(Finds(facts, Level::kWarning, "too few to attach to a/llama (2000 segments",
                    "ulimit -n 4128"));
  facts.files_soft = 2064;
  EXPECT_TRUE(Finds(facts, Level::kOk, "enough to attach to a/llama"));
  facts.files_soft = 20;
  facts.daemon->largest_publication = 0;
  EXPECT_TRUE(Finds(facts, Level::kWarning, "too few, since each segment"));
  facts.process.files_open = 60000;
  EXPECT_TRUE(Finds(facts, Level::kWarning, "the daemon has 60000 of 65536", "LimitNOFILE"));
  facts.process.files_open.reset();
  EXPECT_TRUE(Finds(facts, Level::kOk, "the daemon has about 173 of 65536"));
  facts.process = {};
  EXPECT_TRUE(Finds(facts, Level::kUnseen, "how many descriptors the daemon may have"));
}

TEST(ExamineTest, CgroupsAndMemoryPastTheBroker) {
  Facts facts = Healthy();
  facts.cgroups = CgroupLayout::kHybrid;
  facts.worker.cgroup_unknown = "its path is outside";
  facts.daemon->foreign_processes = 2;
  facts.daemon->foreign_bytes = uint64_t{3} << 30;
  facts.daemon->unbrokered_bytes = uint64_t{1} << 30;
  EXPECT_TRUE(Finds(facts, Level::kWarning, "v1 beside v2"));
  EXPECT_TRUE(Finds(facts, Level::kWarning, "its path is outside", "hostPID"));
  EXPECT_TRUE(Finds(facts, Level::kWarning, "2 processes use 3.00 GiB without a session"));
  EXPECT_TRUE(Finds(facts, Level::kWarning, "1.00 GiB with cudaMalloc"));
  facts.cgroups = CgroupLayout::kUnknown;
  EXPECT_TRUE(Finds(facts, Level::kUnseen, "/sys/fs/cgroup"));
}

TEST(DoctorViewTest, BreaksLinesBetweenWordsAndFits) {
  const std::vector<Finding> findings = {
      {"driver", Level::kWarning, "one two three four five six", "do this and that"},
      {"driver", Level::kOk, "fine", ""}};
  EXPECT_EQ(ToString(DoctorView(findings, 30), false, kAnyWidth),
            "driver\n"
            "  warning  one two three four\n"
            "           five six\n"
            "           -> do this and that\n"
            "  ok       fine\n"
            "\n"
            "1 ok, 1 warning, 0 problems, 0 not seen\n");
  for (const Line& line : DoctorView(Examine(Healthy()), 80)) EXPECT_LE(line.width(), 80u);
}

TEST(DoctorJsonTest, Shape) {
  EXPECT_EQ(DoctorJson({{"driver", Level::kProblem, "wrong", "do"}}),
            Json::parse(R"({"findings": [{"area": "driver", "level": "problem", "text": "wrong",
                "help": "do"}], "problems": 1, "warnings": 0, "unseen": 0})"));
}

TEST(CollectTest, ReadsWhatTheKernelWrites) {
  EXPECT_EQ(ModuleVersion("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  "
                          "Release Build  (dvs-builder@U22)\nGCC version:  gcc version 13.3.0\n"),
            "580.159.04");
  EXPECT_EQ(ModuleVersion("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue\n"),
            "535.54.03");
  EXPECT_EQ(ModuleVersion(""), "");
  EXPECT_EQ(FilesLimit("Limit                     Soft Limit           Hard Limit  Units\n"
                       "Max open files            1024                 524288      files\n"),
            1024u);
  EXPECT_EQ(FilesLimit(""), std::nullopt);
  EXPECT_EQ(ServiceOf("0::/system.slice/gpumemd.service\n"), "gpumemd.service");
  EXPECT_EQ(ServiceOf("1:name=systemd:/user.slice\n0::/\n"), "");
  EXPECT_EQ(NumberOf("A=1\nFileDescriptorStoreMax=4096\n", "FileDescriptorStoreMax"), 4096u);
  EXPECT_EQ(NumberOf("A=\n", "A"), std::nullopt);
}

TEST(CollectTest, SeesAMachineWithoutADaemon) {
  const Facts facts = Collect("/no/such/folder");
  EXPECT_FALSE(facts.runtime_dir_there);
  EXPECT_FALSE(facts.daemon.has_value());
  ASSERT_EQ(facts.sockets.size(), 2u);
  EXPECT_EQ(facts.sockets[1].state, State::kMissing);
  EXPECT_GT(facts.files_soft, 0u);
  EXPECT_TRUE(Finds(facts, Level::kProblem, "there is no daemon at /no/such/folder"));
}

}  // namespace
}  // namespace gpumem::cli
