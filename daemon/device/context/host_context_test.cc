// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/host_context.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/mapping/host_ipc.h"
#include "common/mapping/mapping.h"
#include "common/unix_channel.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using gpumem::Mapping;
using gpumem::UniqueFd;

using gpumem::kMiB;
constexpr char kUuid[] = "HOST-00000003-0000-0000-0000-000000000000";

class HostContextTest : public testing::Test {
 protected:
  HostContextTest() : dir_(MakeDir()) {
    absl::StatusOr<std::unique_ptr<Context>> context =
        MakeHostContext({.device_uuid = kUuid, .socket_path = gpumem::HostIpcSocket(dir_, 3)});
    EXPECT_TRUE(context.ok()) << context.status();
    if (context.ok()) context_ = *std::move(context);
  }
  ~HostContextTest() override {
    context_.reset();
    EXPECT_EQ(rmdir(dir_.c_str()), 0) << "the socket is left behind";
  }

  static std::string MakeDir() {
    std::string dir = "/tmp/gpumem-ctx.XXXXXX";
    EXPECT_NE(mkdtemp(dir.data()), nullptr);
    return dir;
  }

  absl::StatusOr<std::unique_ptr<Mapping>> OpenIpc(const ExportData& handle, uint64_t bytes) {
    return gpumem::OpenHostIpc(dir_, handle, bytes, {});
  }

  const std::string dir_;
  std::unique_ptr<Context> context_;
};

TEST_F(HostContextTest, IpcMemoryIsOpenedByItsHandle) {
  const absl::StatusOr<ExportData> handle = context_->CreateIpc(1, 4 * kMiB);
  ASSERT_TRUE(handle.ok()) << handle.status();
  const auto mapping = OpenIpc(*handle, 4 * kMiB);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  EXPECT_EQ((*mapping)->size(), 4 * kMiB);
  const char* const bytes = static_cast<const char*>((*mapping)->data());
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[4 * kMiB - 1], 0);
}

TEST_F(HostContextTest, OpenedTwiceItIsTheSameMemoryAndCounted) {
  const absl::StatusOr<ExportData> handle = context_->CreateIpc(1, 2 * kMiB);
  ASSERT_TRUE(handle.ok()) << handle.status();
  auto first = OpenIpc(*handle, 2 * kMiB);
  auto second = OpenIpc(*handle, 2 * kMiB);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->data(), (*second)->data());
  static_cast<char*>((*first)->data())[7] = 'x';
  first->reset();
  EXPECT_EQ(static_cast<char*>((*second)->data())[7], 'x');
}

TEST_F(HostContextTest, IpcMemoryIsNotOpenedAfterItIsFreed) {
  const absl::StatusOr<ExportData> handle = context_->CreateIpc(1, 2 * kMiB);
  ASSERT_TRUE(handle.ok()) << handle.status();
  ASSERT_EQ(context_->Free(1), absl::OkStatus());
  EXPECT_EQ(OpenIpc(*handle, 2 * kMiB).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(context_->Free(1).code(), StatusCode::kNotFound);
}

TEST_F(HostContextTest, IpcMemoryIsNotOpenedOnceItsOwnerIsGone) {
  const absl::StatusOr<ExportData> handle = context_->CreateIpc(1, 2 * kMiB);
  ASSERT_TRUE(handle.ok()) << handle.status();
  context_.reset();
  EXPECT_EQ(OpenIpc(*handle, 2 * kMiB).status().code(), StatusCode::kNotFound);
}

TEST_F(HostContextTest, OpensOnlyWhatItsBytesName) {
  const absl::StatusOr<ExportData> handle = context_->CreateIpc(1, 2 * kMiB);
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(OpenIpc(*handle, 4 * kMiB).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenIpc(ExportData{}, 2 * kMiB).status().code(), StatusCode::kInvalidArgument);
  ExportData guessed = *handle;
  guessed[20] ^= 1;
  EXPECT_EQ(OpenIpc(guessed, 2 * kMiB).status().code(), StatusCode::kNotFound);
  const auto read_only = gpumem::OpenHostIpc(dir_, *handle, 2 * kMiB, {.read_only = true});
  EXPECT_EQ(read_only.status().code(), StatusCode::kUnimplemented);
  char* const somewhere = reinterpret_cast<char*>(uintptr_t{1} << 40);
  EXPECT_EQ(gpumem::OpenHostIpc(dir_, *handle, 2 * kMiB, {.address = somewhere}).status().code(),
            StatusCode::kUnimplemented);
}

TEST_F(HostContextTest, AnswersOthersWhileAPeerSendsInvalidBytesOrNothing) {
  const absl::StatusOr<ExportData> handle = context_->CreateIpc(1, 2 * kMiB);
  ASSERT_TRUE(handle.ok()) << handle.status();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd reader(pipe_ends[0]), writer(pipe_ends[1]);
  const std::string no_handle(64, 'x');
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) {
    const std::string path = gpumem::HostIpcSocket(dir_, 3);
    absl::StatusOr<UniqueFd> socket = gpumem::ConnectUnix(path, SOCK_SEQPACKET, deadline);
    ASSERT_TRUE(socket.ok()) << socket.status();
    std::vector<int> fds;
    if (i % 2 == 1) fds = {reader.get(), writer.get()};
    // Whether sending them succeeds depends on the kernel.
    if (i % 4 != 0) {
      gpumem::SendMessage(socket->get(), i % 4 == 2 ? "?" : no_handle, fds, deadline).IgnoreError();
    }
    silent.push_back(*std::move(socket));
  }
  EXPECT_TRUE(OpenIpc(*handle, 2 * kMiB).ok());
}

