// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/host_context.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/mapping/host_ipc.h"
#include "common/unique_fd.h"
#include "daemon/device/context/host_copy.h"
#include "daemon/device/context/host_ipc_server.h"
#include "daemon/device/memfd.h"

namespace gpumemd {
namespace {

using gpumem::HostPoolData;
using gpumem::UniqueFd;

// Fills a key with random bytes.
absl::Status Draw(std::array<uint8_t, 32>& secret) {
  if (getrandom(secret.data(), secret.size(), 0) == static_cast<ssize_t>(secret.size())) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::ErrnoToStatus(errno, "getrandom").message());
}

// One pool: its allocations, which `server` gives out, and its numbers.
class HostPool {
 public:
  // `fd` stands for the pool (HostPoolData); `server` outlives this.
  HostPool(UniqueFd fd, HostPoolData identity, uint64_t max_bytes, HostIpcServer* server)
      : fd_(std::move(fd)), identity_(identity), max_bytes_(max_bytes), server_(server) {}

  absl::StatusOr<ExportData> Allocate(uint64_t memory, const std::string& name, uint64_t bytes) {
    if (bytes > max_bytes_ - numbers_.used_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the memory pool is full: ", gpumem::FormatBytes(bytes), " asked, ",
                       gpumem::FormatBytes(numbers_.used_bytes), " of ",
                       gpumem::FormatBytes(max_bytes_), " used"));
    }
    HostPoolData data = identity_;
    if (absl::Status drawn = Draw(data.secret); !drawn.ok()) return drawn;
    absl::StatusOr<UniqueFd> fd = MakeSealedMemfd(name, bytes);
    if (!fd.ok()) return fd.status();
    const Part part = {.data = gpumem::ToExportData(data), .bytes = bytes};
    server_->Add(part.data, *std::move(fd));
    parts_[memory] = part;
    numbers_.used_bytes += bytes;
    numbers_.used_peak_bytes = std::max(numbers_.used_peak_bytes, numbers_.used_bytes);
    numbers_.reserved_bytes = std::max(numbers_.reserved_bytes, numbers_.used_bytes);
    numbers_.reserved_peak_bytes = std::max(numbers_.reserved_peak_bytes, numbers_.reserved_bytes);
    return part.data;
  }

  absl::Status Free(uint64_t memory) {
    const auto part = parts_.find(memory);
    if (part == parts_.end()) return absl::NotFoundError("no such memory in the pool");
    server_->Remove(part->second.data);
    numbers_.used_bytes -= part->second.bytes;
    parts_.erase(part);
    Trim(numbers_.release_threshold_bytes);
    return absl::OkStatus();
  }

  void Trim(uint64_t keep_bytes) {
    numbers_.reserved_bytes =
        std::min(numbers_.reserved_bytes, std::max(keep_bytes, numbers_.used_bytes));
  }

  void Set(const PoolChange& change) {
    PoolNumbers& n = numbers_;
    n.release_threshold_bytes = change.release_threshold_bytes.value_or(n.release_threshold_bytes);
    n.reuse_follow_event_dependencies =
        change.reuse_follow_event_dependencies.value_or(n.reuse_follow_event_dependencies);
    n.reuse_allow_opportunistic =
        change.reuse_allow_opportunistic.value_or(n.reuse_allow_opportunistic);
    n.reuse_allow_internal_dependencies =
        change.reuse_allow_internal_dependencies.value_or(n.reuse_allow_internal_dependencies);
    if (change.reset_peaks) {
      n.reserved_peak_bytes = n.reserved_bytes;
      n.used_peak_bytes = n.used_bytes;
    }
  }

  const PoolNumbers& numbers() const { return numbers_; }

 private:
  struct Part {
    ExportData data = {};
    uint64_t bytes = 0;
  };

  const UniqueFd fd_;  // keeps its inode from being another's
  const HostPoolData identity_;
  const uint64_t max_bytes_;
  HostIpcServer* const server_;
  PoolNumbers numbers_ = {.reuse_follow_event_dependencies = true,
                          .reuse_allow_opportunistic = true,
                          .reuse_allow_internal_dependencies = true};
  std::map<uint64_t, Part> parts_;  // by the number of the memory
};

class HostContext : public Context {
 public:
  HostContext(std::string device_uuid, uint32_t index, std::unique_ptr<HostIpcServer> server)
      : device_uuid_(std::move(device_uuid)), index_(index), server_(std::move(server)) {}

