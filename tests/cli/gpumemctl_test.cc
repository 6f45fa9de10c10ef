// gpumemctl against a real daemon: the JSON shapes and exit codes that scripts rely on.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "tests/demo/process.h"

namespace gpumem {
namespace {

using demo::Process;
using demo::ProcessOptions;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Answer {
  int code = -1;
  std::string text;  // stdout and stderr

  json AsJson() const { return json::parse(text, nullptr, /*allow_exceptions=*/false); }
};

class GpumemctlTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gpumemctl-e2e-XXXXXX";  // short enough for a socket's name
    ASSERT_NE(mkdtemp(path), nullptr);
    dir_ = path;
    daemon_ = std::make_unique<Process>(
        ProcessOptions{.argv = {"daemon/gpumemd", "--backend", "host", "--host-devices", "2",
                                "--host-device-bytes", "64MiB", "--runtime-dir", dir_},
                       .log_file = dir_ + "/log"});
    const absl::Time deadline = absl::Now() + kPatience;
    while (!ConnectUnix(SocketPath(dir_, kAdminSocket), SOCK_STREAM).ok()) {
      ASSERT_FALSE(daemon_->Poll().has_value()) << "gpumemd ended";
      ASSERT_LT(absl::Now(), deadline);
      poll(nullptr, 0, 5);
    }
  }
  void TearDown() override {
    daemon_.reset();
    if (DIR* folder = opendir(dir_.c_str())) {
      while (const dirent* entry = readdir(folder)) {
        unlink(absl::StrCat(dir_, "/", entry->d_name).c_str());
      }
      closedir(folder);
    }
    rmdir(dir_.c_str());
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
    while (auto line = process->ReadLine(absl::Now() + kPatience)) {
      absl::StrAppend(&answer.text, *line, "\n");
    }
    answer.code = process->Wait(absl::Now() + kPatience);
    return answer;
  }

  const std::string tenant_ = absl::StrCat("user-", getuid());
  std::string dir_;
  std::unique_ptr<Process> daemon_;
};

TEST_F(GpumemctlTest, ShowsWhatAHolderHolds) {
  std::unique_ptr<Process> holder =
      Start({"hold", "--bytes", "3MiB", "--count", "2", "--device", "1", "--fill", "--json"});
  std::vector<json> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(json::parse(holder->ReadLine(absl::Now() + kPatience).value_or("")));
    EXPECT_EQ(held[i]["event"], "held");
    EXPECT_EQ(held[i]["kind"], "vmm");
    EXPECT_EQ(held[i]["size_bytes"], 4 * kMiB);
    EXPECT_EQ(held[i]["tenant"], tenant_);
    EXPECT_EQ(held[i]["reused"], false);
    EXPECT_THAT(held[i]["ticket"].get<std::string>(), testing::StartsWith("gmt_"));
  }

  json sessions = Run({"ps", "--json"}).AsJson()["sessions"];
  ASSERT_EQ(sessions.size(), 1u);
  EXPECT_EQ(sessions[0]["session_id"], held[0]["session_id"]);
  EXPECT_EQ(sessions[0]["state"], "live");
  EXPECT_EQ(sessions[0]["pid"], holder->pid());
  EXPECT_EQ(sessions[0]["leased_bytes"], 8 * kMiB);

  json segments = Run({"--json", "segments", "--device", "1"}).AsJson()["segments"];
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0]["segment_id"], held[0]["segment_id"]);
  EXPECT_EQ(segments[0]["state"], "leased");
  EXPECT_EQ(segments[0]["session_ids"], json::array({held[0]["session_id"]}));
  EXPECT_EQ(Run({"segments", "--device", "0"}).text, "No segments.\n");

  json quota = Run({"quota", "get", tenant_, "--json"}).AsJson();
  EXPECT_EQ(quota["tenant"], tenant_);
  EXPECT_EQ(quota["usage"]["charged_bytes"], 8 * kMiB);
  EXPECT_EQ(quota["quota"]["limit_bytes"], nullptr);
  EXPECT_EQ(Run({"quota", "get", "--json"}).AsJson()["tenant"], tenant_);

  json devices = Run({"devices", "--json"}).AsJson()["devices"];
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0]["backend"], "host");
  EXPECT_EQ(devices[1]["charged_bytes"], 8 * kMiB);

  json top = Run({"top", "--iterations", "1", "--json"}).AsJson();
  EXPECT_EQ(top["status"]["segments"], 2);
  EXPECT_EQ(top["tenants"][0]["usage"]["charged_bytes"], 8 * kMiB);
  EXPECT_EQ(top["sessions"].size(), 1u);

  holder->Signal(SIGTERM);
  json released = json::parse(holder->ReadLine(absl::Now() + kPatience).value_or(""));
  EXPECT_EQ(released, (json{{"event", "released"}, {"segments", 2}, {"size_bytes", 8 * kMiB}}));
  EXPECT_EQ(holder->Wait(absl::Now() + kPatience), 0);
}

