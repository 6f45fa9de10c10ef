// SPDX-License-Identifier: Apache-2.0
// gpumemctl web: asks gpumem-web for a login link.
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/commands/commands.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/printable.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"

namespace gpumem::cli {
namespace {

constexpr char kSystemSocket[] = "/run/gpumem-web/web.sock";
constexpr absl::Duration kWebTimeout = absl::Seconds(10);
constexpr size_t kMostAnswer = 64 * 1024;
constexpr char kQuestion[] =
    "POST /api/v1/links HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    "Content-Length: 0\r\n\r\n";

bool IsSocket(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

// Returns the socket of this user's gpumem-web, else the system's.
std::string SocketOf(const WebCommand& command, const GlobalOptions& options) {
  if (!command.socket.empty()) return std::filesystem::absolute(command.socket);
  std::vector<std::string> places;
  if (const char* const own = std::getenv("XDG_RUNTIME_DIR"); own != nullptr && *own != '\0') {
    places.push_back(absl::StrCat(own, "/gpumem-web.sock"));
  }
  places.push_back(absl::StrCat(options.runtime_dir, "/web.sock"));
  const auto found = std::find_if(places.begin(), places.end(), IsSocket);
  return found == places.end() ? kSystemSocket : *found;
}

// Returns all that gpumem-web answers.
absl::StatusOr<std::string> Ask(const std::string& path, absl::Time deadline) {
  const absl::StatusOr<UniqueFd> connected = ConnectUnix(path, SOCK_STREAM, deadline);
  if (absl::IsUnavailable(connected.status())) {
    return absl::UnavailableError(absl::StrCat(
        "no gpumem-web listens at ", path,
        "; an administrator starts it: systemctl enable --now gpumem-web.socket; or run "
        "your own: gpumem-web --listen unix:PATH"));
  }
  if (!connected.ok()) return connected.status();
  const int fd = connected->get();
  if (send(fd, kQuestion, sizeof(kQuestion) - 1, MSG_NOSIGNAL) < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write to ", path));
  }
  std::string answer;
  std::array<char, 4096> buffer;
  while (answer.size() < kMostAnswer) {
    pollfd ready = {.fd = fd, .events = POLLIN};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) == 0) {
      return absl::DeadlineExceededError(absl::StrCat("gpumem-web at ", path, " does not answer"));
    }
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got == 0) return answer;
    if (got > 0) {
      answer.append(buffer.data(), static_cast<size_t>(got));
    } else if (errno != EINTR && errno != EAGAIN) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read from ", path));
    }
  }
  return answer;
}

// What gpumem-web says to the question.
struct WebAnswer {
  int status = 0;
  nlohmann::json body;
};

absl::StatusOr<WebAnswer> ParseAnswer(const std::string& answer) {
  WebAnswer parsed;
  const size_t end = answer.find("\r\n\r\n");
  if (!absl::StartsWith(answer, "HTTP/1.1 ") || end == std::string::npos ||
      !absl::SimpleAtoi(answer.substr(9, 3), &parsed.status)) {
    return absl::InternalError("what listens there is not gpumem-web");
  }
  parsed.body = nlohmann::json::parse(answer.substr(end + 4), nullptr, /*allow_exceptions=*/false);
  if (!parsed.body.is_object()) {
    return absl::InternalError("the answer of gpumem-web is no JSON object");
  }
  return parsed;
}

// Returns a member that is a text; "" if there is none.
std::string TextAt(const nlohmann::json& object, const char* name) {
  const auto member = object.is_object() ? object.find(name) : object.end();
  return member != object.end() && member->is_string() ? member->get<std::string>() : "";
}

absl::Status Refusal(const WebAnswer& answer) {
  const std::string message =
      absl::StrCat("gpumem-web refuses (HTTP ", answer.status,
                   "): ", TextAt(answer.body.value("error", nlohmann::json::object()), "message"));
  return answer.status == 429 ? absl::ResourceExhaustedError(message)
                              : absl::FailedPreconditionError(message);
}

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "NODE";
}

}  // namespace

absl::Status Run(const WebCommand& command, const GlobalOptions& options) {
  const std::string path = SocketOf(command, options);
  const absl::StatusOr<std::string> text =
      Ask(path, absl::Now() + options.timeout.value_or(kWebTimeout));
  if (!text.ok()) return text.status();
  const absl::StatusOr<WebAnswer> answer = ParseAnswer(*text);
  if (!answer.ok()) return answer.status();
  const bool no_port = answer->status == 409;
  if (answer->status != 200 && !no_port) return Refusal(*answer);
  const std::string link = TextAt(answer->body, "link");
  if (!no_port && !absl::StartsWith(link, "http://")) {
    return absl::InternalError("the answer of gpumem-web has no link");
  }
  // "http://127.0.0.1:9410/#login=…" -> "127.0.0.1:9410"
  const std::string place = no_port ? "" : link.substr(7, link.find('/', 7) - 7);
  const std::string port = no_port ? "8080" : place.substr(place.rfind(':') + 1);
  const std::string ssh =
      absl::StrCat("ssh -L ", port, ":", no_port ? path : place, " ", HostName());
  if (options.json) {
    Json json = Json::object();
    json["link"] = no_port ? Json(nullptr) : Json(link);
    json["expires_s"] = no_port ? Json(nullptr) : Json(answer->body.value("expires_s", 60));
    json["socket"] = path;
    json["ssh"] = ssh;
    Print(Document(json));
  } else if (no_port) {
    Print(absl::StrCat(Printable(ssh), "\nhttp://localhost:8080/\n"));
    std::fputs(
        "gpumem-web listens on no port here. Run the command on your machine, then open the URL\n"
        "there.\n",
        stderr);
  } else {
    Print(absl::StrCat(Printable(link), "\n"));
    std::fputs(absl::StrCat("It works once, for 60 seconds. From another machine, first: ",
                            Printable(ssh), "\n")
                   .c_str(),
               stderr);
  }
  return absl::OkStatus();
}

}  // namespace gpumem::cli
