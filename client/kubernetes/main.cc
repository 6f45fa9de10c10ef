// SPDX-License-Identifier: Apache-2.0
// gpumem-kubelet-plugin: makes each pod of this node that has a share of a GPU's memory a tenant of
// gpumemd.
//
// Exit codes: 0 ended by a signal, or --once without an error; 1 --once failed; 2 wrong arguments.
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/kubernetes/plugin.h"
#include "client/kubernetes/podresources.h"
#include "common/endpoints.h"
#include "common/unique_fd.h"
#include "common/version.h"

namespace gpumem::kubernetes {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(500);
constexpr char kAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount";

void Say(absl::string_view line) {
  // One write for each line. Messages of peers have no control characters of theirs.
  std::string text(line);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
}

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Tells systemd that the program is ready (sd_notify(3)), if it asks for that.
void NotifyReady() {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return;
  sockaddr_un address = {.sun_family = AF_UNIX};
  const std::string name = path;
  if (name.size() >= sizeof(address.sun_path)) return;
  std::copy(name.begin(), name.end(), address.sun_path);
  if (name[0] == '@') address.sun_path[0] = '\0';
  const UniqueFd socket_fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  constexpr absl::string_view kReady = "READY=1";
  (void)sendto(socket_fd.get(), kReady.data(), kReady.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size()));
}

// Ends the process at SIGTERM or SIGINT, also during a call: a round may be cut off anywhere.
// Requires that no thread is running yet: all of them block these signals.
void EndAtSignal() {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that peers have closed
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    int signal = 0;
    while (sigwait(&signals, &signal) != 0) continue;
    Say(absl::StrCat("ends at signal ", signal, "; tenants stay as they are"));
    _exit(0);
  }).detach();
}

struct Options {
  PluginOptions plugin;
  std::string api_server = UrlOfPod();
  std::string token_file = absl::StrCat(kAccount, "/token");
  std::string ca_file = absl::StrCat(kAccount, "/ca.crt");
  std::string interval = "5s";
  std::string timeout = "30s";
  absl::Duration pause;
  bool once = false;
};

void Declare(CLI::App* app, Options* options) {
  PluginOptions& plugin = options->plugin;
  plugin.node = HostName();
  plugin.driver = "gpu.nvidia.com";
  plugin.kubelet_socket = kKubeletSocket;
  plugin.daemon.runtime_dir = DaemonRuntimeDir();
  app->add_option("--node", plugin.node, "The node's name in Kubernetes")
      ->envname("NODE_NAME")
      ->capture_default_str();
  app->add_option("--driver", plugin.driver, "The driver whose devices are GPUs")
      ->capture_default_str();
  app->add_option("--parent", plugin.daemon.parent, "Put the pods' tenants under this one");
  app->add_option("--runtime-dir", plugin.daemon.runtime_dir, "The folder of gpumemd's sockets")
      ->capture_default_str();
  app->add_option("--kubelet-socket", plugin.kubelet_socket,
                  "The kubelet's pod-resources socket; '': do not ask it")
      ->capture_default_str();
  app->add_option("--api-server", options->api_server, "https://HOST[:PORT]")
      ->capture_default_str();
  app->add_option("--token-file", options->token_file, "The token for the API server")
      ->capture_default_str();
  app->add_option("--ca-file", options->ca_file, "The CA bundle of the API server")
      ->capture_default_str();
  app->add_option("--interval", options->interval, "The longest pause between rounds")
      ->capture_default_str();
  app->add_option("--timeout", options->timeout, "The most time of a call")->capture_default_str();
  app->add_flag("--once", options->once, "Make one round, then exit");
  app->set_version_flag("--version", "gpumem-kubelet-plugin " GPUMEM_VERSION);
}

// Returns the mistake, or "".
std::string Complete(Options* options) {
  PluginOptions& plugin = options->plugin;
  if (plugin.node.empty()) return "no node is named: --node, or $NODE_NAME";
  if (options->api_server.empty()) return "no API server is named: --api-server";
  auto server = ParseUrl(options->api_server);
  if (!server.ok()) return absl::StrCat("--api-server: ", server.status().message());
  const auto is_time = [](const std::string& text, absl::Duration* time) {
    return absl::ParseDuration(text, time) && *time >= absl::Milliseconds(10) &&
           *time <= absl::Hours(1);
  };
  if (!is_time(options->interval, &options->pause)) return "--interval: no time, such as 5s";
  if (!is_time(options->timeout, &plugin.timeout)) return "--timeout: no time, such as 30s";
  plugin.api_server = *std::move(server);
  plugin.api_server.token_file = options->token_file;
  plugin.api_server.ca_file = options->ca_file;
  plugin.api_server.timeout = plugin.timeout;
  plugin.daemon.timeout = plugin.timeout;
  plugin.daemon.owner = OwnerOf(plugin.node);
  return "";
}

int Main(int argc, char** argv) {
  CLI::App app("Make each pod of this node that has a share of a GPU's memory a tenant of gpumemd.",
               "gpumem-kubelet-plugin");
  Options options;
  Declare(&app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const std::string wrong = Complete(&options); !wrong.empty()) {
    Say(absl::StrCat(wrong, "; see gpumem-kubelet-plugin --help"));
    return 2;
  }
  EndAtSignal();
  Plugin plugin(options.plugin, Say);
  if (options.once) {
    return plugin.Round().ok() ? 0 : 1;  // it has said what failed
  }
  Say(absl::StrCat("node ", options.plugin.node, ", tenants of ", options.plugin.daemon.owner));
  for (bool first = true;; first = false) {
    (void)plugin.Round();
    if (first) NotifyReady();
    const absl::Time next = absl::Now() + options.pause;
    do {
      absl::SleepFor(std::min(kLook, std::max(next - absl::Now(), absl::ZeroDuration())));
    } while (absl::Now() < next && !plugin.PodsHaveChanged());
  }
}

}  // namespace
}  // namespace gpumem::kubernetes

int main(int argc, char** argv) { return gpumem::kubernetes::Main(argc, argv); }
