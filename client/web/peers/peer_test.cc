// SPDX-License-Identifier: Apache-2.0
#include "client/web/peers/peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/web/peers/overview.h"

namespace gpumem::web {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

TEST(PeerTest, Urls) {
  const auto peer = ParsePeer("https://node2.example/gpu/");
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_TRUE(peer->tls);
  EXPECT_EQ(peer->host, "node2.example");
  EXPECT_EQ(peer->port, 443);
  EXPECT_EQ(peer->path, "/gpu");
  EXPECT_EQ(ParsePeer("http://127.0.0.1:8080")->port, 8080);
  EXPECT_EQ(ParsePeer("http://node")->path, "");
  EXPECT_EQ(ParsePeer("https://[::1]:1/")->host, "::1");
  EXPECT_EQ(ParsePeer("unix:/run/web.sock")->unix_path, "/run/web.sock");
  for (const char* wrong : {"",
                            "node",
                            "ftp://node",
                            "http://",
                            "http:///x",
                            "http://:80",
                            "http://node:",
                            "http://node:0",
                            "http://node:65536",
                            "http://node:x",
                            "http://[::1",
                            "http://[x]",
                            "http://user@node",
                            "http://node/?x",
                            "http://node/#x",
                            "http://no de",
                            "http://node/\n",
                            "unix:",
                            "unix:relative",
                            "http://node/\xc3\xa4",
                            "HTTP://node",
                            "file:///etc/passwd"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePeer(wrong).status())) << wrong;
  }
  EXPECT_FALSE(ParsePeer(absl::StrCat("http://n/", std::string(2000, 'x'))).ok());
}

TEST(PeerTest, Headers) {
  std::vector<Peer> peers = {*ParsePeer("https://a"), *ParsePeer("https://b")};
  ASSERT_TRUE(AddHeaders("# logins\n\nhttps://a Authorization: Basic abc=\n"
                         "*\tX-Group:  gpu users \r\n",
                         &peers)
                  .ok());
  EXPECT_THAT(peers[0].headers,
              ElementsAre(Pair("Authorization", "Basic abc="), Pair("X-Group", "gpu users")));
  EXPECT_THAT(peers[1].headers, ElementsAre(Pair("X-Group", "gpu users")));
  for (const char* wrong : {"https://c Authorization: secret", "https://a", "https://a secret",
                            "https://a : secret", "https://a X Y: secret", "https://a X:",
                            "Authorization: secret", "* X: secret\x01y", "https://a/ X: secret"}) {
    const absl::Status status = AddHeaders(absl::StrCat("\n", wrong), &peers);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_THAT(status.message(), HasSubstr("line 2 "));
    EXPECT_THAT(status.message(), Not(HasSubstr("secret")));
  }
}

TEST(PeerTest, Overviews) {
  EXPECT_EQ(*CleanOverview("{\"daemon\":\"ok\",\"node\":\"n\",\"tenants\":3,\"waiting\":-1,"
                           "\"sessions\":\"many\",\"evil\":[1],\"devices\":[{\"index\":0,"
                           "\"uuid\":\"G\",\"capacity_bytes\":5,\"x\":1},7]}"),
            "{\"daemon\":\"ok\",\"devices\":[{\"capacity_bytes\":5,\"index\":0,\"uuid\":\"G\"}],"
            "\"node\":\"n\",\"tenants\":3}");
  for (const char* wrong : {"", "[]", "{", "null", "{}", "{\"daemon\":1}", "{\"daemon\":\"x\"}",
                            "<html>", "{\"daemon\":\"ok\"} x", "\xff"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CleanOverview(wrong).status())) << wrong;
  }
  EXPECT_FALSE(CleanOverview(std::string(64 * 1024, '[')).ok());
  std::string large =
      absl::StrCat("{\"daemon\":\"ok\",\"node\":\"", std::string(10000, 'x'), "\",\"devices\":[{}");
  for (int i = 0; i < 10000; ++i) large += ",{}";
  EXPECT_LT(CleanOverview(large + "]}")->size(), 1000U);
}

}  // namespace
}  // namespace gpumem::web
