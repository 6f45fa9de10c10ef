// SPDX-License-Identifier: Apache-2.0
// The configuration as a file: the example of the packages, and files that cannot be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "daemon/config/config.h"

namespace gpumemd {
namespace config_file_test {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(LoadConfigFileTest, TheExampleIsValid) {
  absl::StatusOr<Config> config = LoadConfigFile("deploy/gpumemd.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->file, "deploy/gpumemd.toml");
  EXPECT_EQ(config->tenant_defaults.limit, SizeLimit{.percent = 50});
  EXPECT_EQ(config->tenant_defaults.pinned_limit, SizeLimit{.percent = 50});
  EXPECT_EQ(config->pinned_capacity, SizeLimit{.percent = 25});
  EXPECT_THAT(config->notices, IsEmpty());
}

// The commented-out examples must not rot: without the '#' they are valid as well.
TEST(LoadConfigFileTest, TheExamplesInTheExampleAreValid) {
  std::ifstream file("deploy/gpumemd.toml");
  std::string text;
  for (std::string line; std::getline(file, line);) {
    bool example = line.size() > 1 && line[0] == '#' && line[1] != ' ';
    text += (example ? line.substr(1) : line) + "\n";
  }
  absl::StatusOr<Config> config =
      ParseConfig(text, "example",
                  {.user = [](const std::string&) { return uid_t{1}; },
                   .group = [](const std::string&) { return gid_t{1}; }});
  ASSERT_TRUE(config.ok()) << config.status() << "\n" << text;
  EXPECT_EQ(config->runtime_dir, "/run/gpumem");
  EXPECT_EQ(config->admin_gid, 1u);
  ASSERT_THAT(config->tenants, SizeIs(3));
  EXPECT_THAT(config->tenants[0].quota.device_limits, SizeIs(1));
  EXPECT_EQ(QuotaOf(*config, "nightly").parent, "training");
  EXPECT_THAT(config->rules, SizeIs(6));
}

TEST(LoadConfigFileTest, TellsWhatIsWrongWithTheFile) {
  absl::Status missing = LoadConfigFile("/no/such/file.toml").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()),
              testing::HasSubstr("cannot read the configuration /no/such/file.toml"));
  EXPECT_FALSE(LoadConfigFile("/").ok());
  EXPECT_EQ(LoadConfigFile("/dev/zero").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace config_file_test
}  // namespace gpumemd
