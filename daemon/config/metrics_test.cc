// SPDX-License-Identifier: Apache-2.0
// The configuration's addresses for metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/config/config.h"

namespace gpumemd {
namespace metrics_test {

using ::testing::HasSubstr;

absl::StatusOr<MetricsConfig> Parse(absl::string_view keys) {
  absl::StatusOr<Config> config =
      ParseConfig(absl::StrCat("[metrics]\n", keys), "file",
                  {.user = [](const std::string&) -> std::optional<uid_t> { return std::nullopt; },
                   .group = [](const std::string&) -> std::optional<gid_t> { return 7; }});
  if (!config.ok()) return config.status();
  return config->metrics;
}

absl::StatusOr<MetricsConfig> ParseListen(absl::string_view listen) {
  return Parse(absl::StrCat("listen = \"", listen, "\""));
}

TEST(ConfigMetricsTest, AreOffUnlessAPlaceIsNamed) {
  EXPECT_FALSE(DefaultConfig().metrics.enabled());
  EXPECT_FALSE(Parse("")->enabled());
  EXPECT_EQ(*ParseListen(""), MetricsConfig{});
}

TEST(ConfigMetricsTest, Places) {
  EXPECT_EQ(*ParseListen("unix:/run/m.sock"), MetricsConfig{.unix_path = "/run/m.sock"});
  EXPECT_EQ(*ParseListen("127.0.0.1:9400"), (MetricsConfig{.address = "127.0.0.1", .port = 9400}));
  EXPECT_EQ(*ParseListen("127.8.9.1:0"), (MetricsConfig{.address = "127.8.9.1", .port = 0}));
  EXPECT_EQ(*ParseListen("[::1]:65535"), (MetricsConfig{.address = "::1", .port = 65535}));
  EXPECT_EQ(
      *Parse("listen = \"unix:/m\"\nsocket_mode = \"0600\"\nsocket_group = \"g\"\n"
             "max_tenants = 3"),
      (MetricsConfig{.unix_path = "/m", .socket_mode = 0600, .socket_gid = 7, .max_tenants = 3}));
}

TEST(ConfigMetricsTest, WhatIsNoPlaceIsRefused) {
  for (const char* listen :
       {"9400", ":9400", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
        "127.0.0.1:http", "::1:9400", "[::1]", "[127.0.0.1]:9400", "[::1:9400", "::1]:9400",
        "unix:", "unix:run/m.sock", "/run/m.sock", "*:9400", "node-1:9400", "tcp:127.0.0.1:9400"}) {
    EXPECT_THAT(std::string(ParseListen(listen).status().message()),
                HasSubstr("is not an address to listen on"))
        << listen;
  }
}

TEST(ConfigMetricsTest, RemoteAddressesNeedAllowRemote) {
  for (const char* listen : {"0.0.0.0:9400", "192.168.1.2:9400", "[::]:9400", "[fe80::1]:9400",
                             "128.0.0.1:9400", "[::ffff:10.0.0.1]:9400"}) {
    EXPECT_THAT(std::string(ParseListen(listen).status().message()), HasSubstr("allow_remote"))
        << listen;
    EXPECT_TRUE(Parse(absl::StrCat("allow_remote = true\nlisten = \"", listen, "\"")).ok())
        << listen;
  }
}

}  // namespace metrics_test
}  // namespace gpumemd
