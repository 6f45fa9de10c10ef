// SPDX-License-Identifier: Apache-2.0
// gpumemctl tenant for users: tenants below the caller's own, which outlive the command and the
// daemon. Users other than this process's need root.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::Child;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::KeptDaemon;

constexpr absl::Duration kTimeout = absl::Seconds(60);
// Users without an account.
constexpr uid_t kAlice = 44321, kBob = 44322;

struct Answer {
  int code = -1;
  std::string text;  // stdout and stderr

  json AsJson() const { return json::parse(text, nullptr, /*allow_exceptions=*/false); }
};

class OwnTenantsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gpumem-own-XXXXXX";
    const int fd = mkstemp(path);
    ASSERT_GE(fd, 0);
    close(fd);
    output_ = path;
    auto daemon = KeptDaemon::Start({.config = "[host]\ndevice_bytes = \"64MiB\"\n"
                                               "[tenant_defaults]\nlimit = \"48MiB\"\n"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  void TearDown() override { unlink(output_.c_str()); }

  std::vector<std::string> Command(uid_t uid, const std::string& output,
                                   std::vector<std::string> arguments) {
    std::vector<std::string> command = {"--run", absl::StrCat(uid), output, daemon_->runtime_dir()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  // Runs gpumemctl as this user.
  Answer Run(uid_t uid, const std::vector<std::string>& arguments) {
    Answer answer{.code = Child::Self(Command(uid, output_, arguments)).Wait()};
    std::ifstream file(output_);
    answer.text.assign(std::istreambuf_iterator<char>(file), {});
    return answer;
  }
  json List(uid_t uid, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"tenant", "list", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Answer answer = Run(uid, arguments);
    EXPECT_EQ(answer.code, 0) << answer.text;
    return answer.AsJson().value("tenants", json::array());
  }
  static std::string Small(uid_t uid) { return absl::StrCat("user-", uid, ":", uid, ".small"); }

  std::string output_;
  std::unique_ptr<KeptDaemon> daemon_;
};

TEST_F(OwnTenantsTest, AUsersTenantOutlivesTheCommandAndTheDaemon) {
  if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "other users need root";
  const Answer made = Run(kAlice, {"tenant", "create", "small", "--limit", "8MiB"});
  ASSERT_EQ(made.code, 0) << made.text;
  EXPECT_THAT(made.text, AllOf(HasSubstr(absl::StrCat("GPUMEM_TENANT=", Small(kAlice))),
                               HasSubstr("8.00 MiB")));
  EXPECT_EQ(Run(kAlice, {"tenant", "create", "small", "--limit", "8MiB"}).code, 0) << "once more";
  EXPECT_EQ(Run(kAlice, {"tenant", "create", "small", "--limit", "9MiB"}).code, 1);
  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());

  const json listed = List(kAlice);
  ASSERT_EQ(listed.size(), 1u) << listed;
  EXPECT_EQ(listed[0]["usage"]["tenant"], Small(kAlice));
  EXPECT_EQ(listed[0]["made"]["lasting"], true);
  EXPECT_EQ(listed[0]["made"]["uid"], kAlice);
  EXPECT_EQ(listed[0]["quota"]["limit_bytes"], 8 * kMiB);
  EXPECT_EQ(Run(kAlice, {"hold", "--as", Small(kAlice), "--size", "8MiB", "--for", "1ms"}).code, 0);
  EXPECT_EQ(Run(kAlice, {"hold", "--as", Small(kAlice), "--size", "12MiB", "--for", "1ms"}).code,
            5);
  const Answer changed =
      Run(kAlice, {"tenant", "update", "small", "--limit", "16MiB", "--max-sessions", "2"});
  EXPECT_EQ(changed.code, 0) << changed.text;
  EXPECT_EQ(Run(kAlice, {"hold", "--as", Small(kAlice), "--size", "12MiB", "--for", "1ms"}).code,
            0);
  EXPECT_EQ(Run(kAlice, {"tenant", "update", Small(kAlice), "--clear", "max-sessions"}).code, 0);
  EXPECT_TRUE(List(kAlice)[0]["quota"]["max_sessions"].is_null());

  const Answer ended = Run(kAlice, {"tenant", "end", "small"});
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("is gone"));
  EXPECT_TRUE(List(kAlice).empty());
  EXPECT_EQ(Run(kAlice, {"tenant", "end", "small"}).code, 6);
  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
  EXPECT_TRUE(List(kAlice).empty());
}

TEST_F(OwnTenantsTest, OtherUsersCanNeitherSeeNorUseIt) {
  if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "other users need root";
  ASSERT_EQ(Run(kAlice, {"tenant", "create", "small", "--limit", "8MiB"}).code, 0);
  EXPECT_TRUE(List(kBob).empty());
  for (const std::string& name :
       {Small(kAlice), std::string("small"), absl::StrCat("user-", kAlice)}) {
    EXPECT_NE(Run(kBob, {"tenant", "update", name, "--limit", "1GiB"}).code, 0) << name;
    EXPECT_NE(Run(kBob, {"tenant", "end", name, "--yes"}).code, 0) << name;
  }
  EXPECT_NE(Run(kBob, {"hold", "--as", Small(kAlice), "--size", "1MiB", "--for", "1ms"}).code, 0);
  EXPECT_NE(Run(kBob, {"tenant", "create", "b", "--parent", absl::StrCat("user-", kAlice)}).code,
            0);
  EXPECT_NE(Run(kBob, {"tenant", "create", "b", "--parent", Small(kAlice)}).code, 0);
  // An operator sees who made it, and may change and end it.
  const json all = List(getuid());
  ASSERT_EQ(all.size(), 1u) << all;
  EXPECT_EQ(all[0]["made"]["uid"], kAlice);
  EXPECT_THAT(Run(getuid(), {"quota", "list"}).text, HasSubstr(absl::StrCat("uid ", kAlice)));
  EXPECT_THAT(Run(getuid(), {"describe", "tenant", Small(kAlice)}).text,
              HasSubstr("stays until it is ended"));
  EXPECT_EQ(Run(getuid(), {"tenant", "update", Small(kAlice), "--limit", "2MiB"}).code, 0);
  EXPECT_EQ(List(kAlice)[0]["quota"]["limit_bytes"], 2 * kMiB);
  EXPECT_EQ(Run(getuid(), {"tenant", "end", Small(kAlice), "--yes"}).code, 0);
  EXPECT_TRUE(List(kAlice).empty());
}

TEST_F(OwnTenantsTest, WhatTheParentForbidsIsRefused) {
  const uid_t user = testing::CanBeOtherUsers() ? kAlice : getuid();
  const auto create = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"tenant", "create", "--own"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(user, arguments);
  };
  EXPECT_EQ(create({"a", "--guarantee", "1MiB"}).code, 4);
  EXPECT_EQ(create({"a", "--priority", "1"}).code, 4);
  EXPECT_EQ(create({"a", "--max-in-flight", "500"}).code, 4);
  EXPECT_THAT(create({"a", "--owner", "me"}).text, HasSubstr("--owner is for operators"));
  for (const char* name : {"a:b", "a/b", "../a", "", " ", "\n", "{uid}"}) {
    EXPECT_NE(create({name}).code, 0) << name;
  }
  EXPECT_TRUE(List(user, {"--own"}).empty());
  // More than the parent has is no more: the parent's limit holds as well.
  ASSERT_EQ(create({"small", "--limit", "1TiB"}).code, 0);
  EXPECT_EQ(Run(user, {"hold", "--as", Small(user), "--size", "50MiB", "--for", "1ms"}).code, 5);
  EXPECT_EQ(Run(user, {"tenant", "update", "small", "--own", "--priority", "9"}).code, 4);
}

