// SPDX-License-Identifier: Apache-2.0
// The lines of an audit, and a daemon that writes one. Each line has the fields that AuditKinds
// says.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "daemon/core/audit/audit.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {

using Json = nlohmann::json;

// The tenants of the tests. "PATH" stands for the audit's file.
inline constexpr char kAuditConfig[] = R"([host]
device_bytes = "64MiB"
[daemon]
drain_timeout = "200ms"
revocation_grace = "50ms"
revocation_kill_after = "50ms"
[audit]
output = "json"
path = "PATH"
[[tenant]]
name = "team"
limit = "32MiB"
[[tenant]]
name = "urgent"
priority = 5
[[tenant]]
name = "low"
[[rule]]
tenant = "team"
default = true
[[rule]]
tenant = "urgent"
default = true
[[rule]]
tenant = "low"
default = true
)";

// Lines of an audit, as they come.
class Audit {
 public:
  Audit() {
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~Audit() { std::filesystem::remove_all(folder_); }
  Audit(const Audit&) = delete;
  Audit& operator=(const Audit&) = delete;

  std::string path() const { return folder_ + "/audit.json"; }
  std::string Config(const std::string& text = kAuditConfig) const {
    return absl::StrReplaceAll(text, {{"PATH", path()}});
  }
  std::string text() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // Returns all lines written by now.
  std::vector<Json> Lines() const {
    std::vector<Json> lines;
    std::ifstream file(path());
    for (std::string line; std::getline(file, line);) {
      if (file.eof()) break;  // it is being written
      lines.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
      EXPECT_TRUE(lines.back().is_object()) << line;
    }
    return lines;
  }
  std::vector<Json> Of(const std::string& event) const {
    std::vector<Json> found;
    for (Json& line : Lines()) {
      if (line["event"] == event) found.push_back(std::move(line));
    }
    return found;
  }
  // Returns the only one of its kind, now or soon.
  Json One(const std::string& event) const {
    EXPECT_TRUE(Eventually([&] { return !Of(event).empty(); })) << event << "\n" << text();
    const std::vector<Json> found = Of(event);
    EXPECT_EQ(found.size(), 1u) << event << "\n" << text();
    return found.empty() ? Json::object() : found.front();
  }
  bool Await(const std::string& event, size_t count) const {
    return Eventually([&] { return Of(event).size() >= count; });
  }
  // Expects that each line has exactly the fields of its event, and that none is missing.
  void Check() const {
    uint64_t number = 0;
    for (const Json& line : Lines()) {
      const auto& kinds = gpumemd::AuditKinds();
      const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& each) {
        return std::string(each.name) == line.value("event", "");
      });
      ASSERT_NE(kind, kinds.end()) << line;
      std::vector<std::string> known = {"time", "number", "event", "message"};
      for (absl::string_view field : kind->fields) {
        const std::string name(absl::StripSuffix(field, "?"));
        known.push_back(name);
        if (name == field) {
          EXPECT_TRUE(line.contains(name)) << name << " is not in " << line;
        }
      }
      for (const auto& [name, value] : line.items()) {
        EXPECT_THAT(known, ::testing::Contains(name)) << line;
      }
      const uint64_t its = line.value("number", uint64_t{0});
      EXPECT_TRUE(its == number + 1 || its == 1) << line;  // 1: of the next daemon
      number = its;
    }
  }

 private:
  std::string folder_;
};

class AuditTest : public ::testing::Test {
 protected:
  void Start(const std::string& config = kAuditConfig) {
    auto daemon = DaemonProcess::Start({.config = audit_.Config(config)});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  // Ends the daemon, so that all is written, and checks the lines.
  void Stop() {
    daemon_->child().Signal(SIGTERM);
    EXPECT_EQ(daemon_->child().Wait(), 0);
    audit_.Check();
  }
  // gpumemctl with these arguments, connected to the daemon.
  Child Ctl(std::vector<std::string> args) {
    args.insert(args.begin(), {ProgramPath("gpumemctl"), "--runtime-dir", daemon_->runtime_dir()});
    return Child(args);
  }

  Audit audit_;
  std::unique_ptr<DaemonProcess> daemon_;
};

}  // namespace gpumem::testing