TEST_F(GpumemctlTest, AQuotaThatIsSetHolds) {
  std::unique_ptr<Process> holder = Start({"hold", "--bytes", "2MiB", "--json"});
  ASSERT_TRUE(holder->ReadLine(absl::Now() + kPatience).has_value());
  Answer set = Run({"quota", "set", tenant_, "--limit", "6MiB", "--device", "1=4MiB", "--json"});
  EXPECT_EQ(set.code, 0) << set.text;
  EXPECT_EQ(set.AsJson()["quota"]["limit_bytes"], 6 * kMiB);
  EXPECT_EQ(set.AsJson()["quota"]["devices"][0]["limit_bytes"], 4 * kMiB);

  EXPECT_EQ(Run({"hold", "--bytes", "4MiB", "--for", "1ms"}).code, 0);
  Answer denied = Run({"hold", "--bytes", "6MiB", "--for", "1ms", "--json"});
  EXPECT_EQ(denied.code, 5);
  json denial = denied.AsJson()["error"]["denial"];
  EXPECT_EQ(denied.AsJson()["error"]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(denial["cause"], "device_limit");
  EXPECT_EQ(denial["asked"], 6 * kMiB);
  EXPECT_EQ(denial["limit"], 6 * kMiB);
  EXPECT_EQ(Run({"hold", "--bytes", "5MiB", "--for", "1ms", "--device", "1"}).code, 5);

  EXPECT_EQ(Run({"quota", "set", tenant_, "--clear", "limit"}).code, 0);
  EXPECT_EQ(Run({"hold", "--bytes", "6MiB", "--for", "1ms"}).code, 0);
}

TEST_F(GpumemctlTest, ExitCodes) {
  EXPECT_EQ(Run({"status"}).code, 0);
  EXPECT_EQ(Run({"whoami", "--json"}).AsJson()["tenant"], tenant_);
  EXPECT_EQ(Run({"hold", "--bytes", "1TiB"}).code, 1);
  EXPECT_EQ(Run({"hold"}).code, 2);
  EXPECT_EQ(Run({"--runtime-dir", "/no/such/folder", "devices"}).code, 3);
  EXPECT_EQ(Run({"whoami", "--tenant", "somebody-else"}).code, 4);
  EXPECT_EQ(Run({"quota", "get", "nobody"}).code, 6);
  EXPECT_EQ(Run({"segments", "--device", "9"}).code, 6);
  Answer error = Run({"quota", "get", "nobody", "--json"});
  EXPECT_EQ(error.AsJson()["error"]["code"], "NOT_FOUND");
  EXPECT_EQ(error.AsJson()["error"]["denial"], nullptr);
}

TEST_F(GpumemctlTest, DrainingAdmitsNobodyUntilResumed) {
  EXPECT_EQ(Run({"drain", "--json"}).AsJson()["draining"], true);
  EXPECT_EQ(Run({"whoami"}).code, 3);
  EXPECT_THAT(Run({"status"}).text, HasSubstr("draining"));
  EXPECT_EQ(Run({"drain", "--resume"}).text, "Admitting again.\n");
  EXPECT_EQ(Run({"whoami"}).code, 0);
}

}  // namespace
}  // namespace gpumem
