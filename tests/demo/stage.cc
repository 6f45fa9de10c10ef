// SPDX-License-Identifier: Apache-2.0
#include "tests/demo/stage.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"

namespace gpumem::demo {
namespace {

constexpr char kRuntimeDir[] = "GPUMEM_RUNTIME_DIR";
constexpr char kLog[] = "gpumemd.log";

std::string MakeFolder() {
  std::string path = "/tmp/gpumem-demo-XXXXXX";  // short: a socket's name has 107 bytes
  if (mkdtemp(path.data()) == nullptr) {
    throw Failure(absl::StrCat("cannot make a folder under /tmp: ", strerror(errno)));
  }
  return path;
}

void RemoveFolder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace

Stage::Stage(DemoOptions options) : options_(std::move(options)) {
  for (const std::string& program : {options_.gpumemd, options_.gpumemctl}) {
    if (access(program.c_str(), X_OK) != 0) {
      throw Failure(absl::StrCat("there is no program ", program,
                                 ": say where it is with --gpumemd and --gpumemctl"));
    }
  }
  folder_ = MakeFolder();
}

Stage::~Stage() {
  if (daemon_ != nullptr) ShowDaemonLog();  // it was not stopped in order: something failed
  daemon_.reset();
  RemoveFolder(folder_);
}

void Stage::Title(const std::string& text) { Say(absl::StrCat("\n== ", text, " ==")); }

void Stage::Say(const std::string& text) { std::cout << text << std::endl; }

void Stage::Check(bool held, const std::string& what) {
  if (!held) throw Failure(what);
  ++checks_;
  Say("  ok: " + what);
}

Stage::Answer Stage::RunCtl(const std::vector<std::string>& arguments) {
  ProcessOptions options{
      .argv = {options_.gpumemctl}, .environment = {{kRuntimeDir, folder_}}, .stderr_too = true};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  Process ctl(options);
  const absl::Time deadline = absl::Now() + kTimeout;
  Answer answer;
  while (std::optional<std::string> line = ctl.ReadLine(deadline)) {
    absl::StrAppend(&answer.text, *line, "\n");
  }
  answer.exit_code = ctl.Wait(deadline);
  return answer;
}

void Stage::Show(const std::vector<std::string>& arguments, int exit_code) {
  const std::string command = absl::StrCat("gpumemctl ", absl::StrJoin(arguments, " "));
  Say("  $ " + command);
  Answer answer = RunCtl(arguments);
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(answer.text, "\n"), '\n')) {
    Say(line.empty() ? std::string() : absl::StrCat("    ", line));
  }
  if (answer.exit_code != exit_code) {
    throw Failure(absl::StrCat(command, " exited with ", answer.exit_code, ", not ", exit_code));
  }
  if (exit_code == 0) {
    ++checks_;  // not worth a line
  } else {
    Check(true, absl::StrCat("its exit code is ", exit_code));
  }
}

nlohmann::json Stage::Ask(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  Answer answer = RunCtl(arguments);
  const std::string command = absl::StrCat("gpumemctl ", absl::StrJoin(arguments, " "));
  if (answer.exit_code != 0) {
    throw Failure(absl::StrCat(command, " exited with ", answer.exit_code, ": ", answer.text));
  }
  nlohmann::json json = nlohmann::json::parse(answer.text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw Failure(command + " answered with what is no JSON");
  return json;
}

void Stage::StartDaemon(const std::string& config) {
  const std::string file = PathOf("gpumemd.toml");
  std::ofstream(file) << config;
  const absl::Time start = absl::Now();
  daemon_ = std::make_unique<Process>(
      ProcessOptions{.argv = {options_.gpumemd, "--config", file, "--runtime-dir", folder_,
                              "--state-dir", PathOf("state"), "--backend", options_.backend},
                     .log_file = PathOf(kLog)});
  // The admin socket is the last that it opens.
  while (!ConnectUnix(SocketPath(folder_, kAdminSocket), SOCK_STREAM).ok()) {
    ThrowIfInterrupted();
    if (std::optional<int> code = daemon_->Poll()) {
      throw Failure(absl::StrCat(options_.gpumemd, " ended at once with exit code ", *code));
    }
    if (absl::Now() > start + kTimeout) throw Failure("gpumemd cannot be reached");
    poll(nullptr, 0, 5);
  }
  Check(true, absl::StrCat(
                  "gpumemd (pid ", daemon_->pid(), ") can be reached at ", folder_, " after ",
                  absl::FormatDuration(absl::Trunc(absl::Now() - start, absl::Milliseconds(1)))));
}

void Stage::StopDaemon() {
  daemon_->Signal(SIGTERM);
  const absl::Time start = absl::Now();
  const int code = daemon_->Wait(start + kTimeout);
  Check(code == 0, absl::StrCat("gpumemd ends with exit code ", code));
  Check(absl::Now() - start < absl::Seconds(10), "within 10 s");
  bool removed = true;
  for (const char* name : {kSessionSocket, kAdminSocket}) {
    removed &= access(SocketPath(folder_, name).c_str(), F_OK) != 0;
  }
  Check(removed, "and leaves no socket behind");
  daemon_.reset();
}

std::unique_ptr<Process> Stage::StartWorker(const std::string& role) {
  auto worker = std::make_unique<Process>(ProcessOptions{.argv = {options_.self, "--role", role},
                                                         .environment = {{kRuntimeDir, folder_}}});
  Say(absl::StrCat("  ", role, " is process ", worker->pid()));
  return worker;
}

std::vector<std::string> Stage::FollowUntilReady(const std::string& role, Process& worker) {
  std::vector<std::string> tickets;
  const absl::Time deadline = absl::Now() + kTimeout;
  while (std::optional<std::string> line = worker.ReadLine(deadline)) {
    absl::string_view text = *line;
    if (text == "ready") return tickets;
    if (absl::ConsumePrefix(&text, "ok ")) {
      Check(true, absl::StrCat(role, " ", text));
    } else if (absl::ConsumePrefix(&text, "say ")) {
      Say(absl::StrCat("      ", text));
    } else if (absl::ConsumePrefix(&text, "ticket ")) {
      tickets.emplace_back(text);
    } else if (absl::ConsumePrefix(&text, "fail ")) {
      throw Failure(absl::StrCat(role, ": ", text));
    } else {
      throw Failure(absl::StrCat(role, " wrote what nobody understands: ", text));
    }
  }
  throw Failure(absl::StrCat(role, " ended too early, with exit code ", worker.Wait(deadline)));
}

void Stage::ShowDaemonLog() {
  std::ifstream log(PathOf(kLog));
  Say("\nWhat gpumemd said:");
  for (std::string line; std::getline(log, line);) Say("  " + line);
}

}  // namespace gpumem::demo
