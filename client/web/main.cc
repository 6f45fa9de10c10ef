// SPDX-License-Identifier: Apache-2.0
// gpumem-web: serves a page that shows the GPU memory of this node, read-only and unprivileged.
//
// Exit codes: 0 ended by a signal, or idle; 1 it cannot serve; 2 wrong arguments.
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/web/feed/feed.h"
#include "client/web/options.h"
#include "client/web/peers/peers.h"
#include "client/web/server/listener.h"
#include "client/web/server/server.h"
#include "client/web/server/users/viewer_of_peer.h"
#include "common/version.h"

namespace gpumem::web {
namespace {

void Say(const std::string& line) {
  const std::string text = absl::StrCat("gpumem-web: ", line, "\n");
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// Raises the limit on descriptors to that of connections, as far as it is allowed.
void RaiseDescriptorLimit() {
  constexpr rlim_t kWanted = 2048;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kWanted) return;
  limit.rlim_cur = limit.rlim_max < kWanted ? limit.rlim_max : kWanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Blocks the signals that end the program. Requires that no thread is running yet.
sigset_t BlockSignals() {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that peers have closed
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

absl::StatusOr<std::vector<Listener>> OpenListeners(const ProgramOptions& options,
                                                    bool* activated) {
  absl::StatusOr<std::vector<Listener>> listeners = TakeListeners();
  if (!listeners.ok()) return listeners;
  *activated = !listeners->empty();
  std::vector<std::string> texts = options.listen;
  if (texts.empty() && !*activated) texts.push_back(DefaultListen(options.runtime_dir));
  for (const std::string& text : texts) {
    absl::StatusOr<Listener> listener = Listen(text);
    if (!listener.ok()) return listener.status();
    listeners->push_back(*std::move(listener));
  }
  return listeners;
}

absl::Status Serve(const ProgramOptions& options) {
  RaiseDescriptorLimit();
  const sigset_t signals = BlockSignals();
  bool activated = false;
  absl::StatusOr<std::vector<Listener>> listeners = OpenListeners(options, &activated);
  if (!listeners.ok()) return listeners.status();
  Server::Options server_options = {.hosts = options.hosts,
                                    .groups = GroupsOf(options.groups),
                                    .node = options.node,
                                    .on_idle = [] { kill(getpid(), SIGTERM); }};
  std::string where;
  bool tcp = false;
  for (const Listener& listener : *listeners) {
    absl::StrAppend(&where, where.empty() ? "" : ", ", listener.where);
    tcp = tcp || !listener.origin.empty();
  }
  std::unique_ptr<Peers> peers;
  if (!options.peers.empty()) {
    absl::StatusOr<std::unique_ptr<Peers>> started = Peers::Start({.peers = options.peers});
    if (!started.ok()) return started.status();
    peers = *std::move(started);
  }
  Feed feed({.runtime_dir = options.runtime_dir, .node = options.node});
  if (peers != nullptr) server_options.peers = [&peers] { return peers->Document(); };
  if (activated) server_options.idle = options.idle_exit;
  const absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(*std::move(listeners), &feed, std::move(server_options));
  if (!server.ok()) return server.status();
  Say(absl::StrCat("serves ", where));
  if (tcp && !activated) {
    const absl::StatusOr<std::string> link = (*server)->OwnLink();
    if (!link.ok()) return link.status();
    std::printf("%s\n", link->c_str());
    std::fflush(stdout);
  }
  int signal = 0;
  while (sigwait(&signals, &signal) != 0) continue;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Serve a page that shows the GPU memory of this node, read-only.", "gpumem-web");
  ProgramOptions options;
  DeclareOptions(&app, &options);
  app.set_version_flag("--version", "gpumem-web " GPUMEM_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const absl::Status completed = CompleteOptions(&options); !completed.ok()) {
    Say(absl::StrCat(completed.message(), "; see gpumem-web --help"));
    return 2;
  }
  const absl::Status served = Serve(options);
  if (!served.ok()) Say(std::string(served.message()));
  return served.ok() ? 0 : 1;
}

}  // namespace
}  // namespace gpumem::web

int main(int argc, char** argv) { return gpumem::web::Main(argc, argv); }
