// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/quiet_grpc.h"

#include <grpc/event_engine/event_engine.h>
#include <grpc/grpc.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/transport/polling/event_engine.h"

// Of gRPC's library; no header of its package declares them.
void grpc_timer_manager_set_threading(bool enabled);
void grpc_timer_manager_tick();

namespace gpumemd {
namespace {

std::atomic<bool> taken_over = false;

// Of SIGALRM, once: tells why the process ends, and ends it by that signal.
void EndForWantOfThreads(int signal) {
  constexpr absl::string_view kWhy =
      "gRPC could not begin its thread of timers: this process has no memory, or no more threads\n";
  (void)!write(STDERR_FILENO, kWhy.data(), kWhy.size());
  raise(signal);
}

}  // namespace

void TakeOverGrpcTimers(absl::Duration patience) {
  grpc_event_engine::experimental::SetEventEngineFactory(
      [] { return std::make_unique<QuietEventEngine>(); });
  // Never undone: with the last user gRPC would stop, and start its threads anew with the next.
  grpc_init();
  // gRPC waits for its thread to end. If the thread could not begin, it would wait for ever.
  struct sigaction on_alarm = {}, before = {};
  on_alarm.sa_handler = EndForWantOfThreads;
  on_alarm.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGALRM, &on_alarm, &before);
  const itimerval end = {.it_interval = {}, .it_value = absl::ToTimeval(patience)};
  setitimer(ITIMER_REAL, &end, nullptr);
  grpc_timer_manager_set_threading(false);
  const itimerval none = {};
  setitimer(ITIMER_REAL, &none, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  taken_over = true;
}

bool HasGrpcTimers() { return taken_over; }

void RunGrpcTimers() { grpc_timer_manager_tick(); }

void GiveBackGrpcTimers() {
  if (taken_over.exchange(false)) grpc_timer_manager_set_threading(true);
}

}  // namespace gpumemd
