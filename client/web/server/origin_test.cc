// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/origin.h"

#include <gtest/gtest.h>

namespace gpumem::web {
namespace {

constexpr std::nullopt_t kNone = std::nullopt;
using Field = std::optional<std::string>;

Sender HostOnly(Field host) { return CheckSender({.host = host}, {"gpu.example"}, false); }

TEST(OriginTest, Hosts) {
  for (const char* host : {"localhost", "LOCALHOST", "localhost:8080", "127.0.0.1", "127.0.0.1:1",
                           "[::1]", "[::1]:65535", "gpu.example", "GPU.Example:443"}) {
    EXPECT_EQ(HostOnly(host), Sender::kAdmitted) << host;
  }
  for (const char* host : {"",
                           ":",
                           ":80",
                           "localhost:",
                           "localhost:x",
                           "localhost:80:80",
                           "localhost:123456",
                           "localhost.",
                           "localhost.evil.example",
                           "evil.example",
                           "127.0.0.2",
                           "0.0.0.0",
                           "127.1",
                           "2130706433",
                           "::1",
                           "[::1",
                           "[::1]x",
                           "[::]",
                           "gpu.example.",
                           "xgpu.example",
                           "localhost, localhost",
                           " localhost",
                           "localhost ",
                           "localhost\t",
                           "user@localhost",
                           "localhost/",
                           "[::ffff:127.0.0.1]"}) {
    EXPECT_EQ(HostOnly(host), Sender::kWrongHost) << host;
  }
  EXPECT_EQ(HostOnly(kNone), Sender::kWrongHost);
}

TEST(OriginTest, Origins) {
  const auto check = [](const char* host, Field origin) {
    return CheckSender({.host = host, .origin = origin}, {"gpu.example"}, true);
  };
  EXPECT_EQ(check("localhost:8080", kNone), Sender::kAdmitted);
  EXPECT_EQ(check("localhost:8080", "http://localhost:8080"), Sender::kAdmitted);
  EXPECT_EQ(check("gpu.example", "https://gpu.example"), Sender::kAdmitted);
  EXPECT_EQ(check("gpu.example", "https://GPU.example"), Sender::kAdmitted);
  for (const char* origin :
       {"", "null", "http://localhost", "http://localhost:80801", "http://127.0.0.1:8080",
        "https://evil.example", "http://localhost:8080.evil.example", "localhost:8080",
        "ftp://localhost:8080", "http://localhost:8080/", "http://localhost:8080, http://x",
        "http://x@localhost:8080", "file://"}) {
    EXPECT_EQ(check("localhost:8080", origin), Sender::kOtherSite) << origin;
  }
  // The host comes first: its check cannot be avoided.
  EXPECT_EQ(check("evil.example", "http://evil.example"), Sender::kWrongHost);
}

TEST(OriginTest, FetchMetadata) {
  const auto check = [](Field site, Field mode, Field dest, bool page) {
    return CheckSender(
        {.host = "localhost", .fetch_site = site, .fetch_mode = mode, .fetch_dest = dest}, {},
        page);
  };
  EXPECT_EQ(check("same-origin", "cors", "empty", false), Sender::kAdmitted);
  EXPECT_EQ(check("none", "navigate", "document", true), Sender::kAdmitted);
  for (const char* site : {"cross-site", "same-site", "", "none, none", "Same-Origin"}) {
    EXPECT_EQ(check(site, "cors", "empty", false), Sender::kOtherSite) << site;
    EXPECT_EQ(check(site, "no-cors", "script", true), Sender::kOtherSite) << site;
    // A link of another site leads to the page, not to data, and not into a frame.
    EXPECT_EQ(check(site, "navigate", "document", true), Sender::kAdmitted) << site;
    EXPECT_EQ(check(site, "navigate", "document", false), Sender::kOtherSite) << site;
    EXPECT_EQ(check(site, "navigate", "iframe", true), Sender::kOtherSite) << site;
    EXPECT_EQ(check(site, "navigate", kNone, true), Sender::kOtherSite) << site;
  }
}

TEST(OriginTest, HostNames) {
  for (const char* name : {"gpu.example", "gpu", "10.0.0.1", "[::1]", "a_b"}) {
    EXPECT_TRUE(IsHostName(name)) << name;
  }
  for (const char* name : {"", "gpu.example:80", "http://gpu", "gpu/", "a b", "[]", "[x]", "::1"}) {
    EXPECT_FALSE(IsHostName(name)) << name;
  }
}

}  // namespace
}  // namespace gpumem::web
