// SPDX-License-Identifier: Apache-2.0
// gpumemd as a service of the machine's own systemd: killed, restarted, stopped. Its clients run
// beside it, and report their observations by their exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/systemd_machine.h"

namespace gpumem {
namespace {

using testing::SystemdMachine;

constexpr uint64_t kBytes = uint64_t{2} << 20;
constexpr int kSegments = 100;  // some crates full

std::string Absolute(const std::string& path) { return std::filesystem::absolute(path).string(); }

class CrashUnderSystemd : public ::testing::Test {
 protected:
  void SetUp() override {
    auto machine = SystemdMachine::Boot();
    if (absl::IsFailedPrecondition(machine.status())) GTEST_SKIP() << machine.status().message();
    ASSERT_TRUE(machine.ok()) << machine.status();
    machine_ = *std::move(machine);
    runtime_dir_ = machine_->folder() + "/run";
  }
  void StartDaemon(const std::string& lines) {
    machine_->WriteUnit(
        "gpumemd.service",
        absl::StrCat("[Unit]\nDefaultDependencies=no\nStartLimitIntervalSec=0\n",
                     "[Service]\nType=notify\nRestart=always\nRestartSec=0\nLimitNOFILE=65536\n",
                     "StandardError=append:", machine_->folder(), "/log\n", "ExecStart=",
                     Absolute(testing::ProgramPath("gpumemd")), " --backend host --runtime-dir ",
                     runtime_dir_, " --state-dir ", machine_->folder(), "/state\n", lines, "\n"));
    const auto started = machine_->Systemctl({"start", "gpumemd"});
    ASSERT_EQ(started.code, 0) << started.output << machine_->Log() << Log();
  }
  SystemdMachine::Result Role(const std::string& role) {
    return machine_->Run(
        {std::filesystem::read_symlink("/proc/self/exe").string(), "--role", role, runtime_dir_});
  }
  std::string Log() const {
    std::ifstream file(machine_->folder() + "/log");
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::unique_ptr<SystemdMachine> machine_;
  std::string runtime_dir_;
};

TEST_F(CrashUnderSystemd, TheFdStoreKeepsSessionsAndPublications) {
  StartDaemon("FileDescriptorStoreMax=64");
  EXPECT_EQ(machine_->Property("gpumemd", "StatusText").find("1 host device, "), 0u);
  const auto worker = Role("live-through");
  EXPECT_EQ(worker.code, 0) << worker.output << Log();
  // Its process is gone: its leases come back, its publications stay.
  const auto late = Role("attach");
  EXPECT_EQ(late.code, 0) << late.output << Log();
}

TEST_F(CrashUnderSystemd, AStopDropsPublications) {
  StartDaemon("FileDescriptorStoreMax=64");
  EXPECT_EQ(Role("publish").code, 0) << Log();
  EXPECT_EQ(machine_->Systemctl({"stop", "gpumemd"}).code, 0);
  EXPECT_EQ(machine_->Systemctl({"start", "gpumemd"}).code, 0) << Log();
  EXPECT_NE(Role("attach").code, 0);
}

TEST_F(CrashUnderSystemd, AUnitWithoutAStoreIsReported) {
  StartDaemon("");
  // It finds out a moment after its start.
  EXPECT_TRUE(testing::Eventually([&] {
    return Log().find("FileDescriptorStoreMax=") != std::string::npos;
  })) << Log();
  const auto doctor = machine_->Run({std::filesystem::absolute(testing::ProgramPath("gpumemctl")),
                                     "--runtime-dir", runtime_dir_, "doctor", "--json"});
  EXPECT_THAT(doctor.output, ::testing::HasSubstr("nothing keeps the memory"));
}

// --- Programs that run inside ----------------------------------------------------------

int Fail(const std::string& why) {
  std::cout << why << "\n";
  return 1;
}

bool Systemctl(const std::string& words) {
  return std::system(absl::StrCat("systemctl ", words).c_str()) == 0;  // NOLINT(cert-env33-c)
}

int Publish(Client& client, std::vector<Segment>& segments) {
  for (int i = 0; i < kSegments; ++i) {
    auto segment = client.Acquire({.bytes = kBytes});
    if (!segment.ok()) return Fail(segment.status().ToString());
    std::memset(segment->data(), i + 1, segment->size());
    segments.push_back(*std::move(segment));
  }
  auto version = client.Publish("weights", segments, {.metadata = "hundred"});
  return version.ok() ? 0 : Fail(version.status().ToString());
}

int Attach(Client& client) {
  auto attached = client.Attach("weights");
  if (!attached.ok()) return Fail(attached.status().ToString());
  if (attached->metadata() != "hundred") return Fail("the metadata is not as it was");
  if (attached->segments().size() != kSegments) return Fail("segments are missing");
  for (int i = 0; i < kSegments; ++i) {
    const auto* bytes = static_cast<const unsigned char*>(
        static_cast<const void*>(attached->segments()[static_cast<size_t>(i)].data()));
    if (bytes[0] != i + 1 || bytes[kBytes - 1] != i + 1)
      return Fail("the bytes are not as they were");
  }
  return 0;
}

int LiveThrough(Client& client) {
  std::vector<Segment> segments;
  if (int code = Publish(client, segments); code != 0) return code;
  auto own = client.Acquire({.bytes = kBytes});
  if (!own.ok()) return Fail(own.status().ToString());
  std::memset(own->data(), 77, own->size());
  for (const char* words : {"kill --signal=KILL gpumemd", "restart gpumemd",
                            "kill --signal=KILL gpumemd", "kill --signal=TERM gpumemd"}) {
    if (!Systemctl(words)) return Fail(words);
    const auto usage = client.GetUsage();
    if (!usage.ok()) return Fail(absl::StrCat(words, ": ", usage.status().ToString()));
    if (usage->devices.at(0).leased_bytes != (kSegments + 1) * kBytes) {
      return Fail(absl::StrCat(words, ": ", usage->devices.at(0).leased_bytes, " bytes leased"));
    }
    if (static_cast<unsigned char*>(own->data())[kBytes / 2] != 77)
      return Fail("own memory changed");
    if (int code = Attach(client); code != 0) return code;
    auto more = client.Acquire({.bytes = kBytes});
    if (!more.ok()) return Fail(more.status().ToString());
  }
  return 0;
}

int RunRole(const std::string& role, const std::string& runtime_dir) {
  auto client = Client::Connect({.runtime_dir = runtime_dir});
  if (!client.ok()) return Fail(client.status().ToString());
  std::vector<Segment> segments;
  if (role == "publish") return Publish(**client, segments);
  if (role == "attach") return Attach(**client);
  return LiveThrough(**client);
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--role") return gpumem::RunRole(argv[2], argv[3]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
