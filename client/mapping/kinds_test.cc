// Segments of every kind on the host backend, against a fake daemon.
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "common/cuda/driver.h"
#include "common/mapping/host_ipc.h"
#include "common/mapping/mapping.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace {

using absl::StatusCode;
using internal::FakeDaemon;
using internal::OpenFds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 64 * 1024;

UniqueFd Memfd(uint64_t bytes, const char* name = "kinds-test") {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

// The number of this process's descriptors of pools, including the test's.
constexpr char kPoolName[] = "kinds-test-pool";
size_t PoolFds() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;  // the folder's descriptor, and any that closes meanwhile
    const std::string file = std::filesystem::read_symlink(entry.path(), error);
    if (file.find(kPoolName) != std::string::npos) ++count;
  }
  return count;
}

template <typename Data>
std::string Bytes(const Data& data) {
  const ExportData bytes = ToExportData(data);
  return {bytes.begin(), bytes.end()};
}

Handle ToHandle(const std::string& bytes) {
  Handle handle;
  std::copy(bytes.begin(), bytes.end(), handle.begin());
  return handle;
}

// The existing memory of kinds ipc and mempool, by its 64 bytes. Thread-safe.
class Memory {
 public:
  void Add(const std::string& data, UniqueFd memory) {
    absl::MutexLock lock(&mutex_);
    memory_[data] = std::move(memory);
  }
  void Remove(const std::string& data) {
    absl::MutexLock lock(&mutex_);
    memory_.erase(data);
  }
  // Returns a descriptor of the memory of `data`; none if it was removed.
  UniqueFd Find(const std::string& data) {
    absl::MutexLock lock(&mutex_);
    const auto found = memory_.find(data);
    if (found == memory_.end()) return UniqueFd();
    return UniqueFd(fcntl(found->second.get(), F_DUPFD_CLOEXEC, 0));
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, UniqueFd> memory_ ABSL_GUARDED_BY(mutex_);
};

// A tenant's pool, whose allocations the daemon grants one after another. Keeps a few.
class Pool {
 public:
  Pool(uint64_t id, Memory* memory) : id_(id), memory_(memory), fd_(Memfd(0, kPoolName)) {}

  uint64_t id() const { return id_; }
  int fd() const { return fd_.get(); }

  std::string Allocate(uint64_t bytes) {
    struct stat file = {};
    EXPECT_EQ(fstat(fd_.get(), &file), 0);
    HostPoolData data{.inode = file.st_ino};
    ++allocations_;
    memcpy(data.secret.data(), &allocations_, sizeof(allocations_));
    memory_->Add(Bytes(data), Memfd(bytes));
    kept_.push_back(Bytes(data));
    if (kept_.size() > 16) {
      memory_->Remove(kept_.front());
      kept_.pop_front();
    }
    return kept_.back();
  }

 private:
  const uint64_t id_;
  Memory* const memory_;
  const UniqueFd fd_;
  uint64_t allocations_ = 0;
  std::deque<std::string> kept_;
};

// The process that owns memory of kinds ipc and mempool.
class Owner {
 public:
  Owner(const std::string& runtime_dir, Memory* memory)
      : path_(HostIpcSocket(runtime_dir, 0)),
        socket_(ListenUnix(path_, SOCK_SEQPACKET, 0600).value()),
        thread_([this, memory] {
          while (true) {
            pollfd ready = {socket_.get(), POLLIN, 0};
            if (poll(&ready, 1, -1) < 0) continue;
            const UniqueFd asker(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            auto question = ReceiveMessage(asker.get(), absl::InfiniteFuture());
            if (!question.ok() || question->bytes == "end") return;
            const UniqueFd found = memory->Find(question->bytes);
            std::vector<int> fds;
            if (found.valid()) fds.push_back(found.get());
            SendMessage(asker.get(), found.valid() ? kHostIpcOpened : kHostIpcGone, fds,
                        absl::InfiniteFuture())
                .IgnoreError();
          }
        }) {}
  ~Owner() {
    auto end = ConnectUnix(path_, SOCK_SEQPACKET, absl::InfiniteFuture());
    EXPECT_EQ(SendMessage(end->get(), "end", {}, absl::InfiniteFuture()), absl::OkStatus());
    thread_.join();
  }

 private:
  const std::string path_;
  const UniqueFd socket_;
  std::thread thread_;
};

class KindsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Client> Connect() {
    return Client::Connect({.runtime_dir = daemon_.runtime_dir(), .timeout = absl::Seconds(20)})
        .value();
  }

