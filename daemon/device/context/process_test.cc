// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/device/context/context_device.h"
#include "daemon/device/context/wire.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace {

// As the driver may.
absl::StatusOr<std::unique_ptr<Context>> Hang(const ContextSpec&) {
  while (true) pause();
}

TEST(ContextProcess, EndsWithItsParentThoughItHangs) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    close(ends[0]);
    dup2(ends[1], kContextSocket);
    std::string name = "test", flag = kContextFlag, uuid = "HOST-", path;
    char* argv[] = {name.data(), flag.data(), uuid.data(), path.data(), nullptr};
    _exit(RunAsContextProcess(4, argv, Hang).value_or(99));
  }
  close(ends[1]);
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), 0);
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 4);
}

// As a driver that gives up in the end; leaves a byte in the socket's place.
absl::StatusOr<std::unique_ptr<Context>> FailSlowly(const ContextSpec& spec) {
  std::ofstream(spec.socket_path, std::ios::app) << '.';
  poll(nullptr, 0, 1000);
  return absl::InternalError("the driver gave up");
}

TEST(ContextProcess, AWaiterOfAStartThatFailsDoesNotStartAnother) {
  const std::string starts = absl::StrCat("/tmp/gpumem-starts.", getpid());
  auto base = MakeHostDevice({.capacity_bytes = uint64_t{64} << 20});
  ASSERT_TRUE(base.ok()) << base.status();
  const auto device =
      AddContextKinds(*std::move(base), {.kinds = {Kind::kIpc}, .socket_path = starts});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&device] {
      const auto made = device->Create({.kind = Kind::kIpc, .bytes = uint64_t{2} << 20});
      EXPECT_EQ(made.status(), absl::InternalError("the driver gave up"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::filesystem::file_size(starts), 1u);
  // Who comes later tries again.
  EXPECT_FALSE(device->Create({.kind = Kind::kIpc, .bytes = uint64_t{2} << 20}).ok());
  EXPECT_EQ(std::filesystem::file_size(starts), 2u);
  unlink(starts.c_str());
}

// Closes its end, and is not there any more to end.
absl::StatusOr<std::unique_ptr<Context>> CloseAndStop(const ContextSpec&) {
  shutdown(kContextSocket, SHUT_RDWR);
  while (true) raise(SIGSTOP);
}

TEST(ContextProcess, AProcessThatClosesItsSocketAndStopsIsKilled) {
  const absl::Status status = ContextProcess::Start({.device_uuid = "GPU-"}, [](pid_t) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "it is left";
}

TEST(ContextProcess, OtherArgumentsDoNotMakeAContextProcess) {
  std::string name = "test", flag = "--help";
  char* argv[] = {name.data(), flag.data(), nullptr};
  EXPECT_EQ(RunAsContextProcess(2, argv), std::nullopt);
}

absl::StatusOr<std::unique_ptr<Context>> Misbehave(const ContextSpec& spec) {
  return spec.socket_path.empty() ? CloseAndStop(spec) : FailSlowly(spec);
}

}  // namespace
}  // namespace gpumemd

int main(int argc, char** argv) {
  const std::optional<int> status = gpumemd::RunAsContextProcess(argc, argv, gpumemd::Misbehave);
  if (status.has_value()) return *status;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
