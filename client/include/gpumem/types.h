// SPDX-License-Identifier: Apache-2.0
// The values that calls of gpumem/client.h take and return: kinds, devices, usage, quotas, denials,
// tickets, and the options of the calls. Sizes are bytes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gpumem {

namespace internal {
class Interrupt;
}  // namespace internal

// How a segment is allocated and shared.
//
// Kind vmm needs no CUDA context in this process. Kinds mempool and ipc need the primary context
// (the CUDA runtime's) of the segment's device and of each device in map_devices. Mapping creates a
// missing context. That takes some 0.2 s, and 0.5 GB of the device that no quota counts. CUDA opens
// memory of kind ipc for one device only: map_devices names at most one. A process that needs it on
// several devices opens it once for each.
enum class Kind {
  kDefault,   // the device's default
  kVmm,       // one driver allocation behind one file descriptor (cuMemCreate)
  kMempool,   // from the tenant's memory pool on the device (cudaMemPoolExportPointer). Stays
              // charged until all processes that opened part of it have ended; the tenant reuses it
              // till then
  kIpc,       // cudaMalloc in the daemon, opened by its cudaIpcMemHandle_t
  kPinned,    // host memory, registered with CUDA in every process that maps it
  kHost = 6,  // host memory that GPUs map by address (cuMemCreate on a NUMA node). The address is
              // the GPUs' alone: the CPU must not use it, but for the host backend

  // A charge for memory that this process allocates from its CUDA driver itself (cudaMalloc).
  // Acquire it before that. Release it after the memory is freed. The segment has no address, and
  // cannot be shared, published, suspended or used by a Pool.
  kDriver = 7,
};

// How a tenant's programs that know nothing of gpumem get memory (gpumemctl run).
enum class PreloadMode {
  kAccount,  // the CUDA driver allocates, and the tenant is charged first
  kBroker,   // memory of gpumem, through a pool of the process
};

enum class Backend { kCuda, kHost };

// Returns "vmm", "mempool", "ipc", "pinned", "host", "driver" or "default".
absl::string_view KindName(Kind kind);

// The 64 bytes of a cudaIpcMemHandle_t, a cudaMemPoolPtrExportData or a
// cudaIpcEventHandle_t.
using Handle = std::array<uint8_t, 64>;

// A device: its UUID ("GPU-…"; a unique prefix is enough), its PCI bus id ("0000:1b:00.0"), or its
// ordinal in this process ("0", "cuda:1"). Ordinals count what CUDA_VISIBLE_DEVICES leaves, in that
// order; on the host backend they follow the daemon's order.
using DeviceName = std::string;

// What a GPU can do with the memory of a peer GPU.
struct PeerAccess {
  std::string uuid;  // of the peer
  bool access = false;
  bool native_atomics = false;
  int performance_rank = 0;  // of the link; 0: the fastest of the node
};

struct DeviceInfo {
  std::string uuid;  // names the device in every process
  std::string name;
  Backend backend = Backend::kHost;
  std::string pci_bus_id;
  uint64_t capacity_bytes = 0;     // that the daemon may allocate
  uint64_t charged_bytes = 0;      // of all tenants together
  uint64_t granularity_bytes = 0;  // sizes are rounded up to a multiple of it
  // Granularity of kind mempool if it differs; else 0.
  uint64_t pool_granularity_bytes = 0;
  uint64_t driver_free_bytes = 0;  // as the driver reports it; 0: unknown
  std::vector<Kind> kinds;         // supported kinds; the first is the device's default
  std::vector<PeerAccess> peers;   // the other GPUs
};

// Why a request was refused, as data. `asked`, `used` and `limit` are bytes for memory, else
// counts.
struct Denial {
  enum class Cause {
    kUnknown,
    kDeviceLimit,
    kTotalLimit,
    kCapacity,
    kDriver,
    kMaxSegments,
    kMaxSessions,
    kMaxInFlight,
    kDaemonLimit,
    kMaxWaiting,  // too many requests wait
    kGuarantees,  // the free memory is guaranteed to others
    kQueue,       // the free memory is reserved for requests ahead in the queue
    kUnbrokered,  // the tenant uses memory that it took past the broker
    kMaxPublications,
  };
  struct Holder {
    std::string tenant;
    uint64_t used = 0;
  };
  Cause cause = Cause::kUnknown;
  std::string tenant;
  std::string device_uuid;
  uint64_t asked = 0;
  uint64_t used = 0;
  uint64_t limit = 0;
  std::string help;
  // The tenant above `tenant` whose limit it is; empty: the limit is `tenant`'s.
  std::string limited_tenant;
  // The largest holders of `used`, in descending order; a few.
  std::vector<Holder> holders;
};

