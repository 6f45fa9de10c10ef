// SPDX-License-Identifier: Apache-2.0
// Where no thread can be made, gRPC's timers are not waited for for ever.
#include "daemon/transport/polling/quiet_grpc.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "absl/time/time.h"

namespace {

std::atomic<bool> threads_fail = false;

}  // namespace

// In place of the C library's, for gRPC, too.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) {
  if (threads_fail) return EAGAIN;
  static const auto next =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return next(thread, attributes, run, argument);
}

namespace gpumemd {
namespace {

// Returns how a process ends that takes the timers over.
int StatusOf(bool without_threads, absl::Duration patience) {
  const pid_t child = fork();
  if (child == 0) {
    threads_fail = without_threads;
    TakeOverGrpcTimers(patience);
    _exit(HasGrpcTimers() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(QuietGrpc, EndsAProcessThatCannotHaveThreads) {
  const int status = StatusOf(/*without_threads=*/true, absl::Seconds(1));
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGALRM);
}

TEST(QuietGrpc, TakesTheTimersOver) {
  const int status = StatusOf(/*without_threads=*/false, absl::Minutes(5));
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace gpumemd
