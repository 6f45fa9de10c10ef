// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/api_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/kubernetes/api/cache.h"
#include "client/kubernetes/api/testing/fake_api_server.h"
#include "common/bytes.h"

namespace gpumem::kubernetes {
namespace api_server_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kDriver[] = "gpu.nvidia.com";

std::string ClaimText(int number) {
  return absl::StrCat(R"({"metadata": {"name": "c)", number, R"(", "namespace": "team"}, "status": {
          "allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com", "pool": "node-1",
            "device": "gpu-0", "consumedCapacity": {"memory": "1Gi"}}]}},
          "reservedFor": [{"resource": "pods", "name": "a", "uid": "b"}]}})");
}

class ApiServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("token", "token\n");
    Write("ca", certificate_.certificate);
  }
  ~ApiServerTest() override {
    unlink(Path("token").c_str());
    unlink(Path("ca").c_str());
  }
  static std::string Path(const std::string& name) {
    return absl::StrCat(testing::TempDir(), "/api_server_", name);
  }
  static void Write(const std::string& name, const std::string& text) {
    std::ofstream(Path(name), std::ios::trunc) << text;
  }
  ApiServer Connect(const std::string& host = "127.0.0.1",
                    absl::Duration timeout = absl::Minutes(1)) const {
    return ApiServer({.host = host,
                      .port = server_->port(),
                      .token_file = Path("token"),
                      .ca_file = Path("ca"),
                      .timeout = timeout});
  }

  const Certificate certificate_ = MakeCertificate("localhost", "127.0.0.1");
  std::unique_ptr<FakeApiServer> server_ = std::make_unique<FakeApiServer>(certificate_);
};

TEST(ApiServerUrlTest, AddressesAreRead) {
  const auto parsed = [](const std::string& url) {
    const auto options = ParseUrl(url);
    return options.ok() ? absl::StrCat(options->host, " ", options->port) : "";
  };
  EXPECT_EQ(parsed("https://10.96.0.1:6443"), "10.96.0.1 6443");
  EXPECT_EQ(parsed("https://api.example.com/"), "api.example.com 443");
  EXPECT_EQ(parsed("https://[fd00::1]:6443"), "fd00::1 6443");
  EXPECT_EQ(parsed("https://[fd00::1]"), "fd00::1 443");
  for (const char* url : {"", "https://", "http://a", "a:443", "https://a:0", "https://a:65536",
                          "https://a:x", "https://a:", "https://a/b", "https://[fd00::1",
                          "https://[fd00::1]x", "https://u@a", "https://a b"}) {
    EXPECT_EQ(parsed(url), "") << url;
  }
}

TEST_F(ApiServerTest, ListsAreReadInParts) {
  server_->SetClaims({ClaimText(0), ClaimText(1), "{}", ClaimText(2), ClaimText(3)});
  server_->SetPart(2);
  ApiServer api = Connect();
  const auto claims = api.Claims(kDriver);
  ASSERT_TRUE(claims.ok()) << claims.status();
  ASSERT_THAT(*claims, SizeIs(4));
  EXPECT_EQ((*claims)[3].name, "c3");
  EXPECT_THAT(server_->Requests(), SizeIs(3));
}

TEST_F(ApiServerTest, SelectorsAreSent) {
  ApiServer api = Connect("localhost");
  const std::string selector = "spec.nodeName=node-1,spec.driver=gpu.nvidia.com";
  ASSERT_TRUE(api.List("resourceslices", selector,
                       [](absl::string_view) { return absl::StatusOr<std::string>(""); })
                  .ok());
  EXPECT_EQ(server_->Requests().at(0).selector, selector);
}

// Claims of other users may be as large as Kubernetes lets them be.
TEST_F(ApiServerTest, LargeObjectsHideNoOthers) {
  std::vector<std::string> claims;
  for (int i = 0; i < 20; ++i) {
    claims.push_back(absl::StrCat(R"({"metadata": {"name": "large-)", i, R"("}, "a": ")",
                                  std::string(1 << 20, 'a'), "\"}"));
  }
  claims.push_back(ClaimText(0));
  server_->SetClaims(claims);
  ApiServer api = Connect();
  const auto found = api.Claims(kDriver);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, SizeIs(1));
}