// Returns the Denial that a status carries, or nullopt.
std::optional<Denial> GetDenial(const absl::Status& status);

struct DeviceUsage {
  std::string device_uuid;
  uint64_t leased_bytes = 0;
  uint64_t retained_bytes = 0;   // kept for reuse
  uint64_t lingering_bytes = 0;  // of ended leases whose process may still map them or, of kind
                                 // mempool, has the pool open; the tenant reuses them then
  uint64_t charged_bytes = 0;    // the sum of these three
  uint64_t limit_bytes = 0;      // in force
  uint64_t peak_bytes = 0;
  uint64_t guarantee_bytes = 0;  // in force: the tenant can always get that much
  uint64_t borrowed_bytes = 0;   // held above the guarantee
  uint64_t waiting_bytes = 0;    // for which requests wait
  uint32_t waiting = 0;          // requests that wait
  uint64_t revocable_bytes = 0;  // held and revocable
  // That the tenant can get at most, within all limits and the guarantees of others. Unset: the
  // daemon is too old to report it.
  std::optional<uint64_t> obtainable_bytes = std::nullopt;
  // charged_bytes summed over time, in bytes times seconds: since the tenant was first seen, or,
  // unless it was made at run time, since the daemon started. 0: the daemon is too old to count.
  uint64_t byte_seconds = 0;
};

// What this client's tenant may have on a device (Client::GetMemory).
struct DeviceMemory {
  uint64_t limit_bytes = 0;  // in force
  uint64_t free_bytes = 0;   // that the tenant can get at most (DeviceUsage::obtainable_bytes)
  bool from_page = false;    // no call was made
};

// What this client's tenant holds.
struct Usage {
  std::string tenant;
  std::vector<DeviceUsage> devices;
  uint64_t charged_bytes = 0;
  uint32_t segments = 0;
  uint32_t sessions = 0;
  uint32_t waiting = 0;  // requests that wait for memory
  uint32_t publications = 0;
  PreloadMode preload = PreloadMode::kAccount;  // in force for processes that start now
};

// What this client's tenant may hold. An unset field means no limit for the tenant: the device
// bounds bytes, and the daemon bounds counts.
struct Quota {
  struct Device {
    std::string device_uuid;
    std::optional<uint64_t> limit_bytes;
    std::optional<uint64_t> guarantee_bytes;
  };
  std::optional<uint64_t> limit_bytes;         // on any one GPU, unless `devices` names it
  std::optional<uint64_t> total_limit_bytes;   // over all GPUs
  std::optional<uint64_t> pinned_limit_bytes;  // of kind pinned, which the other limits exclude
  std::optional<uint64_t> guarantee_bytes;     // on any one GPU, unless `devices` names it
  std::optional<uint64_t> max_retained_bytes;  // kept for reuse, on any one device
  std::optional<uint32_t> max_segments;
  std::optional<uint32_t> max_sessions;
  std::optional<uint32_t> max_in_flight;  // calls in flight
  std::optional<uint32_t> max_waiting;    // requests that wait for memory
  std::optional<uint32_t> max_publications;
  int32_t priority = 0;    // among tenants that wait or borrow: the higher first
  bool revocable = false;  // true: all leases of the tenant are revocable
  std::string parent;      // the tenant whose quota also applies; empty: none
  std::vector<Device> devices;
};

// An unguessable capability to open one segment, valid as long as the lease that minted it. Plain
// text, safe in files, environment variables and URLs. Keep it secret.
struct Ticket {
  std::string value;
};

enum class TicketScope {
  kTenant,  // only sessions of the segment's own tenant can open it
  kAny,     // any session with the ticket can open it
};

