// SPDX-License-Identifier: Apache-2.0
// The documents' examples work: check_docs.py tries README.md, CHANGELOG.md, CONTRIBUTING.md,
// SECURITY.md and all documents in docs/. It also describes how documents mark examples for other
// places.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/installed_service.h"

namespace gpumem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::InstalledService;

constexpr char kScript[] = "tests/docs/check_docs.py";

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<std::string> Documents() {
  std::vector<std::string> documents = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md",
                                        "SECURITY.md"};
  for (const auto& each : fs::recursive_directory_iterator("docs")) {
    if (each.path().extension() == ".md") documents.push_back(each.path());
  }
  return documents;
}

std::string NameOf(const ::testing::TestParamInfo<std::string>& info) {
  return absl::StrReplaceAll(fs::path(info.param).replace_extension().string(),
                             {{"-", "_"}, {"/", "_"}});
}

struct Result {
  int code;
  std::string output;
};

// Tries documents on this machine, in a folder that the script makes.
Result Try(const std::string& document) {
  char output[] = "/tmp/gpumem-docs-test-XXXXXX";
  close(mkstemp(output));
  std::vector<std::string> args = {"/bin/sh",
                                   "-c",
                                   absl::StrCat("exec >", output, " 2>&1 </dev/null; exec \"$@\""),
                                   "sh",
                                   "/usr/bin/python3",
                                   "-B",
                                   kScript};
  for (const char* each : {"daemon", "daemon/keeper", "client/cli", "client/web"}) {
    args.insert(args.end(), {"--programs", each});
  }
  for (const auto& each : fs::directory_iterator("client/include/gpumem")) {
    args.insert(args.end(), {"--header", each.path()});
  }
  args.insert(args.end(), {"--library", "client/libgpumem.so", "--run-script", "run", document});
  const int code = testing::Child(args).Wait();
  Result result = {code, Read(output)};
  unlink(output);
  return result;
}

class Docs : public ::testing::TestWithParam<std::string> {};

TEST_P(Docs, WorkAsTheySay) {
  const Result result = Try(GetParam());
  EXPECT_EQ(result.code, 0) << result.output;
}

INSTANTIATE_TEST_SUITE_P(All, Docs, ::testing::ValuesIn(Documents()), NameOf);

// An error in a document does not pass.
class WrongDocs : public ::testing::Test {
 protected:
  // Returns the complaint about a document with this text; empty if it passes.
  static std::string Complaint(const std::string& text) {
    char path[] = "/tmp/gpumem-docs-test-XXXXXX";
    close(mkstemp(path));
    std::ofstream(path) << text;
    const Result result = Try(path);
    unlink(path);
    return result.code == 0 ? "" : result.output;
  }
};

TEST_F(WrongDocs, AreFound) {
  EXPECT_EQ(Complaint("Text.\n\n```console\n$ echo a; echo b\na\n…\n$ (exit 3)\n[3]\n```\n"), "");
  EXPECT_THAT(Complaint("```\ngpumemctl status\n```\n"),
              HasSubstr(":1: a block that nobody tries"));
  EXPECT_THAT(Complaint("\n```console\ngpumemctl status\n```\n"),
              HasSubstr(":2: output comes before"));
  EXPECT_THAT(Complaint("```console here\n$ true\n```\n"), HasSubstr("no place is called here"));
  EXPECT_THAT(Complaint("```console\n$ gpumemctl stats\n```\n"), HasSubstr(":2: exit code 2"));
  EXPECT_THAT(Complaint("```console\n$ echo a\nb … c\n```\n"), HasSubstr("and writes\n    a"));
  EXPECT_THAT(Complaint("```console\n# true\n```\n"), HasSubstr("nobody is root here"));
  EXPECT_THAT(Complaint("```console gpu\n$ gpumemctl quote set x\n```\n"),
              HasSubstr("knows no \"quote\""));
  EXPECT_THAT(Complaint("```console gpu\n$ gpumemctl quota set x --limt 3\n```\n"),
              HasSubstr("gpumemctl quota set has no --limt"));
  EXPECT_THAT(Complaint("```console gpu\n$ gpumemctl quota frobnicate x\n```\n"),
              HasSubstr("gpumemctl quota knows no \"frobnicate\""));
  EXPECT_THAT(Complaint("So `gpumemctl pool lst` shows it.\n"),
              HasSubstr("gpumemctl pool knows no \"lst\""));
  EXPECT_THAT(Complaint("```console gpu\n$ gpumemctl status -Z\n```\n"),
              HasSubstr("gpumemctl status has no -Z"));
  EXPECT_THAT(Complaint("```console container\n$ podman run --rm gpumem:1 --bakend host\n```\n"),
              HasSubstr("gpumemd has no --bakend"));
  EXPECT_THAT(Complaint("```console container\n$ podman run --entrypoint gpumemctl gpumem:1 hld\n"
                        "```\n"),
              HasSubstr("gpumemctl knows no \"hld\""));
  EXPECT_THAT(Complaint("```console gpu\n# systemctl stop gpumemd-x\n```\n"),
              HasSubstr("no unit gpumemd-x"));
  EXPECT_THAT(Complaint("So `gpumemctl tpo` shows it.\n"), HasSubstr("knows no \"tpo\""));
  EXPECT_THAT(Complaint("```toml\n[audit]\noutput = 3\n```\n"), HasSubstr("audit.output"));
  EXPECT_THAT(Complaint("```cpp\nint x = \"y\";\n```\n"), HasSubstr("does not compile"));
  EXPECT_THAT(Complaint("```json\n{\n```\n"), HasSubstr(":1: "));
  EXPECT_EQ(Complaint("# A `b`: c\n\n[a](#a-b-c), [e](https://example.org)\n"), "");
  EXPECT_THAT(Complaint("\n[a](no-such-file.md)\n"), HasSubstr(":2: there is no "));
  EXPECT_THAT(Complaint("# A\n\n[a](#b)\n"), HasSubstr("has no heading #b"));
}