TEST_F(ApiServerTest, AClaimIsRead) {
  server_->SetClaims({ClaimText(0), R"({"metadata": {"name": "other", "namespace": "team"}})"});
  ApiServer api = Connect();
  const auto claim = api.ClaimOf("team", "c0", kDriver);
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ(claim->shares.size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(api.ClaimOf("team", "c1", kDriver).status()));
  EXPECT_TRUE(absl::IsNotFound(api.ClaimOf("team", "other", kDriver).status()));
  const size_t requests = server_->Requests().size();
  EXPECT_TRUE(absl::IsInvalidArgument(api.ClaimOf("team", "../c0", kDriver).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(api.ClaimOf("", "c0", kDriver).status()));
  EXPECT_EQ(server_->Requests().size(), requests);
  // A path that is unknown says nothing about the claim.
  server_->Handle([](const FakeApiServer::Request&) {
    return FakeApiServer::Answer{404, "404 page not found"};
  });
  EXPECT_TRUE(absl::IsUnimplemented(api.ClaimOf("team", "c0", kDriver).status()));
}

TEST_F(ApiServerTest, ACancelledServerIsAskedNothing) {
  ApiServer api = Connect();
  api.Cancel();
  EXPECT_TRUE(absl::IsCancelled(api.Claims(kDriver).status()));
  EXPECT_THAT(server_->Requests(), IsEmpty());
}

std::string PodText(int number, absl::string_view more = "") {
  return absl::StrFormat(R"({"metadata": {"name": "p%d", "namespace": "team",
      "uid": "099b88fb-2a99-45ad-af94-d91eb81a%04d"%s}})",
                         number, number, more);
}

TEST_F(ApiServerTest, PodsOfTheNodeAreReadInParts) {
  ApiServer api = Connect();
  EXPECT_TRUE(absl::IsPermissionDenied(api.Pods("node-1").status()));
  server_->SetPods({PodText(3), PodText(2), "{}", PodText(1)});
  server_->SetPart(2);
  const auto pods = api.Pods("node-1");
  ASSERT_TRUE(pods.ok()) << pods.status();
  ASSERT_THAT(pods->pods, SizeIs(3));
  EXPECT_EQ(pods->pods[0].name, "p1");
  EXPECT_THAT(pods->problems, SizeIs(1));
  EXPECT_EQ(server_->Requests().back().selector,
            "spec.nodeName=node-1,status.phase!=Succeeded,status.phase!=Failed");

  server_->SetPods({PodText(1), PodText(2), PodText(1)});
  EXPECT_TRUE(absl::IsInvalidArgument(api.Pods("node-1").status())) << "in two parts";
}

// Users make large pods. They do not keep others from being listed.
TEST_F(ApiServerTest, LargePodsAreReadInSmallerParts) {
  const std::string large(kMostText / 3, 'a');
  for (const size_t most : {size_t{25}, size_t{1}}) {
    server_->Handle([&](const FakeApiServer::Request& request) {
      size_t begin = 0, limit = 0;
      (void)absl::SimpleAtoi(request.next, &begin);
      (void)absl::SimpleAtoi(request.limit, &limit);
      if (limit > most) return FakeApiServer::Answer{200, std::string(kMostText + 1, ' ')};
      const std::string next = begin + 1 < 4 ? absl::StrCat(begin + 1) : "";
      const std::string text =
          PodText(static_cast<int>(begin), absl::StrCat(", \"x\": \"", large, "\""));
      return FakeApiServer::Answer{
          200, absl::StrCat(R"({"apiVersion": "v1", "kind": "PodList", "metadata": {"continue": ")",
                            next, R"("}, "items": [)", text, "]}")};
    });
    const auto pods = Connect().Pods("node-1");
    ASSERT_TRUE(pods.ok()) << pods.status();
    EXPECT_THAT(pods->pods, SizeIs(4));
  }
  server_->Handle([](const FakeApiServer::Request&) {
    return FakeApiServer::Answer{200, std::string(kMostText + 1, ' ')};
  });
  EXPECT_TRUE(absl::IsResourceExhausted(Connect().Pods("node-1").status()));
}

TEST_F(ApiServerTest, TheVersionOfTheServerIsFound) {
  server_->SetClaims({ClaimText(0)});
  ApiServer api = Connect();
  for (const char* version : {"v1beta1", "v1beta2", "v1"}) {
    server_->SetVersion(version);
    const auto claims = api.Claims(kDriver);
    ASSERT_TRUE(claims.ok()) << claims.status();
    EXPECT_THAT(*claims, SizeIs(1));
  }
  server_->SetVersion("v1alpha3");
  EXPECT_TRUE(absl::IsUnimplemented(api.Claims(kDriver).status()));
}

TEST_F(ApiServerTest, TheTokenIsReadAnew) {
  ApiServer api = Connect();
  EXPECT_TRUE(api.Claims(kDriver).ok());
  server_->SetToken("next");
  EXPECT_TRUE(absl::IsUnauthenticated(api.Claims(kDriver).status()));
  Write("token", "next");
  EXPECT_TRUE(api.Claims(kDriver).ok());
  for (const std::string& bad : {std::string(), std::string(100000, 'a'), std::string("a\nb: c")}) {
    Write("token", bad);
    EXPECT_TRUE(absl::IsUnauthenticated(api.Claims(kDriver).status()));
  }
  unlink(Path("token").c_str());
  EXPECT_TRUE(absl::IsUnauthenticated(api.Claims(kDriver).status()));
}

