// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/program.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/kubernetes/facts/pods_api.h"
#include "client/kubernetes/podresources.h"
#include "common/endpoints.h"
#include "common/unique_fd.h"

namespace gpumem::kubernetes {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(500);
constexpr char kAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount";

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

void Say(absl::string_view line) {
  // One write for each line. Messages of peers have no control characters of theirs.
  std::string text(line);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
}

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

void EndAtSignal(std::function<void()> at_end) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that peers have closed
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, at_end = std::move(at_end)] {
    int signal = 0;
    while (sigwait(&signals, &signal) != 0) continue;
    Say(absl::StrCat("ends at signal ", signal, "; tenants stay as they are"));
    at_end();
    _exit(0);
  }).detach();
}

void DeclareOptions(CLI::App* app, ProgramOptions* options) {
  PluginOptions& plugin = options->plugin;
  options->api_server = UrlOfPod();
  options->token_file = absl::StrCat(kAccount, "/token");
  options->ca_file = absl::StrCat(kAccount, "/ca.crt");
  plugin.node = HostName();
  plugin.kubelet_socket = kKubeletSocket;
  options->facts.pods_socket = kPodsSocket;
  plugin.daemon.runtime_dir = DaemonRuntimeDir();
  app->add_option("--node", plugin.node, "The node's name in Kubernetes")
      ->envname("NODE_NAME")
      ->capture_default_str();
  app->add_option("--parent", plugin.daemon.parent, "Put the pods' tenants under this one");
  app->add_option("--runtime-dir", plugin.daemon.runtime_dir, "The folder of gpumemd's sockets")
      ->capture_default_str();
  app->add_option("--kubelet-socket", plugin.kubelet_socket,
                  "The kubelet's pod-resources socket; none: do not ask it")
      ->capture_default_str();
  app->add_option("--pod-facts", options->pod_facts,
                  "Tell gpumemd of pods, for rules: off, auto, kubelet or api-server")
      ->capture_default_str();
  app->add_option("--pods-socket", options->facts.pods_socket,
                  "The socket of the kubelet's Pods API")
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
}

std::string UnlessNone(const std::string& text) { return text == kNone ? "" : text; }

std::string CompleteOptions(ProgramOptions* options) {
  PluginOptions& plugin = options->plugin;
  plugin.kubelet_socket = UnlessNone(plugin.kubelet_socket);
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
  options->view.api_server = plugin.api_server;
  options->view.driver = plugin.driver;
  options->view.node = plugin.node;
  plugin.daemon.timeout = plugin.timeout;
  plugin.daemon.owner = OwnerOf(plugin.driver, plugin.node);
  const std::map<std::string, FactSource> sources = {{"off", FactSource::kOff},
                                                     {"auto", FactSource::kAuto},
                                                     {"kubelet", FactSource::kKubelet},
                                                     {"api-server", FactSource::kApiServer}};
  const auto source = sources.find(options->pod_facts);
  if (source == sources.end()) return "--pod-facts: off, auto, kubelet or api-server";
  FactOptions& facts = options->facts;
  facts.source = source->second;
  facts.node = plugin.node;
  facts.kubelet_socket = plugin.kubelet_socket;
  facts.timeout = plugin.timeout;
  facts.api_server = plugin.api_server;
  facts.daemon = plugin.daemon;
  return "";
}

void StartTelling(const ProgramOptions& options) {
  std::thread([facts = options.facts, pause = options.pause] {
    FactTeller(facts, Say).Run(pause);
  }).detach();
}

void MakeRounds(Plugin* plugin, absl::Duration pause, const std::function<void()>& before) {
  for (bool first = true;; first = false) {
    before();
    (void)plugin->Round();
    if (first) NotifyReady();
    const absl::Time next = absl::Now() + pause;
    while (absl::Now() < next && !plugin->WaitForChange(std::min(next, absl::Now() + kLook)) &&
           !plugin->PodsHaveChanged()) {
    }
  }
}

}  // namespace gpumem::kubernetes