  grpc::Status Grant(uint64_t session, const v1::AcquireRequest& request,
                     v1::AcquireResponse* response) {
    if (request.kind() != v1::KIND_MEMPOOL && request.kind() != v1::KIND_IPC) {
      return daemon_.Grant(session, request, response);
    }
    Pool& pool = next_pool_ != nullptr ? *next_pool_ : *pool_;
    v1::Delivery delivery;
    std::vector<int> fds;
    for (uint32_t i = 0; i < request.count(); ++i) {
      v1::Lease lease = daemon_.NewLease(request.bytes(), request.kind());
      delivery.add_lease_ids(lease.lease_id());
      if (request.kind() == v1::KIND_MEMPOOL) {
        lease.set_pool_id(pool.id());
        lease.set_export_data(pool.Allocate(request.bytes()));
      } else {
        lease.set_export_data(Bytes(ipc_handle_));
      }
      if (spoil_) spoil_(&lease);
      *response->add_leases() = lease;
    }
    if (request.kind() == v1::KIND_MEMPOOL && sent_pools_.insert({session, pool.id()}).second) {
      delivery.add_pool_ids(pool.id());
      fds.push_back(pool.fd());
    }
    delivery.set_delivery_id(daemon_.NewDeliveryId());
    response->set_delivery_id(delivery.delivery_id());
    daemon_.Deliver(session, delivery, fds);
    return grpc::Status::OK;
  }

  // Replaces pool_ by a new pool; the caller keeps the old one.
  std::unique_ptr<Pool> ReplacePool(uint64_t id) {
    return std::exchange(pool_, std::make_unique<Pool>(id, &memory_));
  }
  // Makes another process the owner of the memory, which has no owner yet.
  void StartOwner() {
    memory_.Add(Bytes(ipc_handle_), Memfd(kBytes));
    owner_ = std::make_unique<Owner>(daemon_.runtime_dir(), &memory_);
  }

  Memory memory_;
  std::unique_ptr<Pool> pool_ = std::make_unique<Pool>(1, &memory_);
  Pool* next_pool_ = nullptr;                           // instead of pool_
  std::set<std::pair<uint64_t, uint64_t>> sent_pools_;  // session and pool
  HostIpcHandle ipc_handle_{.secret = {1, 2, 3}};
  std::function<void(v1::Lease*)> spoil_;
  std::vector<v1::TicketScope> scopes_;
  FakeDaemon daemon_{
      {.acquire = [this](
                      uint64_t session, const v1::AcquireRequest& request,
                      v1::AcquireResponse* response) { return Grant(session, request, response); },
       .share =
           [this](const v1::ShareRequest& request) {
             scopes_.push_back(request.scope());
             return grpc::Status::OK;
           }}};
  std::unique_ptr<Owner> owner_;
  std::unique_ptr<Client> client_ = Connect();
};

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

TEST_F(KindsTest, ADescriptorIsFetchedOnceAndIsTheSameMemory) {
  for (const Kind kind : {Kind::kVmm, Kind::kPinned}) {
    Segment segment = client_->Acquire({.bytes = kBytes, .kind = kind}).value();
    const size_t before = OpenFds();
    scopes_.clear();
    absl::StatusOr<int> fd = segment.fd();
    ASSERT_TRUE(fd.ok()) << fd.status();
    EXPECT_EQ(segment.fd().value(), *fd);
    EXPECT_THAT(scopes_, ElementsAre(v1::TICKET_SCOPE_TENANT));
    EXPECT_EQ(daemon_.live_leases(), 1u);
    EXPECT_EQ(OpenFds(), before + 1);
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
  const auto is = [](const absl::Status& status, const char* alternative) {
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(alternative));
  };
  is(vmm.ipc_handle().status(), "fd()");
  is(vmm.export_data().status(), "fd()");
  is(vmm.pool_fd().status(), "fd()");
  is(ipc.fd().status(), "ipc_handle()");
  is(ipc.export_data().status(), "ipc_handle()");
  is(ipc.pool_fd().status(), "ipc_handle()");
  is(pool.fd().status(), "pool_fd()");
  is(pool.ipc_handle().status(), "export_data()");
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
    EXPECT_THAT(std::string(status.message()), HasSubstr("lost"));
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

TEST_F(KindsTest, APoolIsImportedOnceInASession) {
  StartOwner();
  absl::StatusOr<std::vector<Segment>> two =
      client_->AcquireMany({.bytes = kBytes, .kind = Kind::kMempool}, 2);
  ASSERT_TRUE(two.ok()) << two.status();
  const size_t before = PoolFds();
  Segment third = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_EQ(PoolFds(), before);
  EXPECT_EQ(third.pool_fd().value(), two->front().pool_fd().value());
  EXPECT_NE(third.export_data().value(), two->front().export_data().value());
  EXPECT_NE(third.data(), two->front().data());
  // Another session has the same memory by another descriptor of the pool.
  auto other = Connect();
  Segment theirs = other->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_NE(theirs.pool_fd().value(), third.pool_fd().value());
  strcpy(static_cast<char*>(third.data()), "pooled");
  auto imported = ImportHostPool(daemon_.runtime_dir(), theirs.pool_fd().value());
  ASSERT_TRUE(imported.ok()) << imported.status();
  const auto same = (*imported)->Open(third.export_data().value(), kBytes, {});
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_STREQ(static_cast<char*>((*same)->data()), "pooled");
}

// The daemon makes a second pool beside a living one when the tenant's limit has grown.
TEST_F(KindsTest, TwoPoolsOfADeviceLiveSideBySide) {
  StartOwner();
  Segment one = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const std::unique_ptr<Pool> first = ReplacePool(2);
  Segment two = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_NE(one.pool_fd().value(), two.pool_fd().value());
  const std::unique_ptr<Pool> second = std::exchange(pool_, nullptr);
  for (const std::unique_ptr<Pool>* from : {&first, &second, &first}) {
    next_pool_ = from->get();
    absl::StatusOr<Segment> more = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool});
    ASSERT_TRUE(more.ok()) << more.status();
    const Segment& sibling = from == &first ? one : two;
    EXPECT_EQ(more->pool_fd().value(), sibling.pool_fd().value());
    memset(more->data(), 1, kBytes);
  }
}

