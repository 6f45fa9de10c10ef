#include "daemon/device/host_context.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/host_ipc.h"
#include "common/unique_fd.h"
#include "daemon/device/host_ipc_server.h"
#include "daemon/device/memfd.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// One pool: a memfd, and who has which part of it.
class HostPool {
 public:
  HostPool(UniqueFd fd, uint64_t inode, uint64_t max_bytes)
      : fd_(std::move(fd)), inode_(inode), max_bytes_(max_bytes) {}

  int fd() const { return fd_.get(); }

  absl::StatusOr<ExportData> Allocate(uint64_t memory, uint64_t bytes) {
    if (bytes > max_bytes_ - numbers_.used_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the memory pool is full: ", gpumem::FormatBytes(bytes), " asked, ",
                       gpumem::FormatBytes(numbers_.used_bytes), " of ",
                       gpumem::FormatBytes(max_bytes_), " used"));
    }
    // The first gap that is large enough: what was freed is used again.
    uint64_t offset = 0;
    for (const auto& [begin, part] : parts_) {
      if (begin - offset >= bytes) break;
      offset = begin + part.bytes;
    }
    if (offset > gpumem::kHostPoolBytes - bytes) {
      return absl::ResourceExhaustedError("the memory pool is out of addresses");
    }
    if (absl::Status status = Zero(offset, bytes); !status.ok()) return status;
    if (absl::Status status = Enter(offset, memory); !status.ok()) return status;
    parts_[offset] = {.memory = memory, .bytes = bytes};
    numbers_.used_bytes += bytes;
    numbers_.used_peak_bytes = std::max(numbers_.used_peak_bytes, numbers_.used_bytes);
    numbers_.reserved_bytes = std::max(numbers_.reserved_bytes, numbers_.used_bytes);
    numbers_.reserved_peak_bytes = std::max(numbers_.reserved_peak_bytes, numbers_.reserved_bytes);
    return gpumem::ToExportData(gpumem::HostPoolData{
        .inode = inode_, .offset = offset, .bytes = bytes, .allocation = memory});
  }

  absl::Status Free(uint64_t memory) {
    const auto part = std::find_if(parts_.begin(), parts_.end(), [memory](const auto& entry) {
      return entry.second.memory == memory;
    });
    if (part == parts_.end()) return absl::NotFoundError("no such memory in the pool");
    if (absl::Status status = Enter(part->first, 0); !status.ok()) return status;
    numbers_.used_bytes -= part->second.bytes;
    parts_.erase(part);
    return Trim(numbers_.release_threshold_bytes);
  }

  // All of the spare memory goes or none: a pool that keeps some of it keeps what lies lowest
  // by being asked for it next, not by our choice.
  absl::Status Trim(uint64_t keep_bytes) {
    const uint64_t kept = std::max(keep_bytes, numbers_.used_bytes);
    if (numbers_.reserved_bytes <= kept) return absl::OkStatus();
    numbers_.reserved_bytes = kept;
    if (kept > numbers_.used_bytes) return absl::OkStatus();
    uint64_t offset = 0;
    for (const auto& [begin, part] : parts_) {
      if (absl::Status status = Zero(offset, begin - offset); !status.ok()) return status;
      offset = begin + part.bytes;
    }
    return Zero(offset, gpumem::kHostPoolBytes - offset);
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
    uint64_t memory = 0;
    uint64_t bytes = 0;
  };

  absl::Status Zero(uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    const auto at = static_cast<off_t>(gpumem::kHostPoolHeaderBytes + offset);
    if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at,
                  static_cast<off_t>(bytes)) != 0) {
      return MemfdError(errno, "fallocate", bytes);
    }
    return absl::OkStatus();
  }

  absl::Status Enter(uint64_t offset, uint64_t memory) {
    if (pwrite(fd_.get(), &memory, sizeof(memory),
               static_cast<off_t>(gpumem::HostPoolEntry(offset))) != sizeof(memory)) {
      return MemfdError(errno, "pwrite", sizeof(memory));
    }
    return absl::OkStatus();
  }

  const UniqueFd fd_;
  const uint64_t inode_;
  const uint64_t max_bytes_;
  PoolNumbers numbers_ = {.reuse_follow_event_dependencies = true,
                          .reuse_allow_opportunistic = true,
                          .reuse_allow_internal_dependencies = true};
  std::map<uint64_t, Part> parts_;  // by offset
};

class HostContext : public Context {
 public:
  HostContext(std::string device_uuid, uint32_t index, std::unique_ptr<HostIpcServer> server)
      : device_uuid_(std::move(device_uuid)), index_(index), server_(std::move(server)) {}

  absl::StatusOr<ExportData> CreateIpc(uint64_t memory, uint64_t bytes) override {
    if (server_ == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(device_uuid_, " has no socket to answer on; use kind vmm"));
    }
    gpumem::HostIpcHandle handle{.device_index = index_};
    if (getrandom(handle.secret.data(), handle.secret.size(), 0) !=
        static_cast<ssize_t>(handle.secret.size())) {
      return absl::InternalError(absl::ErrnoToStatus(errno, "getrandom").message());
    }
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
    absl::StatusOr<ExportData> data = found->Allocate(memory, bytes);
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
    absl::StatusOr<UniqueFd> fd =
        MakeSealedMemfd(absl::StrCat("gpumem-pool:", device_uuid_),
                        gpumem::kHostPoolHeaderBytes + gpumem::kHostPoolBytes);
    if (!fd.ok()) return fd.status();
    UniqueFd exported(fcntl(fd->get(), F_DUPFD_CLOEXEC, 0));
    struct stat file = {};
    if (!exported.valid() || fstat(fd->get(), &file) != 0) {
      return MemfdError(errno, "exporting a pool", max_bytes);
    }
    pools_.try_emplace(pool, *std::move(fd), file.st_ino,
                       max_bytes == 0 ? std::numeric_limits<uint64_t>::max() : max_bytes);
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
    return found == nullptr ? NoPool() : found->Trim(keep_bytes);
  }

 private:
  static absl::Status NoPool() { return absl::NotFoundError("no such memory pool"); }

  HostPool* Find(uint64_t pool) {
    const auto found = pools_.find(pool);
    return found == pools_.end() ? nullptr : &found->second;
  }

  const std::string device_uuid_;
  const uint32_t index_;
  const std::unique_ptr<HostIpcServer> server_;  // null: no memory of kind ipc
  std::map<uint64_t, ExportData> ipc_;           // by the number of the memory
  std::map<uint64_t, uint64_t> pool_of_;         // likewise
  std::map<uint64_t, HostPool> pools_;
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
