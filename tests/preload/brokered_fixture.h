// SPDX-License-Identifier: Apache-2.0
// Programs in broker mode, with a daemon whose CUDA backend runs on the fake driver, and programs
// that are suspended while they work.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/preload/with_daemon.h"

namespace gpumem::preload {

class BrokeredTest : public DaemonTest {
 protected:
  explicit BrokeredTest(int devices = 1) : devices_(devices) {}

  void SetUp() override {
    DaemonTest::SetUp();
    if (IsSkipped()) return;
    // Of the device's memory.
    environment["FAKE_CUDA_MEMORY"] = std::to_string(304 * kMiB);
    environment["FAKE_CUDA_DEVICES"] = std::to_string(devices_);
    StartDaemon(
        "[tier]\ncapacity = \"1GiB\"\n"
        "[tenant_defaults]\nlimit = \"288MiB\"\npreload = \"broker\"\n"
        "[[tenant]]\nname = \"second\"\nswappable = true\nmin_residence = \"0s\"\n"
        "[[tenant]]\nname = \"first\"\npriority = 1\n"
        "[[tenant]]\nname = \"few\"\nmax_segments = 8\n"
        "[[rule]]\ntenant = \"second\"\ndefault = true\n"
        "[[rule]]\ntenant = \"first\"\ndefault = true\n"
        "[[rule]]\ntenant = \"few\"\ndefault = true\n",
        /*cuda=*/true);
  }

  // Returns the bytes of a kind that sessions hold.
  uint64_t Held(const std::string& kind) {
    const Finished listed = Ctl({"segments", "--json"});
    EXPECT_EQ(listed.status, 0) << listed.errors;
    uint64_t bytes = 0;
    size_t at = 0;
    while ((at = listed.output.find("\"kind\": \"" + kind + "\"", at)) != std::string::npos) {
      // The object of the segment that this member is in.
      const size_t begin = listed.output.rfind('{', at);
      const size_t end = listed.output.find('}', at);
      const size_t size = listed.output.find("\"size_bytes\": ", begin);
      EXPECT_LT(size, end);
      // Freed memory may stay with the tenant.
      const size_t leased = listed.output.find("\"state\": \"leased\"", begin);
      if (leased < end) bytes += std::strtoull(listed.output.c_str() + size + 14, nullptr, 10);
      at = end;
    }
    return bytes;
  }

  // Runs a program, with and without the preload, and expects the same.
  void ExpectSame(const std::string& matter, const std::string& program = "BROKERED") {
    const Finished plain = Run({Path(program), matter}, Via::kNone);
    const Finished run = Run({Path(program), matter});
    EXPECT_EQ(plain.status, 0) << plain.errors;
    EXPECT_EQ(run.status, 0) << run.errors;
    EXPECT_EQ(run.output, plain.output);
    EXPECT_EQ(run.errors, plain.errors);
    ExpectAllBack();
  }

  const int devices_;
};

class SuspendedTest : public BrokeredTest {
 protected:
  void SetUp() override {
    BrokeredTest::SetUp();
    if (IsSkipped()) return;
    stop_ = daemon_->state_dir() + "/stop";
    progress_ = daemon_->state_dir() + "/progress";
    errors_ = daemon_->state_dir() + "/errors";
  }

  // Runs a program in the background, until Stop().
  void Begin(const std::string& what, const std::string& program = "BROKERED",
             const std::string& more = "") {
    std::remove(progress_.c_str());
    const std::string path = Path(program);
    const std::string script =
        absl::StrCat(path, " ", what, " ", stop_, " ", more, " > ", progress_, " 2> ", errors_);
    program_ = testing::Child(Preloaded({"/bin/sh", "-c", absl::StrCat("exec ", script)}, via_));
    ASSERT_TRUE(testing::Eventually([&] { return Dots() > 0; })) << Text(errors_);
    session_ = Session(path.substr(path.rfind('/') + 1));
  }

  void Stop() { close(creat(stop_.c_str(), 0600)); }

  static std::string Text(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  size_t Dots() const {
    const std::string seen = Text(progress_);
    return static_cast<size_t>(std::count(seen.begin(), seen.end(), '.'));
  }
  // Returns the number of the program's session.
  std::string Session(const std::string& name) {
    const Finished listed = Ctl({"ps"});
    std::istringstream lines(listed.output);
    std::string line;
    while (std::getline(lines, line)) {
      if (line.find(" " + name + " ") != std::string::npos) {
        std::string number;
        std::istringstream(line) >> number;
        return number;
      }
    }
    return "none in " + listed.output;
  }
  // An operator suspends and resumes the program, which has `least` bytes of the pools. Meanwhile
  // others use all of the limit, by one of the ways of tests/preload/ways.c.
  void ExpectAnOperatorSuspendsIt(const std::string& way, uint64_t least) {
    for (int round = 0; round < 4; ++round) {
      const Finished suspended = Ctl({"suspend", session_, "--yes"});
      ASSERT_EQ(suspended.status, 0) << suspended.errors;
      EXPECT_EQ(Held("vmm"), 0u);
      EXPECT_GE(Held("tier"), least);
      EXPECT_EQ(Usage().leased_bytes, 16 * kMiB) << "the context";
      // It stands still: no dot comes.
      const size_t before = Dots();
      const Finished other = Run({Path("WAYS_DLSYM"), way, std::to_string(32 * kMiB)});
      EXPECT_EQ(other.values("got"), (std::vector<std::string>{"8", "8"})) << other.output;
      EXPECT_LE(Dots(), before + 1);
      ASSERT_TRUE(testing::Eventually([&] { return Usage().leased_bytes == 16 * kMiB; }));
      const Finished resumed = Ctl({"resume", session_});
      ASSERT_EQ(resumed.status, 0) << resumed.errors;
      EXPECT_TRUE(testing::Eventually([&] { return Dots() > before + 1; }));
    }
    ExpectItEndsWell();
  }
  // The program goes on, and nothing that it has read was wrong.
  void ExpectItEndsWell() {
    const size_t before = Dots();
    ASSERT_TRUE(testing::Eventually([&] { return Dots() > before; }))
        << Text(errors_) << daemon_->Log();
    Stop();
    EXPECT_EQ(program_.Wait(), 0) << Text(errors_);
    EXPECT_NE(Text(progress_).find(" wrong=0\n"), std::string::npos) << Text(progress_);
    ExpectAllBack();
  }

  Via via_ = Via::kPreload;
  std::string stop_, progress_, errors_, session_;
  testing::Child program_;
};

}  // namespace gpumem::preload