TEST_F(KindsTest, ADeadOwnersPoolIsLetGoWithItsLastSegment) {
  StartOwner();
  daemon_.SetContextPid(100);
  const size_t before = PoolFds();
  Segment old_one = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const size_t of_a_pool = PoolFds() - before;
  EXPECT_GT(of_a_pool, 0u);
  const std::unique_ptr<Pool> old_pool = ReplacePool(2);
  daemon_.SetContextPid(200);
  const size_t with_old = PoolFds();
  Segment new_one = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_EQ(PoolFds(), with_old + of_a_pool);
  memset(old_one.data(), 1, kBytes);
  EXPECT_TRUE(old_one.Release().ok());
  EXPECT_EQ(PoolFds(), with_old);
  // Unused, but alive: its descriptor does not come again.
  EXPECT_TRUE(new_one.Release().ok());
  EXPECT_EQ(PoolFds(), with_old);
  EXPECT_TRUE(client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).ok());
}

TEST_F(KindsTest, ADeadOwnersPoolThatNoSegmentUsesIsLetGoWhenThereIsAnother) {
  StartOwner();
  daemon_.SetContextPid(100);
  client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const size_t with_one = PoolFds();
  const std::unique_ptr<Pool> old_pool = ReplacePool(2);
  daemon_.SetContextPid(200);
  client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  EXPECT_EQ(PoolFds(), with_one + 1);  // the new pool of this test
}

TEST_F(KindsTest, APoolThatLivesBesideANewerOneIsKept) {
  StartOwner();
  daemon_.SetContextPid(100);
  client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const std::unique_ptr<Pool> first = ReplacePool(2);
  client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  next_pool_ = first.get();
  EXPECT_TRUE(client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).ok());
}

TEST_F(KindsTest, OfManyPoolsThatCameAndWentAFewAreKept) {
  StartOwner();
  const size_t before = PoolFds();
  for (uint64_t id = 2; id < 50; ++id) {
    client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
    pool_ = std::make_unique<Pool>(id, &memory_);
  }
  EXPECT_LT(PoolFds(), before + 2 * 10);
}

TEST_F(KindsTest, WhatComesOfAPoolThatIsThereIsClosed) {
  StartOwner();
  Segment one = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
  const size_t before = PoolFds();
  for (int i = 0; i < 3; ++i) {
    sent_pools_.clear();
    Segment more = client_->Acquire({.bytes = kBytes, .kind = Kind::kMempool}).value();
    EXPECT_EQ(more.pool_fd().value(), one.pool_fd().value());
    EXPECT_EQ(PoolFds(), before);
  }
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

}  // namespace
}  // namespace gpumem
