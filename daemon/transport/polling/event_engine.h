// SPDX-License-Identifier: Apache-2.0
// An EventEngine for gRPC whose thread sleeps until it has something to do, and starts when it
// first has. It has timers and no sockets: gRPC 1.51's servers use no others.
#pragma once

#include <grpc/event_engine/event_engine.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gpumemd {

// Thread-safe.
class QuietEventEngine final : public grpc_event_engine::experimental::EventEngine {
 public:
  QuietEventEngine();
  // Forgets the timers. A running closure goes on.
  ~QuietEventEngine() override;

  void Run(Closure* closure) override;
  void Run(absl::AnyInvocable<void()> closure) override;
  TaskHandle RunAfter(Duration when, Closure* closure) override;
  TaskHandle RunAfter(Duration when, absl::AnyInvocable<void()> closure) override;
  bool Cancel(TaskHandle handle) override;

  bool IsWorkerThread() override;
  // UNIMPLEMENTED, or nothing.
  absl::StatusOr<std::unique_ptr<Listener>> CreateListener(
      Listener::AcceptCallback on_accept, absl::AnyInvocable<void(absl::Status)> on_shutdown,
      const grpc_event_engine::experimental::EndpointConfig& config,
      std::unique_ptr<grpc_event_engine::experimental::MemoryAllocatorFactory> memory) override;
  ConnectionHandle Connect(OnConnectCallback on_connect, const ResolvedAddress& address,
                           const grpc_event_engine::experimental::EndpointConfig& config,
                           grpc_event_engine::experimental::MemoryAllocator memory,
                           Duration timeout) override;
  bool CancelConnect(ConnectionHandle handle) override;
  std::unique_ptr<DNSResolver> GetDNSResolver(const DNSResolver::ResolverOptions& options) override;

 private:
  struct State;
  static void Work(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // also the thread's
};

}  // namespace gpumemd
