// SPDX-License-Identifier: Apache-2.0
// The broker's interface to a device: make a segment, and release it again.
//
// A Device is one GPU, a share of host memory that stands in for one, or the host memory that
// processes pin. It keeps no accounts: quotas and charges are the ledger's (daemon/core). It
// refuses only what the driver refuses.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/export_data.h"
#include "common/kind.h"
#include "common/unique_fd.h"

namespace gpumemd {

using Kind = gpumem::SegmentKind;

inline absl::string_view KindName(Kind kind) { return gpumem::TraitsOf(kind).name; }

// True if segments of this kind live in a CUDA context of the daemon, and so can be lost with it.
constexpr bool IsContextBound(Kind kind) { return gpumem::TraitsOf(kind).context_bound; }

enum class Backend { kCuda, kHost };

// Access of one GPU to another's memory.
struct PeerAccess {
  std::string uuid;  // the other's
  bool access = false;
  bool native_atomics = false;
  int performance_rank = 0;  // 0 is the fastest link of the node
};

struct DeviceInfo {
  std::string uuid;  // identifies the device everywhere: "GPU-…", "HOST-…", "PINNED-…" or "TIER-…"
  std::string name;
  Backend backend = Backend::kHost;
  std::string pci_bus_id;               // empty but for GPUs
  uint64_t capacity_bytes = 0;          // what may be handed out in all
  uint64_t granularity_bytes = 1;       // sizes given to Create are multiples of it
  uint64_t pool_granularity_bytes = 0;  // for kind mempool, if it differs; 0: granularity_bytes
  std::vector<Kind> kinds;              // what Create accepts; the first is the default
  std::vector<PeerAccess> peers;        // the other GPUs
};

// True for host memory: page-locked memory and the host tier. Limits for devices do not count it.
inline bool IsHostMemory(const DeviceInfo& info) {
  return !info.kinds.empty() && TraitsOf(info.kinds.front()).host_memory;
}
// True for the host tier, which holds the contents of suspended segments.
inline bool IsHostTier(const DeviceInfo& info) {
  return info.kinds.size() == 1 && info.kinds.front() == Kind::kTier;
}

// Returns the granularity for sizes of a kind.
inline uint64_t GranularityOf(const DeviceInfo& info, Kind kind) {
  return TraitsOf(kind).pooled && info.pool_granularity_bytes != 0 ? info.pool_granularity_bytes
                                                                   : info.granularity_bytes;
}

// The bytes that open a segment of kind ipc (cudaIpcMemHandle_t) or mempool
// (cudaMemPoolPtrExportData).
using gpumem::ExportData;

// A memory pool as its segments' importers need it.
struct ExportedPool {
  uint64_t id = 0;                               // never used twice in one process
  int fd = -1;                                   // close-on-exec; the pool's
  std::shared_ptr<const gpumem::UniqueFd> open;  // keeps `fd` open
};

// A part of the host tier's file. Both are multiples of the tier's granularity.
struct TierExtent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const TierExtent&) const = default;
};

// The bytes of one segment of kind tier: these extents, one after another.
struct TierPlace {
  // The tier's file; open as long as the tier's device or any of its segments. Its size is fixed,
  // and its pages stay where they are: no hole is punched. Processes that copy keep them registered
  // with the driver, which would write to the old pages.
  int fd = -1;
  std::vector<TierExtent> extents;
};

// The memory of one segment. The destructor returns the memory to the driver once no importer holds
// it. That can take milliseconds and stall other processes' driver calls, so it runs on the
// broker's disposal thread. Importers of kinds mempool and ipc must have closed it before
// (otherwise CUDA's behaviour is undefined).
class Allocation {
 public:
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  virtual ~Allocation() = default;

  // vmm, pinned, host: returns the descriptor that shares this memory: exported once, at creation,
  // and open while this object lives. Close-on-exec. Owned by this object. -1 for the other kinds.
  virtual int fd() const { return -1; }
  // mempool, ipc: returns the bytes that share it; absent for the other kinds.
  virtual std::optional<ExportData> export_data() const { return std::nullopt; }
  // mempool: returns its pool. Absent once it is lost(), so that no descriptor of the daemon keeps
  // the pool's memory.
  virtual std::optional<ExportedPool> pool() const { return std::nullopt; }
  // tier: returns the place of its bytes; null for the other kinds. Valid while this object lives.
  virtual const TierPlace* tier_place() const { return nullptr; }
  // True once its context is gone: no process can open it any more. Thread-safe.
  virtual bool lost() const { return false; }

 protected:
  Allocation() = default;
};

struct CreateSpec {
  Kind kind = Kind::kVmm;
  uint64_t bytes = 0;
  // For kind mempool: the pool's tenant and maximum size.
  std::string tenant;
  uint64_t limit_bytes = 0;
  std::vector<TierExtent> extents;  // for Adopt of kind tier: where its bytes lie
};

