// SPDX-License-Identifier: Apache-2.0
// The shells' completions of a command line, with a real daemon to ask for names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/cli/gpumemctl.h"

namespace gpumem {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::SizeIs;
using Words = std::vector<std::string>;

bool Has(const std::string& program) {
  for (const char* folder : {"/usr/bin/", "/bin/", "/usr/local/bin/"}) {
    if (std::filesystem::exists(folder + program)) return true;
  }
  return false;
}

class CompletionTest : public GpumemctlTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (!Has(GetParam())) GTEST_SKIP() << "there is no " << GetParam() << " here";
    GpumemctlTest::SetUp();
    script_ = dir_ + "/completion";
    std::ofstream(script_) << Output({"client/cli/gpumemctl_reference", GetParam()});
  }

  std::string Output(const std::vector<std::string>& argv) {
    Process process({.argv = argv, .stderr_too = true});
    std::string text;
    while (auto line = process.ReadLine(absl::Now() + kTimeout)) {
      absl::StrAppend(&text, *line, "\n");
    }
    EXPECT_EQ(process.Wait(absl::Now() + kTimeout), 0) << text;
    return text;
  }

  // Returns the shell's completions of the last of `words`, sorted. Only words of our own: no
  // quoting.
  Words Complete(const Words& words) {
    const std::string line = absl::StrJoin(words, " ");
    const std::string path =
        absl::StrCat("PATH=", std::filesystem::current_path().string(), "/client/cli:$PATH; ");
    std::string shell;
    if (GetParam() == "bash") {
      shell = absl::StrCat(path, "source ", script_, "; COMP_WORDS=(", line,
                           words.back().empty() ? " ''" : "", "); COMP_CWORD=", words.size() - 1,
                           "; _gpumemctl; printf '%s\\n' \"${COMPREPLY[@]}\"");
    } else {
      shell = absl::StrCat("set -x PATH $PWD/client/cli $PATH; source ", script_, "; complete -C '",
                           line, "' | cut -f 1");
    }
    Words offered =
        absl::StrSplit(Output({"/usr/bin/env", GetParam(),
                               GetParam() == "bash" ? "--norc" : "--no-config", "-c", shell}),
                       '\n', absl::SkipEmpty());
    std::sort(offered.begin(), offered.end());
    return offered;
  }

  std::string script_;
};

INSTANTIATE_TEST_SUITE_P(Shells, CompletionTest, testing::Values("bash", "fish"),
                         [](const auto& shell) { return shell.param; });

TEST_P(CompletionTest, Commands) {
  EXPECT_THAT(Complete({"gpumemctl", "que"}), IsEmpty());
  EXPECT_THAT(Complete({"gpumemctl", "quo"}), ElementsAre("quota"));
  EXPECT_THAT(Complete({"gpumemctl", "--json", "dev"}), ElementsAre("devices"));
  EXPECT_THAT(Complete({"gpumemctl", "quota", ""}), ElementsAre("get", "list", "set", "unset"));
  EXPECT_THAT(Complete({"gpumemctl", ""}), IsSupersetOf({"status", "hold", "quota"}));
}

TEST_P(CompletionTest, Options) {
  EXPECT_THAT(Complete({"gpumemctl", "quota", "set", "--total"}), ElementsAre("--total-limit"));
  EXPECT_THAT(Complete({"gpumemctl", "trim", "--"}),
              IsSupersetOf({"--tenant", "--keep", "--runtime-dir", "--json", "--dry-run"}));
  EXPECT_THAT(Complete({"gpumemctl", "trim", "--"}), Not(Contains("--total-limit")));
}

TEST_P(CompletionTest, WordsAndFiles) {
  EXPECT_THAT(Complete({"gpumemctl", "hold", "--kind", ""}),
              ElementsAre("driver", "host", "ipc", "mempool", "pinned", "vmm"));
  EXPECT_THAT(Complete({"gpumemctl", "pool", "set", "x", "--reuse-opportunistic", "o"}),
              ElementsAre("off", "on"));
  EXPECT_THAT(Complete({"gpumemctl", "quota", "set", "x", "--clear", "total"}),
              ElementsAre("total-limit"));
  EXPECT_THAT(Complete({"gpumemctl", "publish", "x", "--file", dir_ + "/comp"}),
              ElementsAre(script_));
  EXPECT_THAT(Complete({"gpumemctl", "completion", "f"}), ElementsAre("fish"));
  EXPECT_THAT(Complete({"gpumemctl", "status", "--output", "j"}), ElementsAre("json"));
  EXPECT_THAT(Complete({"gpumemctl", "status", "-o", "j"}), ElementsAre("json"));
  // A number of bytes has no completion, and is no file.
  EXPECT_THAT(Complete({"gpumemctl", "hold", "--size", ""}), IsEmpty());
}

TEST_P(CompletionTest, NamesThatTheDaemonKnows) {
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "1MiB"}, &held);
  EXPECT_THAT(Complete({"gpumemctl", "--runtime-dir", dir_, "ps", "--tenant", ""}),
              ElementsAre(tenant_));
  EXPECT_THAT(Complete({"gpumemctl", "--runtime-dir", dir_, "segments", "--device", "HOST"}),
              SizeIs(2));
  EXPECT_THAT(Complete({"gpumemctl", "--runtime-dir", dir_, "quota", "get", "user"}),
              ElementsAre(tenant_));
  End(*holder);
  ASSERT_EQ(Run({"publish", "weights", "--file", script_}).code, 0);
  EXPECT_THAT(Complete({"gpumemctl", "--runtime-dir", dir_, "verify", "we"}),
              ElementsAre("weights"));
  // Without a daemon there are no names, and no message.
  EXPECT_THAT(Complete({"gpumemctl", "--runtime-dir", dir_ + "/none", "verify", "we"}), IsEmpty());
}

}  // namespace
}  // namespace gpumem
