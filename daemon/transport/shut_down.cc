// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/shut_down.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "common/start_thread.h"

namespace gpumemd {

void ShutDown(absl::Span<grpc::Server* const> servers, absl::Time deadline) {
  const auto end = [deadline](grpc::Server* server) {
    server->Shutdown(absl::ToChronoTime(std::max(deadline, absl::Now())));
  };
  std::vector<std::thread> threads;
  std::vector<grpc::Server*> own;  // of this thread: the first, and those without a thread
  for (grpc::Server* server : servers) {
    if (server == servers.front()) {
      own.push_back(server);
      continue;
    }
    absl::StatusOr<std::thread> thread = gpumem::StartThread([=] { end(server); });
    if (thread.ok()) {
      threads.push_back(*std::move(thread));
    } else {
      own.push_back(server);
    }
  }
  for (grpc::Server* server : own) end(server);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gpumemd