// One segment's contents to be copied. One of the two is a segment of kind tier, the other one is a
// segment of the device that copies.
struct CopyItem {
  const Allocation* from = nullptr;
  const Allocation* to = nullptr;
  uint64_t bytes = 0;
};

// A tenant's memory pool on one device, by CUDA's names for its attributes.
struct PoolStatus {
  std::string tenant;
  uint32_t segments = 0;
  uint64_t max_bytes = 0;  // the most that the driver lets it reserve; 0: no such cap
  uint64_t reserved_bytes = 0, reserved_peak_bytes = 0;
  uint64_t used_bytes = 0, used_peak_bytes = 0;
  uint64_t release_threshold_bytes = 0;
  bool reuse_follow_event_dependencies = true;
  bool reuse_allow_opportunistic = true;
  bool reuse_allow_internal_dependencies = true;
};

// Absent fields stay unchanged.
struct PoolChange {
  std::optional<uint64_t> release_threshold_bytes;
  std::optional<bool> reuse_follow_event_dependencies;
  std::optional<bool> reuse_allow_opportunistic;
  std::optional<bool> reuse_allow_internal_dependencies;
  bool reset_peaks = false;

  bool operator==(const PoolChange&) const = default;
};

// Thread-safe. Calls may take tens of milliseconds; those of kinds mempool and ipc half a second if
// there is no context yet. Never call under a lock.
class Device {
 public:
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  // Does not change after construction.
  virtual const DeviceInfo& info() const = 0;

  // Makes `bytes` of zeroed memory and exports it.
  //   INVALID_ARGUMENT    bytes is zero or no multiple of the granularity
  //   UNIMPLEMENTED       the device does not make this kind
  //   RESOURCE_EXHAUSTED  the driver has no memory (or descriptors) left
  //   UNAVAILABLE         the context was lost meanwhile; the next call makes another
  //   INTERNAL            any other driver error, by its name
  virtual absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) = 0;

  // Adopts a segment's memory that an earlier process made, by its descriptor (kinds vmm,
  // pinned and host) or by spec.extents (kind tier, without `fd`). `fd` is untrusted; a wrong one
  // can only harm the tenant charged for it.
  //   INVALID_ARGUMENT    it is visibly not of that size
  //   UNIMPLEMENTED       the device does not make this kind, or it is not shared by a descriptor
  //   RESOURCE_EXHAUSTED  the device is smaller than it was
  virtual absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec,
                                                            gpumem::UniqueFd fd);

  // Begins to make ready for a Copy() that is likely to come: what its first call would start,
  // starts in the background. Does not block. Errors are those of the Copy().
  virtual void PrepareCopies() {}
  // Copies the contents of suspended segments out to the host tier, or back. Returns when all bytes
  // have arrived. On an error the contents of the targets are undefined. Requires that the
  // Allocations live until it returns and that no process writes to the sources.
  //   UNIMPLEMENTED       the device has no kind that can be suspended
  //   RESOURCE_EXHAUSTED  no memory, addresses or descriptors left
  //   UNAVAILABLE         the process that copies has ended; the next call starts another
  //   INTERNAL            any other error, by its name
  virtual absl::Status Copy(absl::Span<const CopyItem> items);

  // Returns the bytes free by the driver's count, which includes users without the broker.
  //   UNAVAILABLE  the driver does not report it (no NVML)
  virtual absl::StatusOr<uint64_t> DriverFreeBytes() const = 0;

  // Returns the present pools.
  //   UNAVAILABLE  the context was lost meanwhile
  //   INTERNAL     any other driver error, by its name
  virtual absl::StatusOr<std::vector<PoolStatus>> Pools() { return std::vector<PoolStatus>(); }
  // Statuses of the next two:
  //   NOT_FOUND    the tenant has no pool here
  //   UNAVAILABLE  the context was lost meanwhile
  //   INTERNAL     any other driver error, by its name
  virtual absl::StatusOr<PoolStatus> SetPool(absl::string_view tenant, const PoolChange& change);
  virtual absl::StatusOr<PoolStatus> TrimPool(absl::string_view tenant, uint64_t keep_bytes);

  // Returns the process with a context on the device for kinds mempool and ipc; 0: none now.
  virtual pid_t context_pid() const { return 0; }
  // Returns the process that copies to and from the host tier; 0: none now. Its end loses nothing.
  virtual pid_t copier_pid() const { return 0; }
  // Sets a callback for the loss of a context with Allocations in it. It is called in some thread
  // and without any lock; their lost() is true by then. Must be set before the first Create().
  virtual void OnContextLost(std::function<void()> /*on_lost*/) {}
  // Ends the context at once, without freeing: importers keep what they have open. Allocations in
  // it become lost, without the callback of OnContextLost(). Also ends the process that copies. For
  // the end of the daemon.
  virtual void EndContext() {}

 protected:
  Device() = default;
};

}  // namespace gpumemd