struct ConnectOptions {
  // The folder with the daemon's sockets. Empty: $GPUMEM_RUNTIME_DIR if set; else
  // $XDG_RUNTIME_DIR/gpumem if a daemon is there; else /run/gpumem.
  std::string runtime_dir;
  // The tenant to charge. Empty: $GPUMEM_TENANT if set; else the first that the daemon's rules
  // allow this process.
  std::string tenant;
  // The name that operators see. Empty: the program's name.
  std::string name;
  // Deadline of Connect, and of each call whose options set no timeout.
  absl::Duration timeout = absl::Seconds(30);
  // True if the session resumes with the next daemon; false: it ends with its daemon.
  bool reconnect = true;
  // True if Connect waits within `timeout` for a daemon that is starting or restarting. It waits
  // only if the folder of the sockets exists. If a service manager holds the socket (systemd's
  // socket units, gpumem-keeper), the socket listens without a daemon: Connect then always waits up
  // to `timeout`.
  bool wait = true;
};

// Cancels waiting calls from another thread. Copies share one state, for any number of calls.
class CancelToken {
 public:
  CancelToken();
  // Cancels the token's calls, present and future: those not done yet return CANCELLED.
  void Cancel() const;
  bool cancelled() const;

 private:
  friend class Client;
  std::shared_ptr<internal::Interrupt> interrupt_;
};

struct AcquireOptions {
  uint64_t bytes = 0;  // of each segment; rounded up to the device's granularity
  // Empty: the first GPU that this process sees and that supports the kind. With map_devices, or if
  // the daemon has no GPUs, empty means the daemon's first device that supports the kind.
  // "most-free": the eligible device on which this tenant can get most.
  DeviceName device;
  Kind kind = Kind::kDefault;
  // The GPUs that will use the memory; empty: the segment's device. Not for the host backend.
  std::vector<DeviceName> map_devices;
  // The address to map it at (the first of several segments), a multiple of 2 MiB; null: any. Kinds
  // vmm and pinned only.
  void* address = nullptr;
  // True if a denial asks other sessions to give back free memory (Pressure). Set to false for
  // memory that the program can do without.
  bool presses_others = true;
  // How long to wait for memory that others hold. InfiniteDuration: as long as the session lives.
  // Zero: the request is denied at once. The queue is ordered by guarantee (the tenant furthest
  // below its guarantee first), then priority, then arrival. Later requests never get memory that a
  // request ahead waits for. A wait that expires returns RESOURCE_EXHAUSTED with the Denial that
  // blocked it, never DEADLINE_EXCEEDED. So does one that could not help, and one above the limit
  // of waiting requests. The Client's other calls proceed meanwhile.
  absl::Duration wait = absl::ZeroDuration();
  // Cancels the wait (CANCELLED). No memory is held afterwards.
  std::optional<CancelToken> cancel;
  // The memory may be revoked (Revocation). In return it may come from idle memory that is
  // guaranteed to others. Not for kind mempool. A process holds either revocable or non-revocable
  // memory, never both (FAILED_PRECONDITION), since the daemon ends the process that does not give
  // revoked memory back.
  bool revocable = false;
  // For the daemon's answer, counted from the end of the wait.
  std::optional<absl::Duration> timeout;
  // A name to select the segments by (Segment::tag(), gpumemctl suspend --tag). At most 32 letters,
  // digits, '_', '.' and '-'. Several segments may have the same one. Empty: none.
  std::string tag;
  // The bytes need not be kept while the segment is suspended (gpumem/suspend.h). Kind vmm only.
  // It cannot be published.
  bool scratch = false;
};

struct OpenOptions {
  // Maps the memory read-only. A guard against mistakes, not a security boundary: the importer
  // chooses (cuMemSetAccess). Kinds vmm and pinned only.
  bool read_only = false;
  std::vector<DeviceName> map_devices;  // as in AcquireOptions
  void* address = nullptr;              // as in AcquireOptions
  // As in AcquireOptions. Required to open revocable memory, and if the process holds revocable
  // memory.
  bool revocable = false;
  std::optional<absl::Duration> timeout;
};

}  // namespace gpumem
