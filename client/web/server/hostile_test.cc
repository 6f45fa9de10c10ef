// SPDX-License-Identifier: Apache-2.0
// The server with wrong and slow requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/web/server/server.h"
#include "client/web/server/testing/server_fixture.h"

namespace gpumem::web {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kSnapshot[] = "GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n";

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<size_t>(getpagesize());
}

TEST_F(ServerTest, SlowWriters) {
  Limits limits;
  limits.request = absl::Milliseconds(200);
  limits.keep_alive = absl::Seconds(100);
  Serve({.limits = limits});
  RawClient silent = Unix(), half = Unix(), idle = Unix();
  half.Say("GET / HTTP/1.1\r\nHo");
  EXPECT_THAT(idle.Get("/"), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(silent.IsClosed());
  EXPECT_TRUE(half.IsClosed());
  // One that has had an answer has time, but not for a half request.
  EXPECT_TRUE(idle.IsOpen());
  idle.Say("GET / HT");
  EXPECT_TRUE(idle.IsClosed());
  // Byte by byte, each in time, is not in time.
  RawClient drip = Unix();
  const std::string request = absl::StrCat("GET / HTTP/1.1\r\nX: ", std::string(8000, 'x'));
  size_t said = 0;
  while (said < request.size() && drip.Say(request.substr(said, 1))) ++said;
  EXPECT_TRUE(drip.IsClosed());
}

TEST_F(ServerTest, HalfOpen) {
  Serve();
  RawClient client = Unix();
  client.Say(kSnapshot);
  client.EndSending();
  EXPECT_THAT(client.HearAll(), StartsWith("HTTP/1.1 200 "));
  RawClient nothing = Unix();
  nothing.EndSending();
  EXPECT_EQ(nothing.HearAll(), "");
  RawClient part = Unix();
  part.Say("GET /");
  part.EndSending();
  EXPECT_EQ(part.HearAll(), "");
  RawClient stream = Unix();
  EXPECT_THAT(stream.Get("/api/v1/stream"), StartsWith("HTTP/1.1 200 "));
  stream.EndSending();
  EXPECT_TRUE(stream.IsClosed());
}

TEST_F(ServerTest, TooLarge) {
  Serve();
  const auto ask = [this](const std::string& request) {
    RawClient client = Unix();
    client.Say(request);
    return client.HearAll();
  };
  const std::string begin = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: ";
  // With fields of so many bytes; the limit of the request line is a separate one.
  const auto with_fields = [&](size_t size) {
    const size_t line = begin.find('\n') + 1;
    return absl::StrCat(begin, std::string(size - (begin.size() - line) - 4, 'x'), "\r\n\r\n");
  };
  EXPECT_THAT(ask(with_fields(8 * 1024)), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ask(with_fields(8 * 1024 + 1)), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(ask(absl::StrCat("GET /", std::string(20000, 'x'))), StartsWith("HTTP/1.1 431 "));
  const auto with_body = [](size_t size) {
    return absl::StrCat("POST /api/v1/links HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                        "Content-Length: ", size, "\r\n\r\n", std::string(size, 'x'));
  };
  EXPECT_THAT(ask(with_body(4096)), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ask(with_body(4097)), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(ask("POST /api/v1/links HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Length: 99999999999999999999\r\n\r\n"),
              StartsWith("HTTP/1.1 4"));
  EXPECT_THAT(
      ask(absl::StrCat("POST /api/v1/links HTTP/1.1\r\nHost: localhost\r\n",
                       "Transfer-Encoding: chunked\r\n\r\nffffff\r\n", std::string(10000, 'x'))),
      StartsWith("HTTP/1.1 413 "));
  for (const std::string& wrong :
       {std::string("GET /\0 HTTP/1.1\r\n\r\n", 19), std::string("\r\n\r\n\r\n"),
        std::string("GET / HTTP/9.9\r\n\r\n"), std::string("GET  / HTTP/1.1\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
        std::string("GET / HTTP/1.1\r\nHost: localhost\r\nBad Field: x\r\n\r\n"),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}) {
    EXPECT_THAT(ask(wrong), StartsWith("HTTP/1.1 400 ")) << wrong;
  }
}

// What another program takes for a body must not be a request here (RFC 9112, section 6.1).
TEST_F(ServerTest, OtherTransferCodings) {
  Serve();
  const auto ask = [this](const std::string& fields) {
    RawClient client = Unix();
    client.Say(absl::StrCat("POST /api/v1/links HTTP/1.1\r\nHost: localhost\r\n", fields,
                            "\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n",
                            "Connection: close\r\n\r\n"));
    return client.HearAll();
  };
  for (const char* coding : {"gzip", "identity", "gzip, chunked", "chunked, gzip", "xchunked",
                             "chunked;q=1", "Chunked", "chunked, chunked", ""}) {
    const std::string answers = ask(absl::StrCat("Transfer-Encoding: ", coding, "\r\n"));
    EXPECT_THAT(answers, StartsWith("HTTP/1.1 400 ")) << coding;
    EXPECT_THAT(answers, Not(HasSubstr("200 OK"))) << coding;
  }
  EXPECT_THAT(ask("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(ask("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(ask("Transfer-Encoding: chunked\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("<!doctype html>")));
}

TEST_F(ServerTest, RequestsInRandomFragments) {
  Serve();
  std::mt19937 random(11);
  std::string many;
  constexpr int kRequests = 200;
  for (int i = 0; i < kRequests; ++i) {
    many += i % 3 == 0 ? "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\n"
                         "Content-Length: 2\r\n\r\n{}"
                       : kSnapshot;
  }
  RawClient client = Unix();
  int heard = 0;
  for (size_t at = 0; at < many.size();) {
    const size_t size = 1 + random() % 200;
    ASSERT_TRUE(client.Say(many.substr(at, size)));
    at += size;
  }
  for (; heard < kRequests; ++heard) {
    ASSERT_THAT(client.HearAnswer(),
                StartsWith(heard % 3 == 0 ? "HTTP/1.1 409 " : "HTTP/1.1 200 "));
  }
}

TEST_F(ServerTest, DamagedRequests) {
  Serve();
  std::mt19937 random(13);
  const std::string seeds[] = {
      kSnapshot,
      "POST /api/v1/login HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 12\r\n\r\n{\"token\":\"\"}",
      absl::StrCat("POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\n",
                   "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
      "GET /api/v1/history?device=a&tenant=%20 HTTP/1.1\r\nHost: [::1]:80\r\nOrigin: x\r\n\r\n",
      absl::StrCat("GET /app.js HTTP/1.1\r\nHost: localhost\r\n",
                   "Accept-Encoding: gzip;q=0, *\r\nAuthorization: Bearer x\r\n\r\n")};
  size_t before = 0;
  for (int i = 0; i < 6000; ++i) {
    if (i == 1000) before = ResidentBytes();
    std::string request = seeds[random() % std::size(seeds)];
    for (size_t n = random() % 6; n > 0; --n) {
      const size_t at = random() % request.size();
      switch (random() % 4) {
        case 0:
          request[at] = static_cast<char>(random());
          break;
        case 1:
          request.erase(at, random() % 8);
          break;
        case 2:
          request.insert(at, request.substr(random() % request.size(), random() % 64));
          break;
        default:
          request.insert(at, random() % 300, static_cast<char>(random()));
      }
      if (request.empty()) request = "G";
    }
    RawClient client = i % 2 == 0 ? Unix() : Tcp();
    client.Say(request);
    client.EndSending();
    const std::string answer = client.HearAll();
    ASSERT_THAT(answer, AnyOf("", StartsWith("HTTP/1.1 "))) << request;
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep freed memory
  EXPECT_LT(ResidentBytes(), before + 32 * 1024 * 1024);
#endif
  EXPECT_THAT(Unix().Get("/"), StartsWith("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace gpumem::web
