// SPDX-License-Identifier: Apache-2.0
// gpumemctl beside a real daemon of the host backend.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "tests/demo/process.h"

namespace gpumem {

inline constexpr absl::Duration kTimeout = absl::Seconds(60);

struct Answer {
  int code = -1;
  std::string text;  // stdout and stderr

  nlohmann::json AsJson() const {
    return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  }
};

class GpumemctlTest : public testing::Test {
 protected:
  using json = nlohmann::json;
  using Process = demo::Process;
  using ProcessOptions = demo::ProcessOptions;

  void SetUp() override {
    char path[] = "/tmp/gpumemctl-e2e-XXXXXX";  // short enough for a socket's name
    ASSERT_NE(mkdtemp(path), nullptr);
    dir_ = path;
    StartDaemon();
  }

  // In the same folder, when there is none.
  void StartDaemon() {
    daemon_ = std::make_unique<Process>(
        ProcessOptions{.argv = {"daemon/gpumemd", "--backend", "host", "--host-devices", "2",
                                "--host-device-bytes", "64MiB", "--runtime-dir", dir_,
                                "--state-dir", dir_ + "/state"},
                       .log_file = dir_ + "/log"});
    const absl::Time deadline = absl::Now() + kTimeout;
    while (!ConnectUnix(SocketPath(dir_, kAdminSocket), SOCK_STREAM).ok()) {
      ASSERT_FALSE(daemon_->Poll().has_value()) << "gpumemd ended";
      ASSERT_LT(absl::Now(), deadline);
      poll(nullptr, 0, 5);
    }
  }
  void TearDown() override {
    daemon_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }

  // Starts a holder, and returns its report in `held`.
  std::unique_ptr<Process> Hold(std::vector<std::string> arguments, json* held) {
    arguments.insert(arguments.begin(), "hold");
    arguments.emplace_back("--json");
    std::unique_ptr<Process> holder = Start(arguments);
    const std::string line = holder->ReadLine(absl::Now() + kTimeout).value_or("");
    *held = json::parse(line, nullptr, /*allow_exceptions=*/false);
    EXPECT_EQ(held->value("event", ""), "held") << line;
    return holder;
  }

  void End(Process& holder) {
    holder.Signal(SIGTERM);
    json released = json::parse(holder.ReadLine(absl::Now() + kTimeout).value_or("{}"));
    EXPECT_EQ(released.value("event", ""), "released");
    EXPECT_EQ(holder.Wait(absl::Now() + kTimeout), 0);
  }

  // Runs `arguments`, and returns the object in `list` whose `key` is `value`.
  json Find(const std::vector<std::string>& arguments, const std::string& list,
            const std::string& key, const json& value) {
    const json answer = Run(arguments).AsJson();
    for (const json& object : answer.value(list, json::array())) {
      if (object[key] == value) return object;
    }
    ADD_FAILURE() << "no " << key << " " << value << " in " << answer;
    return json::object();
  }

  std::unique_ptr<Process> Start(const std::vector<std::string>& arguments) {
    ProcessOptions options{.argv = {"client/cli/gpumemctl", "--runtime-dir", dir_},
                           .stderr_too = true};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    return std::make_unique<Process>(options);
  }

  Answer Run(const std::vector<std::string>& arguments) {
    std::unique_ptr<Process> process = Start(arguments);
    Answer answer;
    while (auto line = process->ReadLine(absl::Now() + kTimeout)) {
      absl::StrAppend(&answer.text, *line, "\n");
    }
    answer.code = process->Wait(absl::Now() + kTimeout);
    return answer;
  }

  const std::string tenant_ = absl::StrCat("user-", getuid());
  std::string dir_;
  std::unique_ptr<Process> daemon_;
};

}  // namespace gpumem
