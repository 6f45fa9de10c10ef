// SPDX-License-Identifier: Apache-2.0
// Segments of every kind on the host backend, against a fake daemon.
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "client/mapping/testing/kinds_fixture.h"
#include "client/testing/fake_daemon.h"
#include "common/cuda/driver.h"
#include "common/mapping/host_ipc.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem::kinds_testing {
namespace kinds_test {

using absl::StatusCode;
using internal::OpenMemoryFds;
using ::testing::ElementsAre;

TEST_F(KindsTest, PinnedIsHostMemoryThatGpusUseWhereThereAreSome) {
  absl::StatusOr<Segment> segment = client_->Acquire({.bytes = kBytes, .kind = Kind::kPinned});
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(segment->kind(), Kind::kPinned);
  EXPECT_EQ(segment->backend(), Backend::kHost);
  EXPECT_EQ(segment->device_uuid(), FakeDaemon::kPinnedDevice);
  EXPECT_EQ(segment->registered(), CudaDriver::Get().ok());
  Segment same = Connect()->Open(segment->Share()->value, {.read_only = true}).value();
  strcpy(static_cast<char*>(segment->data()), "staged");
  EXPECT_STREQ(static_cast<char*>(same.data()), "staged");
  EXPECT_TRUE(segment->Release().ok());
  EXPECT_FALSE(segment->registered());
}

TEST_F(KindsTest, HostMemoryIsMappedLikeDeviceMemory) {
  absl::StatusOr<std::vector<Segment>> segments =
      client_->AcquireMany({.bytes = kBytes, .kind = Kind::kHost}, 2);
  ASSERT_TRUE(segments.ok()) << segments.status();
  const Segment& first = segments->front();
  EXPECT_EQ(first.kind(), Kind::kHost);
  EXPECT_EQ(KindName(first.kind()), "host");
  EXPECT_EQ(first.backend(), Backend::kHost) << "the daemon has no GPU that could map it";
  EXPECT_EQ(first.device_uuid(), FakeDaemon::kPinnedDevice);
  EXPECT_FALSE(first.registered());
  EXPECT_EQ(segments->back().data(), static_cast<char*>(first.data()) + kBytes);
  Segment same = Connect()->Open(first.Share()->value, {.read_only = true}).value();
  strcpy(static_cast<char*>(first.data()), "far");
  EXPECT_STREQ(static_cast<char*>(same.data()), "far");
}

TEST_F(KindsTest, ADescriptorIsFetchedOnceAndIsTheSameMemory) {
  for (const Kind kind : {Kind::kVmm, Kind::kPinned, Kind::kHost}) {
    Segment segment = client_->Acquire({.bytes = kBytes, .kind = kind}).value();
    const size_t before = OpenMemoryFds();
    scopes_.clear();
    absl::StatusOr<int> fd = segment.fd();
    ASSERT_TRUE(fd.ok()) << fd.status();
    EXPECT_EQ(segment.fd().value(), *fd);
    EXPECT_THAT(scopes_, ElementsAre(v1::TICKET_SCOPE_TENANT));
    EXPECT_EQ(daemon_.live_leases(), 1u);
    EXPECT_EQ(OpenMemoryFds(), before + 1);
    strcpy(static_cast<char*>(segment.data()), "raw");
    char raw[4] = "";
    EXPECT_EQ(pread(*fd, raw, sizeof(raw), 0), 4);
    EXPECT_STREQ(raw, "raw");
    EXPECT_TRUE(segment.Release().ok());
    EXPECT_EQ(segment.fd().status().code(), StatusCode::kFailedPrecondition);
  }
}

TEST_F(KindsTest, AnotherTenantsSegmentHasADescriptorToo) {
  Segment theirs = client_->Acquire({.bytes = kBytes}).value();
  daemon_.SetTenant(theirs.lease_id(), "others");
  Segment mine = Connect()->Open(theirs.Share()->value).value();
  scopes_.clear();
  EXPECT_TRUE(mine.fd().ok());
  EXPECT_THAT(scopes_, ElementsAre(v1::TICKET_SCOPE_ANY));
  EXPECT_EQ(daemon_.live_leases(), 2u);
}

TEST_F(KindsTest, EveryKindHasItsOwnHandles) {
  StartOwner();
  Segment vmm = client_->Acquire({.bytes = kBytes, .kind = Kind::kVmm}).value();
  Segment ipc = client_->Acquire({.bytes = kBytes, .kind = Kind::kIpc}).value();
  Segment pool = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  Segment none;
  EXPECT_EQ(vmm.ipc_handle().status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(vmm.export_data().status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(vmm.pool_fd().status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(ipc.fd().status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(ipc.export_data().status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(ipc.pool_fd().status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(pool.fd().status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(pool.ipc_handle().status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(none.ipc_handle().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(none.export_data().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(none.pool_fd().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(none.fd().status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(KindsTest, IpcIsOpenedByItsHandle) {
  StartOwner();
  absl::StatusOr<Segment> segment = client_->Acquire({.bytes = kBytes, .kind = Kind::kIpc});
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(segment->kind(), Kind::kIpc);
  EXPECT_EQ(segment->ipc_handle().value(), ToHandle(Bytes(ipc_handle_)));
  strcpy(static_cast<char*>(segment->data()), "by its handle");
  char raw[14] = "";
  EXPECT_EQ(pread(memory_.Find(Bytes(ipc_handle_)).get(), raw, sizeof(raw), 0), 14);
  EXPECT_STREQ(raw, "by its handle");
}

TEST_F(KindsTest, WhatIsLostBetweenGrantAndMappingSaysSoAndItsLeaseIsReleased) {
  const auto is_lost = [this](Kind kind) {
    const absl::Status status = client_->Acquire({.bytes = kBytes, .kind = kind}).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(daemon_.live_leases(), 0u);
  };
  // The owner has ended.
  is_lost(Kind::kIpc);
  is_lost(Kind::kMempool);
  // The owner lives, and has freed the memory.
  StartOwner();
  spoil_ = [](v1::Lease* lease) {
    std::string data = lease->export_data();
    data[40] ^= 1;  // a byte of the key
    lease->set_export_data(data);
  };
  is_lost(Kind::kIpc);
  is_lost(Kind::kMempool);
}

TEST_F(KindsTest, AnOwnerThatDoesNotAnswerIsNotWaitedForLong) {
  // As a stopped process: it lives, and reads nothing.
  const UniqueFd silent =
      ListenUnix(HostIpcSocket(daemon_.runtime_dir(), 0), SOCK_SEQPACKET, 0600).value();
  const absl::Time start = absl::Now();
  EXPECT_EQ(client_->Acquire({.bytes = kBytes, .kind = Kind::kIpc}).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(daemon_.live_leases(), 0u);
}

// A fork while another thread opens memory of these kinds leaves the child their locks.
TEST_F(KindsTest, AForkedChildMayEndItsSegments) {
  StartOwner();
  Segment ipc = client_->Acquire({.bytes = kBytes, .kind = Kind::kIpc}).value();
  Segment pool = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  std::atomic<bool> stop = false;
  std::thread busy([&] {
    while (!stop) {
      EXPECT_TRUE(client_->Acquire({.bytes = kBytes, .kind = Kind::kIpc}).ok());
      EXPECT_TRUE(client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).ok());
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      ipc = Segment();
      pool = Segment();
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
  memset(ipc.data(), 1, kBytes);
  memset(pool.data(), 1, kBytes);
}

TEST_F(KindsTest, WhatTheDaemonMustNotSendIsADefectAndReleased) {
  const auto refused = [this](Kind kind) {
    EXPECT_EQ(client_->Acquire({.bytes = kBytes, .kind = kind}).status().code(),
              StatusCode::kInternal);
    EXPECT_EQ(daemon_.live_leases(), 0u);
  };
  spoil_ = [](v1::Lease* lease) { lease->set_export_data("short"); };
  refused(Kind::kIpc);
  refused(Kind::kMempool);
  spoil_ = [](v1::Lease* lease) { lease->set_export_data(std::string(64, 'x')); };
  refused(Kind::kIpc);
  refused(Kind::kMempool);
  spoil_ = [](v1::Lease* lease) { lease->set_pool_id(77); };
  refused(Kind::kMempool);  // its descriptor never came
  spoil_ = [](v1::Lease* lease) { lease->set_kind(v1::KIND_VMM); };
  refused(Kind::kIpc);  // without its descriptor
  spoil_ = [](v1::Lease* lease) { lease->set_device_uuid("GPU-of-nobody"); };
  refused(Kind::kIpc);
  spoil_ = [](v1::Lease* lease) { lease->set_kind(static_cast<v1::Kind>(99)); };
  EXPECT_EQ(client_->Acquire({.bytes = kBytes, .kind = Kind::kIpc}).status().code(),
            StatusCode::kUnimplemented);
  EXPECT_EQ(daemon_.live_leases(), 0u);
}

}  // namespace kinds_test
}  // namespace gpumem::kinds_testing
