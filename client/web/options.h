// SPDX-License-Identifier: Apache-2.0
// The command line of gpumem-web.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/web/peers/peer.h"

namespace CLI {
class App;
}

namespace gpumem::web {

struct ProgramOptions {
  std::vector<std::string> listen;  // as typed; empty: systemd's sockets, else the default
  std::string runtime_dir;          // of gpumemd
  std::string node;
  std::vector<std::string> hosts = {};
  std::vector<std::string> groups = {"gpumem-admin", "gpumem-metrics"};
  std::vector<std::string> peer_urls;
  std::string peer_headers;  // a file
  std::string idle_exit_text = "10min";

  // Read by CompleteOptions().
  absl::Duration idle_exit;
  std::vector<Peer> peers;
};

// Declares the options and sets their defaults.
void DeclareOptions(CLI::App* app, ProgramOptions* options);

// Reads the texts of the options, and the file that they name.
//   INVALID_ARGUMENT  the mistake
absl::Status CompleteOptions(ProgramOptions* options);

// Returns where a program without systemd listens by default: unix:PATH.
std::string DefaultListen(const std::string& runtime_dir);

}  // namespace gpumem::web