// A TCP socket whose close waits: for the other side, which does not read.
TEST_F(HostContextTest, AnswersOthersThoughItIsSentWhatTakesLongToClose) {
  const absl::StatusOr<ExportData> handle = context_->CreateIpc(1, 2 * kMiB);
  ASSERT_TRUE(handle.ok()) << handle.status();
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd slow(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  ASSERT_EQ(connect(slow.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  const linger long_time = {.l_onoff = 1, .l_linger = 600};
  ASSERT_EQ(setsockopt(slow.get(), SOL_SOCKET, SO_LINGER, &long_time, sizeof(long_time)), 0);
  const std::vector<char> bytes(1 << 20);
  while (send(slow.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  const auto asker = gpumem::ConnectUnix(gpumem::HostIpcSocket(dir_, 3), SOCK_SEQPACKET, deadline);
  ASSERT_TRUE(asker.ok()) << asker.status();
  const std::string nonsense(5000, 'x');
  if (!gpumem::SendMessage(asker->get(), nonsense, {slow.get()}, deadline).ok()) {
    const linger none = {};  // the kernel keeps it from being sent
    setsockopt(slow.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  }
  gpumem::SendMessage(asker->get(), nonsense, {slow.get()}, deadline).IgnoreError();
  slow.reset();
  EXPECT_TRUE(OpenIpc(*handle, 2 * kMiB).ok());
}

TEST_F(HostContextTest, LeavesTheSocketToItsSuccessor) {
  auto next =
      MakeHostContext({.device_uuid = kUuid, .socket_path = gpumem::HostIpcSocket(dir_, 3)});
  ASSERT_TRUE(next.ok()) << next.status();
  context_ = nullptr;
  context_ = *std::move(next);
  const absl::StatusOr<ExportData> handle = context_->CreateIpc(1, 2 * kMiB);
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_TRUE(OpenIpc(*handle, 2 * kMiB).ok());
}

class HostPoolTest : public HostContextTest {
 protected:
  HostPoolTest() {
    const absl::StatusOr<MadePool> made = context_->CreatePool(9, 8 * kMiB);
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) return;
    EXPECT_EQ(made->max_bytes, 8 * kMiB);
    absl::StatusOr<std::shared_ptr<gpumem::ImportedPool>> pool =
        gpumem::ImportHostPool(dir_, made->fd.get());
    EXPECT_TRUE(pool.ok()) << pool.status();
    if (pool.ok()) pool_ = *std::move(pool);
  }

  std::shared_ptr<gpumem::ImportedPool> pool_;  // after its descriptor was closed
};

// Tries every call by which a client could put memory into a descriptor. Returns the bytes that it
// holds then.
uint64_t FillBeyond(int fd, uint64_t size) {
  constexpr uint64_t kBeyond = 8 * kMiB;
  const std::vector<char> bytes(kMiB, 'x');
  const auto end = static_cast<off_t>(size);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(size + kBeyond)), -1);
  EXPECT_EQ(fallocate(fd, 0, end, kBeyond), -1);
  EXPECT_EQ(fallocate(fd, FALLOC_FL_KEEP_SIZE, end, kBeyond), -1);
  EXPECT_EQ(pwrite(fd, bytes.data(), bytes.size(), end), -1);
  EXPECT_EQ(pwrite(fd, bytes.data(), bytes.size(), off_t{1} << 40), -1);
  void* const mapped = mmap(nullptr, kBeyond, PROT_READ | PROT_WRITE, MAP_SHARED, fd, end);
  EXPECT_NE(mapped, MAP_FAILED);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGBUS, SIG_DFL);
    memset(mapped, 1, kBeyond);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) << status;
  munmap(mapped, kBeyond);
  struct stat file = {};
  EXPECT_EQ(fstat(fd, &file), 0);
  return static_cast<uint64_t>(file.st_blocks) * 512;
}

// A pool's descriptor goes to every client that has memory of it.
TEST_F(HostContextTest, APoolsDescriptorHoldsNoMemory) {
  const absl::StatusOr<MadePool> made = context_->CreatePool(9, 8 * kMiB);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE(context_->Allocate(1, 9, 2 * kMiB).ok());
  EXPECT_EQ(FillBeyond(made->fd.get(), 0), 0u);
}

TEST_F(HostContextTest, MemoryOfAPoolHoldsNoMoreThanItWasMadeFor) {
  const absl::StatusOr<MadePool> made = context_->CreatePool(9, 8 * kMiB);
  ASSERT_TRUE(made.ok()) << made.status();
  const absl::StatusOr<ExportData> data = context_->Allocate(1, 9, 2 * kMiB);
  ASSERT_TRUE(data.ok()) << data.status();
  // As libgpumem asks for it, but that the descriptor is kept.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  const auto asker = gpumem::ConnectUnix(gpumem::HostIpcSocket(dir_, 3), SOCK_SEQPACKET, deadline);
  ASSERT_TRUE(asker.ok()) << asker.status();
  const std::string question(data->begin(), data->end());
  ASSERT_EQ(gpumem::SendMessage(asker->get(), question, {}, deadline), absl::OkStatus());
  const absl::StatusOr<gpumem::UnixMessage> answer = gpumem::ReceiveMessage(asker->get(), deadline);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->fds.size(), 1u);
  EXPECT_LE(FillBeyond(answer->fds.front().get(), 2 * kMiB), 2 * kMiB);
}

