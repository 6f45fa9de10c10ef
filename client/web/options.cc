// SPDX-License-Identifier: Apache-2.0
#include "client/web/options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/web/peers/peers.h"
#include "client/web/server/origin.h"
#include "common/endpoints.h"

namespace gpumem::web {
namespace {

constexpr size_t kMostHeaderBytes = 64 * 1024;

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Reads a file with secrets.
absl::StatusOr<std::string> ReadSecrets(const std::string& path) {
  struct stat info = {};
  std::ifstream in(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in.is_open() || stat(path.c_str(), &info) != 0 || text.size() > kMostHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  }
  if ((info.st_mode & S_IROTH) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("every user can read ", path, ", which has secrets: chmod o= ", path));
  }
  return text;
}

// Reads "10min", as systemd writes times, or "never".
bool ParseIdleExit(const std::string& text, absl::Duration* time) {
  if (text == "never") {
    *time = absl::InfiniteDuration();
    return true;
  }
  // Abseil writes minutes as "m".
  return absl::ParseDuration(absl::StrReplaceAll(text, {{"min", "m"}}), time) &&
         *time > absl::ZeroDuration();
}

}  // namespace

void DeclareOptions(CLI::App* app, ProgramOptions* options) {
  options->runtime_dir = ClientRuntimeDir();
  options->node = HostName();
  app->add_option("--listen", options->listen,
                  "Listen on unix:PATH, or on ADDRESS:PORT of the loopback interface; repeatable")
      ->allow_extra_args(false);
  app->add_option("--runtime-dir", options->runtime_dir, "The folder of gpumemd's sockets")
      ->capture_default_str();
  app->add_option("--node", options->node, "The node's name on the page")->capture_default_str();
  app->add_option("--host", options->hosts,
                  "A name of this server in URLs, of a reverse proxy; repeatable")
      ->allow_extra_args(false);
  app->add_option("--group", options->groups,
                  "A group whose members see all tenants; repeatable; none: no group")
      ->allow_extra_args(false)
      ->capture_default_str();
  app->add_option("--peer", options->peer_urls,
                  "Show an overview of this node's gpumem-web, too: a URL or unix:PATH; repeatable")
      ->allow_extra_args(false);
  app->add_option("--peer-headers", options->peer_headers,
                  "A file with headers for peers, such as a proxy's login");
  app->add_option("--idle-exit", options->idle_exit_text,
                  "Exit after so long without viewers, if systemd started it; never: do not")
      ->capture_default_str();
}

absl::Status CompleteOptions(ProgramOptions* options) {
  if (!ParseIdleExit(options->idle_exit_text, &options->idle_exit)) {
    return absl::InvalidArgumentError("--idle-exit is no time, such as 10min or 30s");
  }
  for (std::string& host : options->hosts) {
    if (!IsHostName(host)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--host is a name without a scheme and a port, not \"", host, "\""));
    }
    absl::AsciiStrToLower(&host);
  }
  if (options->groups == std::vector<std::string>{"none"}) options->groups.clear();
  if (options->peer_urls.size() > Peers::kMost) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", Peers::kMost, " peers"));
  }
  for (const std::string& url : options->peer_urls) {
    absl::StatusOr<Peer> peer = ParsePeer(url);
    if (!peer.ok()) return peer.status();
    options->peers.push_back(*std::move(peer));
  }
  if (options->peer_headers.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> headers = ReadSecrets(options->peer_headers);
  if (!headers.ok()) return headers.status();
  return AddHeaders(*headers, &options->peers);
}

std::string DefaultListen(const std::string& runtime_dir) {
  const char* const own = std::getenv("XDG_RUNTIME_DIR");
  return own != nullptr && *own != '\0' ? absl::StrCat("unix:", own, "/gpumem-web.sock")
                                        : absl::StrCat("unix:", runtime_dir, "/web.sock");
}

}  // namespace gpumem::web
