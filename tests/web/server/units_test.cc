// SPDX-License-Identifier: Apache-2.0
// The units of gpumem-web as they are shipped, beside those of gpumemd, on a machine with systemd.
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/web/server/testing/raw_client.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/installed_service.h"

namespace gpumem {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::InstalledService;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kSocket[] = "/run/gpumem-web/web.sock";

// Runs inside: puts gpumem-web beside the installed daemon. $1 is the folder.
constexpr char kInstallWeb[] = R"sh(
set -e
mount -t overlay overlay -o "lowerdir=$1/web:/usr/sbin" /usr/sbin
)sh";

std::string ReadAll(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(WebUnitsTest, AreActivatedBySocketAndPort) {
  // As docs/how-to/look-by-browser.md has it.
  const std::string config = absl::StrReplaceAll(
      ReadAll("deploy/gpumemd.toml"),
      {{"#view_group = \"gpumem-metrics\"", "view_group = \"gpumem-metrics\""}});
  auto installed = InstalledService::Install({.config = config});
  if (absl::IsFailedPrecondition(installed.status())) GTEST_SKIP() << installed.status().message();
  ASSERT_TRUE(installed.ok()) << installed.status();
  InstalledService& service = **installed;
  const std::string& folder = service.machine().folder();
  for (const char* each : {"/web", "/units/gpumem-web.service.d", "/units/gpumem-web.socket.d"}) {
    fs::create_directories(folder + each);
  }
  fs::copy_file(testing::ProgramPath("gpumem_web"), folder + "/web/gpumem-web");
  const auto mounted = service.machine().Run({"/bin/sh", "-c", kInstallWeb, "install", folder});
  ASSERT_EQ(mounted.code, 0) << mounted.output;
  for (const char* unit : {"gpumem-web.service", "gpumem-web.socket"}) {
    service.machine().WriteUnit(unit, ReadAll(absl::StrCat("deploy/systemd/", unit)));
  }
  service.machine().WriteUnit("gpumem-web.socket.d/tcp.conf",
                              ReadAll("deploy/systemd/drop-ins/gpumem-web-tcp.conf"));
  // That machine has no device files to hide.
  service.machine().WriteUnit(
      "gpumem-web.service.d/test.conf",
      absl::StrCat("[Service]\nPrivateDevices=no\nStandardError=append:", folder, "/web.log\n"));
  const auto log = [&] {
    return absl::StrCat(service.Log(), ReadAll(folder + "/web.log"), service.machine().Log(),
                        service.Systemctl({"status", "gpumem-web.service"}).output);
  };
  for (const char* unit : {"gpumemd.service", "gpumem-web.socket"}) {
    const auto started = service.Systemctl({"start", unit});
    ASSERT_EQ(started.code, 0) << started.output << log();
  }
  EXPECT_EQ(service.machine().Property("gpumem-web.service", "ActiveState"), "inactive");

  const auto root = service.Role({"get", "0", "/api/v1/snapshot"});
  EXPECT_THAT(root.output, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("\"sees\":\"all\"")))
      << log();
  const auto user = service.Role({"get", "1000", "/api/v1/snapshot"});
  EXPECT_THAT(user.output, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("\"sees\":\"own\"")))
      << log();
  EXPECT_THAT(service.Role({"get", "1000", "/api/v1/me"}).output, HasSubstr("\"uid\":1000,"));
  EXPECT_THAT(service.Role({"login", "1000", "9410"}).output, HasSubstr("\"uid\":1000,")) << log();

  // It runs as a dynamic user, without the rights of others.
  const std::string pid = service.machine().Property("gpumem-web.service", "MainPID");
  const auto status = service.Shell(absl::StrCat("cat /proc/", pid, "/status"));
  EXPECT_THAT(status.output, AllOf(HasSubstr("CapEff:\t0000000000000000"),
                                   HasSubstr("NoNewPrivs:\t1"), Not(HasSubstr("Uid:\t0\t"))));
  // The socket outlives it.
  EXPECT_EQ(service.Systemctl({"stop", "gpumem-web.service"}).code, 0);
  EXPECT_THAT(service.Role({"get", "1000", "/"}).output, HasSubstr("<!doctype html>")) << log();
}

// Inside: a viewer of this uid.
int Look(const std::string& role, uid_t uid, const std::string& what) {
  if (setgroups(0, nullptr) != 0 || setgid(uid) != 0 || setuid(uid) != 0) return 9;
  web::RawClient client{std::string(kSocket)};
  if (role == "get") {
    std::cout << client.Get(what);
    return 0;
  }
  const std::string link = client.Post("/api/v1/links", "");
  const size_t at = link.find("#login=");
  uint32_t port = 0;
  if (at == std::string::npos || !absl::SimpleAtoi(what, &port)) return 8;
  web::RawClient tcp(static_cast<uint16_t>(port));
  const std::string key = web::BodyOf(
      tcp.Post("/api/v1/login", absl::StrCat("{\"token\":\"", link.substr(at + 7, 43), "\"}")));
  if (key.size() < 51) return 7;
  std::cout << tcp.Get("/api/v1/me",
                       absl::StrCat("Authorization: Bearer ", key.substr(8, 43), "\r\n"));
  return 0;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  uid_t uid = 0;
  if (argc == 5 && std::string(argv[1]) == "--role" && absl::SimpleAtoi(argv[3], &uid)) {
    return gpumem::Look(argv[2], uid, argv[4]);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