TEST_F(HostPoolTest, MemoryIsOpenedByPoolAndData) {
  const auto data = context_->Allocate(1, 9, 2 * kMiB);
  const auto other = context_->Allocate(2, 9, 2 * kMiB);
  ASSERT_TRUE(data.ok() && other.ok());
  const auto first = pool_->Open(*data, 2 * kMiB, {});
  const auto again = pool_->Open(*data, 2 * kMiB, {});
  const auto second = pool_->Open(*other, 2 * kMiB, {});
  ASSERT_TRUE(first.ok() && again.ok() && second.ok());
  EXPECT_EQ((*first)->data(), (*again)->data());
  memset((*first)->data(), 1, 2 * kMiB);
  EXPECT_EQ(static_cast<char*>((*second)->data())[0], 0);
  EXPECT_EQ(pool_->Open(*data, 4 * kMiB, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pool_->Open({}, 2 * kMiB, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pool_->Open(*data, 2 * kMiB, {.read_only = true}).status().code(),
            StatusCode::kUnimplemented);
}

TEST_F(HostPoolTest, DataOfAnotherPoolIsRefused) {
  ASSERT_TRUE(context_->CreatePool(10, 8 * kMiB).ok());
  const auto data = context_->Allocate(1, 10, 2 * kMiB);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(pool_->Open(*data, 2 * kMiB, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(gpumem::ImportHostPool(dir_, STDIN_FILENO).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(HostPoolTest, WhatIsFreedIsNotOpenedAnyMoreAndComesBackZeroed) {
  const auto data = context_->Allocate(1, 9, 2 * kMiB);
  ASSERT_TRUE(data.ok());
  ASSERT_EQ(context_->SetPool(9, {.release_threshold_bytes = 8 * kMiB}), absl::OkStatus());
  memset((*pool_->Open(*data, 2 * kMiB, {}))->data(), 1, 2 * kMiB);
  ASSERT_EQ(context_->Free(1), absl::OkStatus());
  EXPECT_EQ(pool_->Open(*data, 2 * kMiB, {}).status().code(), StatusCode::kNotFound);
  const auto again = context_->Allocate(2, 9, 2 * kMiB);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(pool_->Open(*data, 2 * kMiB, {}).status().code(), StatusCode::kNotFound);
  const auto mapping = pool_->Open(*again, 2 * kMiB, {});
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ(static_cast<char*>((*mapping)->data())[kMiB], 0);
}

TEST_F(HostPoolTest, ReservesUpToItsMaximumAndKeepsWhatTheThresholdSays) {
  ASSERT_TRUE(context_->Allocate(1, 9, 6 * kMiB).ok());
  EXPECT_EQ(context_->Allocate(2, 9, 4 * kMiB).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(context_->Allocate(3, 9, 2 * kMiB).ok());
  ASSERT_EQ(context_->Free(3), absl::OkStatus());
  absl::StatusOr<PoolNumbers> numbers = context_->ReadPool(9);
  ASSERT_TRUE(numbers.ok());
  EXPECT_EQ(numbers->used_bytes, 6 * kMiB);
  EXPECT_EQ(numbers->used_peak_bytes, 8 * kMiB);
  EXPECT_EQ(numbers->reserved_bytes, 6 * kMiB);
  ASSERT_EQ(context_->SetPool(9, {.release_threshold_bytes = 4 * kMiB, .reset_peaks = true}),
            absl::OkStatus());
  ASSERT_EQ(context_->Free(1), absl::OkStatus());
  numbers = context_->ReadPool(9);
  EXPECT_EQ(numbers->used_bytes, 0u);
  EXPECT_EQ(numbers->used_peak_bytes, 6 * kMiB);
  EXPECT_EQ(numbers->reserved_bytes, 4 * kMiB);
  ASSERT_EQ(context_->TrimPool(9, 0), absl::OkStatus());
  EXPECT_EQ(context_->ReadPool(9)->reserved_bytes, 0u);
  ASSERT_EQ(context_->DestroyPool(9), absl::OkStatus());
  EXPECT_EQ(context_->ReadPool(9).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(context_->DestroyPool(9).code(), StatusCode::kNotFound);
  EXPECT_EQ(context_->Allocate(4, 9, 2 * kMiB).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace gpumemd