  absl::StatusOr<ExportData> CreateIpc(uint64_t memory, uint64_t bytes) override {
    if (server_ == nullptr) return NoSocket();
    gpumem::HostIpcHandle handle{.device_index = index_};
    if (absl::Status drawn = Draw(handle.secret); !drawn.ok()) return drawn;
    absl::StatusOr<UniqueFd> fd = MakeSealedMemfd(absl::StrCat("gpumem-ipc:", device_uuid_), bytes);
    if (!fd.ok()) return fd.status();
    const ExportData data = gpumem::ToExportData(handle);
    server_->Add(data, *std::move(fd));
    ipc_[memory] = data;
    return data;
  }

  absl::StatusOr<ExportData> Allocate(uint64_t memory, uint64_t pool, uint64_t bytes) override {
    HostPool* const found = Find(pool);
    if (found == nullptr) return NoPool();
    absl::StatusOr<ExportData> data =
        found->Allocate(memory, absl::StrCat("gpumem-mempool:", device_uuid_), bytes);
    if (data.ok()) pool_of_[memory] = pool;
    return data;
  }

  absl::Status Free(uint64_t memory) override {
    if (const auto ipc = ipc_.find(memory); ipc != ipc_.end()) {
      server_->Remove(ipc->second);
      ipc_.erase(ipc);
      return absl::OkStatus();
    }
    const auto pooled = pool_of_.find(memory);
    if (pooled == pool_of_.end()) return absl::NotFoundError("no such memory");
    HostPool* const pool = Find(pooled->second);
    pool_of_.erase(pooled);
    return pool == nullptr ? NoPool() : pool->Free(memory);
  }

  absl::StatusOr<MadePool> CreatePool(uint64_t pool, uint64_t max_bytes) override {
    if (server_ == nullptr) return NoSocket();
    absl::StatusOr<UniqueFd> fd = MakeSealedMemfd(absl::StrCat("gpumem-pool:", device_uuid_), 0);
    if (!fd.ok()) return fd.status();
    UniqueFd exported(fcntl(fd->get(), F_DUPFD_CLOEXEC, 0));
    struct stat file = {};
    if (!exported.valid() || fstat(fd->get(), &file) != 0) {
      return MemfdError(errno, "exporting a pool", max_bytes);
    }
    pools_.try_emplace(
        pool, *std::move(fd), HostPoolData{.inode = file.st_ino, .device_index = index_},
        max_bytes == 0 ? std::numeric_limits<uint64_t>::max() : max_bytes, server_.get());
    return MadePool{.fd = std::move(exported), .max_bytes = max_bytes};
  }

  absl::Status DestroyPool(uint64_t pool) override {
    return pools_.erase(pool) > 0 ? absl::OkStatus() : NoPool();
  }

  absl::StatusOr<PoolNumbers> ReadPool(uint64_t pool) override {
    const HostPool* const found = Find(pool);
    if (found == nullptr) return NoPool();
    return found->numbers();
  }

  absl::Status SetPool(uint64_t pool, const PoolChange& change) override {
    HostPool* const found = Find(pool);
    if (found == nullptr) return NoPool();
    found->Set(change);
    return absl::OkStatus();
  }

  absl::Status TrimPool(uint64_t pool, uint64_t keep_bytes) override {
    HostPool* const found = Find(pool);
    if (found == nullptr) return NoPool();
    found->Trim(keep_bytes);
    return absl::OkStatus();
  }

  absl::Status StartCopy(const CopyBatch& batch) override { return copy_.Run(batch); }

 private:
  absl::Status NoSocket() const {
    return absl::UnimplementedError(
        absl::StrCat(device_uuid_, " has no socket to answer on; use kind vmm"));
  }
  static absl::Status NoPool() { return absl::NotFoundError("no such memory pool"); }

  HostPool* Find(uint64_t pool) {
    const auto found = pools_.find(pool);
    return found == pools_.end() ? nullptr : &found->second;
  }

  const std::string device_uuid_;
  const uint32_t index_;
  const std::unique_ptr<HostIpcServer> server_;  // null: it makes no memory
  std::map<uint64_t, ExportData> ipc_;           // by the number of the memory
  std::map<uint64_t, uint64_t> pool_of_;         // likewise
  std::map<uint64_t, HostPool> pools_;
  HostCopy copy_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> MakeHostContext(const ContextSpec& spec) {
  // "HOST-xxxxxxxx-…"
  uint32_t index = 0;
  if (spec.device_uuid.size() < 13 || !absl::SimpleHexAtoi(spec.device_uuid.substr(5, 8), &index)) {
    return absl::InternalError(absl::StrCat(spec.device_uuid, " is no host device"));
  }
  std::unique_ptr<HostIpcServer> server;
  if (!spec.socket_path.empty()) {
    absl::StatusOr<std::unique_ptr<HostIpcServer>> started = HostIpcServer::Start(spec.socket_path);
    if (!started.ok()) return started.status();
    server = *std::move(started);
  }
  return std::make_unique<HostContext>(spec.device_uuid, index, std::move(server));
}

}  // namespace gpumemd