// --- The commands for a machine with the service ----------------------------------------

// Files beyond the package's other files, which the service's own tests do not need: gpumemctl, the
// examples, a journal, and the folder of administrators' drop-ins. $1 is the machine's folder.
constexpr char kInstall[] = R"sh(
set -e
mount -t overlay overlay -o "lowerdir=$1/root/usr:/usr" /usr
mount --bind "$1/units" /etc/systemd/system
)sh";

class DocsUnderSystemd : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr char kJournald[] = "/lib/systemd/systemd-journald";

  void SetUp() override {
    const std::string text = Read(GetParam());
    if (text.find("console systemd\n") == std::string::npos) {
      GTEST_SKIP() << "no commands for such a machine";
    }
    if (access(kJournald, X_OK) != 0) GTEST_SKIP() << "systemd-journald is not installed here";
    InstalledService::Options options;
    options.config = absl::StrReplaceAll(Read("deploy/gpumemd.toml"),
                                         {{"backend = \"auto\"", "backend = \"host\""}});
    auto service = InstalledService::Install(options);
    if (absl::IsFailedPrecondition(service.status())) {
      GTEST_SKIP() << service.status().message();
    }
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    const std::string& folder = service_->machine().folder();
    fs::permissions(folder, fs::perms(0755));  // users of it, too
    const std::string usr = folder + "/root/usr";
    for (const char* each : {"/bin", "/share/doc/gpumemd/examples", "/share/gpumem/prometheus"}) {
      fs::create_directories(usr + each);
    }
    fs::copy_file(testing::ProgramPath("gpumemctl"), usr + "/bin/gpumemctl");
    fs::copy("deploy/systemd/drop-ins", usr + "/share/doc/gpumemd/examples");
    fs::copy("deploy/prometheus", usr + "/share/gpumem/prometheus");
    fs::copy_file("deploy/gpumemd.toml", usr + "/share/gpumem/gpumemd.toml");
    const auto installed = service_->machine().Run({"/bin/sh", "-c", kInstall, "install", folder});
    ASSERT_EQ(installed.code, 0) << installed.output;
    std::ofstream(folder + "/units/systemd-journald.service")
        << "[Unit]\nDefaultDependencies=no\n[Service]\nType=notify\nStandardOutput=null\n"
        << "ExecStart=" << kJournald << "\n";
    // The machine has no device files that could be hidden.
    fs::create_directories(folder + "/units/gpumem-metrics.service.d");
    std::ofstream(folder + "/units/gpumem-metrics.service.d/test.conf")
        << "[Service]\nPrivateDevices=no\n";
    // After the drop-in that has the log in a file.
    service_->DropIn("test2", "StandardError=journal");
    for (const char* each : {"systemd-journald", "gpumemd"}) {
      const auto started = service_->Systemctl({"start", each});
      ASSERT_EQ(started.code, 0) << started.output << service_->machine().Log();
    }
  }

  std::unique_ptr<InstalledService> service_;
};

TEST_P(DocsUnderSystemd, WorkAsTheySay) {
  // In the background: more than one command of the machine may take.
  const std::string folder = service_->machine().folder();
  const std::string command = absl::StrCat(
      "cd ", fs::current_path().string(), " && { GPUMEM_DOCS_FOLDER=", folder, " python3 -B ",
      kScript, " --machine --show ", GetParam(), " >", folder, "/tried 2>&1 </dev/null; echo $? >",
      folder, "/code.new; mv ", folder, "/code.new ", folder, "/code; } >/dev/null 2>&1 &");
  ASSERT_EQ(service_->Shell(command).code, 0);
  ASSERT_TRUE(testing::Eventually([&] { return fs::exists(folder + "/code"); }, absl::Minutes(10)))
      << Read(folder + "/tried");
  const std::string tried = Read(folder + "/tried");
  std::cout << tried;  // the commands' real output, for authors of documents
  EXPECT_EQ(Read(folder + "/code"), "0\n") << tried;
}

INSTANTIATE_TEST_SUITE_P(All, DocsUnderSystemd, ::testing::ValuesIn(Documents()), NameOf);

}  // namespace
}  // namespace gpumem