TEST_F(OwnTenantsTest, AnOperatorMayMakeOneAsAUser) {
  const Answer made = Run(getuid(), {"tenant", "create", "small", "--own", "--limit", "8MiB"});
  ASSERT_EQ(made.code, 0) << made.text;
  EXPECT_EQ(Run(getuid(), {"tenant", "create", "deep", "--own", "--parent", Small(getuid())}).code,
            0);
  const json own = List(getuid(), {"--own"});
  ASSERT_EQ(own.size(), 2u) << own;
  EXPECT_EQ(own[1]["usage"]["tenant"], Small(getuid()) + ":deep");
  EXPECT_EQ(own[1]["made"]["parent"], Small(getuid()));
  EXPECT_EQ(Run(getuid(), {"tenant", "end", Small(getuid()) + ":deep", "--own"}).code, 0);
  EXPECT_EQ(Run(getuid(), {"tenant", "end", "small", "--own", "--dry-run"}).code, 0);
  EXPECT_EQ(List(getuid(), {"--own"}).size(), 1u);
  EXPECT_EQ(Run(getuid(), {"tenant", "end", "small", "--own"}).code, 0);
  EXPECT_TRUE(List(getuid()).empty());
}

TEST_F(OwnTenantsTest, EndingWaitsForProgramsThatAreInIt) {
  ASSERT_EQ(Run(getuid(), {"tenant", "create", "small", "--own"}).code, 0);
  auto inside = Client::Connect(
      {.runtime_dir = daemon_->runtime_dir(), .tenant = Small(getuid()), .timeout = kTimeout});
  ASSERT_TRUE(inside.ok()) << inside.status();
  const Answer left = Run(getuid(), {"tenant", "end", "small", "--own"});
  EXPECT_EQ(left.code, 0) << left.text;
  EXPECT_THAT(left.text, HasSubstr("has ended, and still has"));
  EXPECT_NE(Run(getuid(), {"hold", "--as", Small(getuid()), "--size", "1MiB", "--for", "1ms"}).code,
            0);
  EXPECT_NE(Run(getuid(), {"tenant", "create", "small", "--own"}).code, 0) << "not yet";
  const std::string output = output_ + "-waits";
  Child waits =
      Child::Self(Command(getuid(), output, {"tenant", "end", "small", "--own", "--wait", "10m"}));
  // It has begun: it has a session, beside the one inside.
  EXPECT_TRUE(Eventually([&] {
    return Run(getuid(), {"ps", "--json"}).AsJson().value("sessions", json::array()).size() >= 2;
  }));
  inside->reset();
  EXPECT_EQ(waits.Wait(), 0);
  std::ifstream file(output);
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(file), {}), HasSubstr("is gone"));
  unlink(output.c_str());
  EXPECT_EQ(Run(getuid(), {"tenant", "create", "small", "--own"}).code, 0) << "the name is free";
}

// Becomes gpumemctl, as this user. The user need not be allowed to walk to the program.
int Become(const char* uid, const char* output, const char* runtime_dir, char** arguments) {
  const int program = open(testing::ProgramPath("gpumemctl").c_str(), O_PATH);
  const int out = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  uint32_t user = 0;
  if (program < 0 || out < 0 || !absl::SimpleAtoi(uid, &user)) return 120;
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  close(testing::kParentChannel);
  if (chdir("/") != 0) return 121;
  if (user != getuid() && (setgid(user) != 0 || setuid(user) != 0)) return 122;
  setenv("GPUMEM_RUNTIME_DIR", runtime_dir, 1);
  std::vector<char*> argv = {const_cast<char*>("gpumemctl")};
  for (; *arguments != nullptr; ++arguments) argv.push_back(*arguments);
  argv.push_back(nullptr);
  execveat(program, "", argv.data(), environ, AT_EMPTY_PATH);
  return 123;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc > 5 && std::string(argv[1]) == "--run") {
    return gpumem::Become(argv[2], argv[3], argv[4], argv + 5);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
