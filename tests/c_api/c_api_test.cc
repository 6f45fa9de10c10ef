// SPDX-License-Identifier: Apache-2.0
// gpumem.h as programs in C use it, against a real daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "gpumem/client.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;

// Two tenants that this process may be.
constexpr char kConfig[] = R"(
[tier]
capacity = "64MiB"
huge_pages = false
prefault = false
[pinned]
capacity = "8MiB"
[tenant_defaults]
limit = "64MiB"
max_retained = "0"
[[tenant]]
name = "blue"
[[tenant]]
name = "green"
preload = "broker"
[[rule]]
tenant = "blue"
default = true
[[rule]]
tenant = "green"
default = true
)";

class CApi : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start(
        {.config = kConfig, .flags = {"--host-devices", "2", "--host-device-bytes", "256MiB"}});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
  }

  int Run(const std::string& program, const std::string& argument) {
    Child child({testing::ProgramPath(program), argument},
                {{"GPUMEM_RUNTIME_DIR", daemon_->runtime_dir()},
                 {"TEST_GPUMEMCTL", testing::ProgramPath("gpumemctl")},
                 {"TEST_DAEMON_PID", absl::StrCat(daemon_->pid())}});
    return child.Wait();
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_P(CApi, Works) {
  EXPECT_EQ(Run("gpumem_c_program", GetParam()), 0) << "see its words above";
  if (GetParam() == std::string("daemon_gone")) return;
  for (const char* tenant : {"blue", "green"}) {
    const auto client = Client::Connect({.runtime_dir = daemon_->runtime_dir(), .tenant = tenant});
    ASSERT_OK(client);
    EXPECT_TRUE(Eventually([&] { return (*client)->GetUsage().value().charged_bytes == 0; }))
        << tenant << " is charged with what its program has left";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Parts, CApi,
    ::testing::Values("errors", "nulls", "struct_sizes", "client", "segments", "raw_handles",
                      "events", "lost_segments", "daemon_gone", "waiting", "revocable",
                      "publications", "publication_list", "publication_mistakes", "published_files",
                      "claims", "pool", "shared_blocks", "trying_pool", "pool_limits",
                      "pool_pressure", "pool_callbacks", "pool_suspension", "suspension_requests",
                      "suspension_requests_of_pools", "suspended_publication", "tenants",
                      "frameworks", "environment", "fork", "exit"),
    [](const auto& part) { return std::string(part.param); });

using CApiLoaded = CApi;

TEST_F(CApiLoaded, AtRunTime) {
  EXPECT_EQ(Run("gpumem_c_loader", testing::ProgramPath("library")), 0) << "see its words above";
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns gpumem.h and the headers that it includes.
std::string CHeaders() {
  const std::string folder = "client/include/gpumem/";
  std::string headers = ReadFile(folder + "gpumem.h");
  const std::regex include(R"(\n#include .(gpumem_[a-z_]+\.h))");
  const std::string top = headers;
  for (std::sregex_iterator i(top.begin(), top.end(), include), end; i != end; ++i) {
    headers += ReadFile(folder + (*i)[1].str());
  }
  return headers;
}

TEST(CApiProgram, CallsEveryFunction) {
  std::string program;
  for (const char* part : {"main", "errors", "client", "events", "files", "waiting", "publications",
                           "claims", "pool", "suspension", "tenants", "frameworks"}) {
    program += ReadFile(absl::StrCat("tests/c_api/", part, ".c"));
  }
  const std::string headers = CHeaders();
  const std::regex declaration(R"(\n[a-z][a-z0-9_ *]*[ *](gpumem_[a-z_]+\())");
  int functions = 0;
  for (std::sregex_iterator i(headers.begin(), headers.end(), declaration), end; i != end; ++i) {
    EXPECT_THAT(program, ::testing::HasSubstr((*i)[1].str()));
    ++functions;
  }
  EXPECT_GE(functions, 90);
}

}  // namespace
}  // namespace gpumem
