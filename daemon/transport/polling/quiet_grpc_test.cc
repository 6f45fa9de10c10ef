// SPDX-License-Identifier: Apache-2.0
// Where no thread can be made, gRPC's timers are not waited for for ever.
#include "daemon/transport/polling/quiet_grpc.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
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

TEST(QuietGrpcDeathTest, AProcessThatCannotHaveThreadsEnds) {
  EXPECT_EXIT(
      {
        threads_fail = true;
        TakeOverGrpcTimers(absl::Seconds(1));
      },
      ::testing::KilledBySignal(SIGALRM), "gRPC could not begin its thread of timers");
}

TEST(QuietGrpcDeathTest, OtherwiseTheTimersAreTakenOver) {
  EXPECT_EXIT(
      {
        TakeOverGrpcTimers(absl::Minutes(5));
        _exit(HasGrpcTimers() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gpumemd
