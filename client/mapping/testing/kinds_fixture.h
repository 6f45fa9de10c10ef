// SPDX-License-Identifier: Apache-2.0
// A client and a fake daemon that grants segments of every kind on the host backend: memory, pools,
// and the process that owns them.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <functional>
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
#include "absl/time/time.h"
#include "client/testing/fake_daemon.h"
#include "common/mapping/host_ipc.h"
#include "common/mapping/mapping.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem::kinds_testing {

using internal::FakeDaemon;

inline constexpr uint64_t kBytes = 64 * 1024;

inline UniqueFd Memfd(uint64_t bytes, const char* name = "kinds-test") {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

inline constexpr char kPoolName[] = "kinds-test-pool";
// Returns the number of this process's descriptors of pools, including the test's.
inline size_t PoolFds() {
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

inline Handle ToHandle(const std::string& bytes) {
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

}  // namespace gpumem::kinds_testing
