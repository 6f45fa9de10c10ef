// SPDX-License-Identifier: Apache-2.0
// gpumem-web as it is installed: by hand and under a service manager, beside a real daemon.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/web/server/listener.h"
#include "client/web/server/testing/raw_client.h"
#include "common/unique_fd.h"
#include "tests/demo/process.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::web {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using testing::DaemonProcess;
using ::testing::HasSubstr;
using testing::ProgramPath;
using ::testing::StartsWith;

constexpr uid_t kNobody = 65534;

absl::Time Deadline() { return absl::Now() + absl::Seconds(60); }

// A program that ends with the test.
class WebProgram {
 public:
  explicit WebProgram(std::vector<std::string> arguments, std::vector<std::string> before = {}) {
    std::vector<std::string> argv = std::move(before);
    argv.push_back(ProgramPath("gpumem_web"));
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    process_ = std::make_unique<demo::Process>(
        demo::ProcessOptions{.argv = std::move(argv), .stderr_too = true});
  }
  // Returns the first line that has these words, "" if there is none.
  std::string Line(const std::string& words) {
    while (auto line = process_->ReadLine(Deadline())) {
      if (absl::StrContains(*line, words)) return *line;
    }
    return "";
  }
  int Wait() { return process_->Wait(Deadline()); }
  int Stop() {
    process_->Signal(SIGTERM);
    return Wait();
  }

 private:
  std::unique_ptr<demo::Process> process_;
};

std::string RunCtl(const std::vector<std::string>& arguments, int* code) {
  std::vector<std::string> argv = {ProgramPath("gpumemctl")};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  demo::Process process({.argv = argv});
  std::string text;
  while (auto line = process.ReadLine(Deadline())) absl::StrAppend(&text, *line, "\n");
  *code = process.Wait(Deadline());
  return text;
}

// "http://127.0.0.1:PORT/#login=TOKEN"
struct Link {
  explicit Link(const std::string& text) {
    const size_t colon = text.rfind(':');
    const size_t mark = text.find("/#login=");
    EXPECT_THAT(text, AllOf(StartsWith("http://127.0.0.1:"), HasSubstr("/#login=")));
    if (mark == std::string::npos) return;
    EXPECT_TRUE(absl::SimpleAtoi(text.substr(colon + 1, mark - colon - 1), &port));
    token = text.substr(mark + 8, 43);
  }
  int port = 0;
  std::string token;
};

// Logs in, and returns the field for requests.
std::string LogIn(RawClient& client, const std::string& token) {
  const Json answer = Json::parse(
      BodyOf(client.Post("/api/v1/login", Json({{"token", token}}).dump())), nullptr, false);
  EXPECT_TRUE(answer.contains("key")) << answer;
  return absl::StrCat("Authorization: Bearer ", answer.value("key", ""), "\r\n");
}

class WebProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/gpumem-web-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
    ASSERT_EQ(chmod(dir, 0755), 0);
    auto daemon = DaemonProcess::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::vector<std::string> Arguments(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"--runtime-dir", daemon_->runtime_dir(), "--node", "n1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string Path() const { return dir_ + "/web.sock"; }

  std::string dir_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(WebProgramTest, ByHand) {
  WebProgram web(Arguments({"--listen", absl::StrCat("unix:", Path()), "--listen", "127.0.0.1:0"}));
  const Link first(web.Line("http://"));
  RawClient tcp(static_cast<uint16_t>(first.port));
  EXPECT_THAT(tcp.Get("/"), HasSubstr("<!doctype html>"));
  EXPECT_THAT(tcp.Get("/api/v1/snapshot"), StartsWith("HTTP/1.1 401 "));
  std::string bearer = LogIn(tcp, first.token);
  EXPECT_THAT(tcp.Get("/api/v1/me", bearer), HasSubstr(absl::StrCat("\"uid\":", getuid(), ",")));

  int code = -1;
  const Link second(RunCtl({"web", "--socket", Path()}, &code));
  EXPECT_EQ(code, 0);
  EXPECT_EQ(second.port, first.port);
  bearer = LogIn(tcp, second.token);
  const Json snapshot = Json::parse(BodyOf(tcp.Get("/api/v1/snapshot", bearer)), nullptr, false);
  EXPECT_EQ(snapshot["viewer"]["sees"], "all") << snapshot;
  EXPECT_EQ(snapshot["devices"].size(), 2U);  // and pinned memory

  RawClient unix_client(Path());
  const Json overview = Json::parse(BodyOf(unix_client.Get("/api/v1/overview")), nullptr, false);
  EXPECT_EQ(overview["node"], "n1") << overview;
  EXPECT_EQ(overview["daemon"], "ok") << overview;
  EXPECT_THAT(unix_client.Get("/api/v1/stream"), HasSubstr("text/event-stream"));
  EXPECT_THAT(unix_client.HearUpTo("\n\n"), StartsWith("event: snapshot\ndata: {"));
  struct stat info = {};
  EXPECT_EQ(stat(Path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(web.Stop(), 0);
  EXPECT_NE(stat(Path().c_str(), &info), 0) << "the socket's file is removed";
}

TEST_F(WebProgramTest, WithoutAPort) {
  WebProgram web(Arguments({"--listen", absl::StrCat("unix:", Path())}));
  EXPECT_EQ(web.Line("serves"), absl::StrCat("gpumem-web: serves unix:", Path()));
  int code = -1;
  EXPECT_THAT(RunCtl({"web", "--socket", Path()}, &code),
              StartsWith(absl::StrCat("ssh -L 8080:", Path(), " ")));
  EXPECT_EQ(code, 0);
  EXPECT_EQ(web.Stop(), 0);
  EXPECT_EQ(RunCtl({"web", "--socket", Path()}, &code), "");
  EXPECT_EQ(code, 3);
}

TEST_F(WebProgramTest, Refusals) {
  for (const char* wrong : {"0.0.0.0:0", "[::]:0", "192.0.2.1:80", "127.0.0.1", "localhost:80",
                            "127.0.0.1:99999", "x", ""}) {
    WebProgram web(Arguments({"--listen", wrong}));
    EXPECT_NE(web.Line("gpumem-web: "), "") << wrong;
    EXPECT_EQ(web.Wait(), 1) << wrong;
  }
  WebProgram beyond(Arguments({"--listen", "0.0.0.0:0"}));
  EXPECT_THAT(beyond.Line("loopback"), HasSubstr("reverse proxy"));
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {"--host", "http://gpu.example"},
      {"--peer", "ftp://x"},
      {"--peer-headers", "/nonexistent"},
      {"--idle-exit", "soon"},
      {"--nonsense", "x"}};
  for (const auto& [option, value] : mistakes) {
    WebProgram web(Arguments({option, value}));
    EXPECT_EQ(web.Wait(), 2) << option;
  }
}

TEST_F(WebProgramTest, UnderAServiceManager) {
  auto file = Listen(absl::StrCat("unix:", Path())), port = Listen("127.0.0.1:0");
  ASSERT_TRUE(file.ok() && port.ok()) << file.status() << port.status();
  for (const Listener* const listener : {&*file, &*port}) {
    fcntl(listener->socket.get(), F_SETFD, 0);
    fcntl(listener->socket.get(), F_SETFL, 0);  // as systemd makes them: blocking
  }
  const std::string script =
      absl::StrCat("exec 8<&", file->socket.get(), " 9<&", port->socket.get(),
                   "; exec 3<&8 4<&9 8<&- 9<&-; LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=a:b "
                   "exec \"$0\" \"$@\"");
  {
    WebProgram web(Arguments({"--idle-exit", "100ms"}), {"/bin/bash", "-c", script});
    EXPECT_EQ(web.Line("serves"),
              absl::StrCat("gpumem-web: serves unix:", Path(), ", ", port->where));
    RawClient unix_client(Path());
    EXPECT_THAT(unix_client.Get("/api/v1/snapshot"), StartsWith("HTTP/1.1 200 "));
    const Json answer = Json::parse(BodyOf(unix_client.Post("/api/v1/links", "")), nullptr, false);
    const Link link(answer.value("link", ""));
    RawClient tcp(static_cast<uint16_t>(link.port));
    EXPECT_THAT(tcp.Get("/api/v1/me", LogIn(tcp, link.token)), StartsWith("HTTP/1.1 200 "));
    EXPECT_EQ(web.Stop(), 0);
  }
  {
    // The sockets are the manager's: they stay, and connections wait for the next program.
    RawClient waiting(Path());
    waiting.Say("GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    WebProgram web(Arguments({"--idle-exit", "100ms"}), {"/bin/bash", "-c", script});
    EXPECT_THAT(waiting.HearAll(), StartsWith("HTTP/1.1 200 "));
    EXPECT_EQ(web.Wait(), 0) << "it is idle";
  }
  const UniqueFd wide(socket(AF_INET, SOCK_STREAM, 0));  // of all interfaces
  ASSERT_EQ(listen(wide.get(), 1), 0);
  WebProgram refused(
      Arguments({}),
      {"/bin/bash", "-c",
       absl::StrCat("exec 3<&", wide.get(), "; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"")});
  EXPECT_THAT(refused.Line("loopback"), HasSubstr("0.0.0.0:"));
  EXPECT_EQ(refused.Wait(), 1);
  WebProgram datagram(Arguments({}), {"/bin/bash", "-c",
                                      "exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" "
                                      "\"$@\""});
  EXPECT_NE(datagram.Line("no listening stream socket"), "");
  EXPECT_EQ(datagram.Wait(), 1);
}

TEST_F(WebProgramTest, AnotherUserSeesOnlyTheOwn) {
  if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "takes root, outside of a user namespace";
  auto held = daemon_->Connect();
  ASSERT_TRUE(held.ok()) << held.status();
  WebProgram web(Arguments({"--listen", absl::StrCat("unix:", Path()), "--listen", "127.0.0.1:0"}));
  ASSERT_NE(web.Line("http://"), "");
  ASSERT_EQ(chmod(Path().c_str(), 0666), 0);  // as the socket unit makes it
  int pipes[2] = {-1, -1};
  ASSERT_EQ(pipe(pipes), 0);
  const UniqueFd out(pipes[0]);
  UniqueFd in(pipes[1]);
  const pid_t child = fork();
  if (child == 0) {
    if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(9);
    RawClient client(Path());
    for (const char* const path : {"/api/v1/me", "/api/v1/snapshot"}) {
      const std::string body = BodyOf(client.Get(path)) + "\n";
      if (write(in.get(), body.data(), body.size()) < 0) _exit(8);
    }
    const std::string link = BodyOf(client.Post("/api/v1/links", "")) + "\n";
    if (write(in.get(), link.data(), link.size()) < 0) _exit(8);
    _exit(0);
  }
  ASSERT_GT(child, 0);
  in.reset();
  std::string heard;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = read(out.get(), buffer, sizeof(buffer))) > 0) {
    heard.append(buffer, static_cast<size_t>(got));
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0) << heard;
  std::vector<Json> documents;
  for (size_t at = 0, end = 0; (end = heard.find('\n', at)) != std::string::npos; at = end + 1) {
    documents.push_back(Json::parse(heard.substr(at, end - at), nullptr, false));
  }
  ASSERT_EQ(documents.size(), 3U) << heard;
  EXPECT_EQ(documents[0]["uid"], kNobody);
  EXPECT_EQ(documents[0]["sees"], "some");
  EXPECT_EQ(documents[1]["viewer"]["sees"], "own") << documents[1];
  EXPECT_FALSE(documents[1].contains("sessions") && !documents[1]["sessions"].empty())
      << documents[1];
  // The link is of the same user.
  const Link link(documents[2].value("link", ""));
  RawClient tcp(static_cast<uint16_t>(link.port));
  EXPECT_THAT(tcp.Get("/api/v1/me", LogIn(tcp, link.token)),
              AllOf(HasSubstr("\"uid\":65534,"), HasSubstr("\"sees\":\"some\"")));
}

TEST_F(WebProgramTest, Peers) {
  WebProgram other(Arguments({"--listen", absl::StrCat("unix:", Path())}));
  ASSERT_NE(other.Line("serves"), "");
  const std::string own = dir_ + "/own.sock";
  WebProgram web(Arguments({"--listen", absl::StrCat("unix:", own), "--peer",
                            absl::StrCat("unix:", Path()), "--peer", "http://127.0.0.1:1"}));
  ASSERT_NE(web.Line("serves"), "");
  RawClient client(own);
  Json peers;
  EXPECT_TRUE(testing::Eventually([&] {
    peers = Json::parse(BodyOf(client.Get("/api/v1/peers")), nullptr, false);
    return peers.is_array() && peers.size() == 2 && peers[0]["state"] == "ok" &&
           peers[1]["state"] == "failed";
  })) << peers;
  EXPECT_EQ(peers[0]["overview"]["node"], "n1");
  EXPECT_EQ(peers[0]["url"], absl::StrCat("unix:", Path()));
  EXPECT_TRUE(peers[1]["overview"].is_null());
}

TEST_F(WebProgramTest, TheDaemonGoesAndComesBack) {
  WebProgram web(Arguments({"--listen", absl::StrCat("unix:", Path())}));
  ASSERT_NE(web.Line("serves"), "");
  RawClient stream(Path()), client(Path());
  EXPECT_THAT(stream.Get("/api/v1/stream"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(stream.HearUpTo("\n\n"), StartsWith("event: snapshot\n"));
  daemon_->child().Signal(SIGTERM);
  EXPECT_EQ(daemon_->child().Wait(), 0);
  EXPECT_THAT(stream.HearUpTo("\"state\":\"lost\""), HasSubstr("event: daemon\n"));
  EXPECT_THAT(client.Get("/api/v1/snapshot"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(client.Get("/api/v1/overview"), HasSubstr("\"daemon\":\"lost\""));
  ASSERT_TRUE(daemon_->RunAgain().ok());
  EXPECT_THAT(stream.HearUpTo("event: snapshot\n"), HasSubstr("\"state\":\"ok\""));
  EXPECT_THAT(client.Get("/api/v1/snapshot"), StartsWith("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace gpumem::web
