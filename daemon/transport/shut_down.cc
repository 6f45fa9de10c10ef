// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/shut_down.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

namespace gpumemd {

void ShutDown(absl::Span<grpc::Server* const> servers, absl::Time deadline) {
  std::vector<std::thread> threads;
  for (grpc::Server* server : servers) {
    threads.emplace_back(
        [=] { server->Shutdown(absl::ToChronoTime(std::max(deadline, absl::Now()))); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gpumemd