// A server that is another one gets no token.
TEST_F(ApiServerTest, OnlyTheServerOfTheBundleAndTheHostIsSpokenTo) {
  Write("ca", MakeCertificate("localhost", "127.0.0.1").certificate);
  EXPECT_THAT(Connect().Claims(kDriver).status().ToString(), HasSubstr("UNAVAILABLE"));
  Write("ca", "");
  EXPECT_THAT(Connect().Claims(kDriver).status().ToString(), HasSubstr("CA bundle"));
  const Certificate others = MakeCertificate("example.com", "127.0.0.2");
  server_ = std::make_unique<FakeApiServer>(others);
  Write("ca", others.certificate);
  EXPECT_THAT(Connect().Claims(kDriver).status().ToString(), HasSubstr("another host"));
  EXPECT_THAT(Connect("localhost").Claims(kDriver).status().ToString(), HasSubstr("another host"));
  EXPECT_THAT(server_->Requests(), IsEmpty());
}

TEST_F(ApiServerTest, ErrorsHaveCodeAndReason) {
  const auto answer = [&](int code) {
    server_->Handle([code](const FakeApiServer::Request&) {
      return FakeApiServer::Answer{code, R"({"kind": "Status", "message": "because"})"};
    });
    return Connect().Claims(kDriver).status();
  };
  EXPECT_TRUE(absl::IsPermissionDenied(answer(403)));
  EXPECT_TRUE(absl::IsAborted(answer(410)));
  EXPECT_TRUE(absl::IsUnavailable(answer(429)));
  EXPECT_TRUE(absl::IsUnavailable(answer(503)));
  EXPECT_TRUE(absl::IsUnknown(answer(302)));
  EXPECT_THAT(std::string(answer(403).message()), HasSubstr("because"));
  EXPECT_TRUE(absl::IsInvalidArgument(answer(200)));
  const int port = server_->port();
  server_ = nullptr;
  ApiServer gone(
      {.host = "127.0.0.1", .port = port, .token_file = Path("token"), .ca_file = Path("ca")});
  EXPECT_TRUE(absl::IsUnavailable(gone.Claims(kDriver).status()));
}

TEST_F(ApiServerTest, AnswersAreBounded) {
  server_->Handle([](const FakeApiServer::Request&) {
    return FakeApiServer::Answer{200, std::string(kMostText + 1, ' ')};
  });
  EXPECT_TRUE(absl::IsResourceExhausted(Connect().Claims(kDriver).status()));
  server_->Handle([](const FakeApiServer::Request&) {
    return FakeApiServer::Answer{200, R"({"apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimList", "metadata": {"resourceVersion": "1", "continue": "again"},
        "items": []})"};
  });
  EXPECT_TRUE(absl::IsResourceExhausted(Connect().Claims(kDriver).status())) << "no end";
}

TEST_F(ApiServerTest, ObjectsAreReadAndWritten) {
  ApiServer api = Connect();
  server_->Handle([](const FakeApiServer::Request& request) {
    return FakeApiServer::Answer{request.method == "POST" ? 201 : 200, "{\"a\": 1}"};
  });
  const std::string path = "/apis/resource.k8s.io/v1/resourceslices";
  EXPECT_TRUE(api.Create(path, "{\"b\": 2}").ok());
  EXPECT_TRUE(api.Replace(path + "/x", "{\"b\": 3}").ok());
  EXPECT_EQ(api.Read(path + "/x").value_or(""), "{\"a\": 1}");
  const auto requests = server_->Requests();
  ASSERT_THAT(requests, SizeIs(3));
  const auto words = [&](size_t i) {
    const FakeApiServer::Request& request = requests[i];
    return absl::StrCat(request.method, " ", request.path, " ", request.authorization, " ",
                        request.body);
  };
  EXPECT_EQ(words(0), absl::StrCat("POST ", path, " Bearer token {\"b\": 2}"));
  EXPECT_EQ(words(1), absl::StrCat("PUT ", path, "/x Bearer token {\"b\": 3}"));
  EXPECT_EQ(words(2), absl::StrCat("GET ", path, "/x Bearer token "));

  const auto written = [&](int status) {
    server_->Handle([status](const FakeApiServer::Request&) {
      return FakeApiServer::Answer{status, "{\"kind\": \"Status\", \"message\": \"because\"}"};
    });
    return api.Replace(path + "/x", "{}");
  };
  EXPECT_TRUE(absl::IsAborted(written(409)));
  EXPECT_TRUE(absl::IsInvalidArgument(written(422)));
  EXPECT_TRUE(absl::IsUnimplemented(written(404)));
  EXPECT_THAT(std::string(written(409).message()), HasSubstr("because"));
  server_->Handle([](const FakeApiServer::Request&) {
    return FakeApiServer::Answer{201, std::string(kMostText + 1, ' ')};
  });
  EXPECT_TRUE(absl::IsResourceExhausted(api.Create(path, "{}")));
}

// Accepts connections and says nothing.
TEST_F(ApiServerTest, SilenceEnds) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ApiServer api({.host = "127.0.0.1",
                 .port = ntohs(address.sin_port),
                 .token_file = Path("token"),
                 .ca_file = Path("ca"),
                 .timeout = absl::Milliseconds(300)});
  EXPECT_FALSE(api.Claims(kDriver).ok());
  close(listener);
}

}  // namespace api_server_test
}  // namespace gpumem::kubernetes
