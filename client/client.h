// gpumem's client: GPU memory that a node's daemon owns and several processes share.
//
//   auto client = gpumem::Client::Connect();
//   auto segment = (*client)->Acquire({.bytes = 64 << 20});
//   use(segment->data(), segment->size());          // a device pointer, mapped
//   auto ticket = segment->Share();                 // hand it to another process
//   auto same = (*client)->Open(ticket->value);     // there: the same memory, no copy
//
// Threads: every function here may be called from any thread. One Segment is used by
// one thread at a time, like any value.
// Sizes are bytes. Errors say in one sentence what was wrong and what would help; a
// refusal for want of memory also carries the machine-readable Denial (denial()).
// Statuses that every call may return beside those named with it:
//   UNAVAILABLE         the daemon is draining or gone; memory that is mapped stays mapped
//   DEADLINE_EXCEEDED   the daemon did not answer in time
//   RESOURCE_EXHAUSTED  the tenant has too many calls in flight
//   FAILED_PRECONDITION in a child after fork(), Connect included: fork before the first
//                       connection, or start the child with exec
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace gpumem {

// How a segment is made and shared.
enum class Kind {
  kDefault,  // the device's default
  kVmm,      // one driver allocation behind one file descriptor
};

enum class Backend { kCuda, kHost };

// "vmm", "default".
absl::string_view KindName(Kind kind);

struct ConnectOptions {
  // The folder with the daemon's sockets. Empty: $GPUMEM_RUNTIME_DIR if set; else
  // $XDG_RUNTIME_DIR/gpumem if a daemon is there; else /run/gpumem.
  std::string runtime_dir;
  // The tenant to be billed. Empty: the first that the daemon's rules allow this process.
  std::string tenant;
  // Shown to operators. Empty: the program's name.
  std::string name;
  // How long connecting may take, and each call whose options say nothing else.
  absl::Duration timeout = absl::Seconds(30);
};

struct DeviceInfo {
  std::string uuid;  // names the device in every process
  std::string name;
  Backend backend = Backend::kHost;
  std::string pci_bus_id;
  uint64_t capacity_bytes = 0;     // what the daemon may hand out
  uint64_t charged_bytes = 0;      // what all tenants together are charged with
  uint64_t granularity_bytes = 0;  // sizes are rounded up to a multiple of it
  uint64_t driver_free_bytes = 0;  // by the driver's own count; 0 where unknown
  std::vector<Kind> kinds;
};

// Why a request was refused, as data. `asked`, `used` and `limit` are bytes for
// memory, else counts.
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
  };
  Cause cause = Cause::kUnknown;
  std::string tenant;
  std::string device_uuid;
  uint64_t asked = 0;
  uint64_t used = 0;
  uint64_t limit = 0;
  std::string help;
};

// The Denial that a status carries, if it does.
std::optional<Denial> GetDenial(const absl::Status& status);

struct DeviceUsage {
  std::string device_uuid;
  uint64_t leased_bytes = 0;
  uint64_t retained_bytes = 0;   // kept for reuse
  uint64_t lingering_bytes = 0;  // ended leases whose process may still map them
  uint64_t charged_bytes = 0;    // all of these
  uint64_t limit_bytes = 0;      // in force
  uint64_t peak_bytes = 0;
};

// What this client's tenant holds.
struct Usage {
  std::string tenant;
  std::vector<DeviceUsage> devices;
  uint64_t charged_bytes = 0;
  uint32_t segments = 0;
  uint32_t sessions = 0;
};

struct AcquireOptions {
  uint64_t bytes = 0;       // of each segment; rounded up to the device's granularity
  std::string device_uuid;  // empty: the daemon's first device
  Kind kind = Kind::kDefault;
  std::optional<absl::Duration> timeout;
};

struct OpenOptions {
  // Maps the memory without the right to write. A guard against mistakes, not a
  // security boundary: the importer chooses (cuMemSetAccess).
  bool read_only = false;
  std::optional<absl::Duration> timeout;
};

// An unguessable capability to open one segment, for as long as the lease that
// minted it lives. Plain text, safe in files, environment variables and URLs; keep
// it secret.
struct Ticket {
  std::string value;
};

enum class TicketScope {
  kTenant,  // only sessions of the segment's own tenant can open it
  kAny,     // whoever has it can
};

namespace internal {
class Grant;
class Session;
}  // namespace internal

// A lease on one segment, mapped into this process. Move-only; its end unmaps the
// memory and releases the lease. The caller makes sure that no GPU work uses the
// memory by then.
class Segment {
 public:
  Segment();
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();

  // False after Release(), after a move, and when default-made.
  bool valid() const { return state_ != nullptr; }

  // On the CUDA backend a device pointer, usable on the segment's device; on the host
  // backend an ordinary pointer. Null when not valid. Stays valid when the daemon goes.
  void* data() const;
  uint64_t size() const;  // after rounding
  const std::string& device_uuid() const;
  Kind kind() const;
  Backend backend() const;
  uint64_t lease_id() const;
  uint64_t segment_id() const;
  // True where the memory holds old bytes of the same tenant; else it is zero.
  bool reused() const;

  // The ticket of this lease; the same one each time for one scope.
  absl::StatusOr<Ticket> Share(TicketScope scope = TicketScope::kTenant) const;

  // What the destructor does, with its status. The memory is unmapped in any case.
  //   FAILED_PRECONDITION  not valid
  absl::Status Release();

 private:
  friend class Client;
  struct State;
  explicit Segment(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A session with the daemon. Segments may outlive it: the session ends with the last
// of them.
class Client {
 public:
  // Connects, and waits for the daemon's word on who this process is.
  //   UNAVAILABLE         no daemon there
  //   PERMISSION_DENIED   no rule of the daemon's configuration matches this process,
  //                       or none allows it the tenant it named
  //   RESOURCE_EXHAUSTED  the tenant has too many sessions (Denial)
  //   UNIMPLEMENTED       the daemon speaks another version of the protocol
  //   INVALID_ARGUMENT    the options make no sense
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ConnectOptions& options = {});

  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Gets a new segment and maps it.
  //   INVALID_ARGUMENT    zero bytes, or more than any device has
  //   NOT_FOUND           no such device
  //   UNIMPLEMENTED       the device does not make this kind, or this machine's driver
  //                       cannot map it
  //   RESOURCE_EXHAUSTED  a quota or the device stands in the way (Denial)
  absl::StatusOr<Segment> Acquire(const AcquireOptions& options);

  // Gets `count` segments (1 to 253) of one size in one call: all or none. They are
  // mapped one after another in one range of addresses.
  absl::StatusOr<std::vector<Segment>> AcquireMany(const AcquireOptions& options, int count);

  // Maps what a ticket stands for.
  //   INVALID_ARGUMENT   not a ticket
  //   NOT_FOUND          the lease behind it has ended
  //   PERMISSION_DENIED  it is for another tenant's sessions
  absl::StatusOr<Segment> Open(absl::string_view ticket, const OpenOptions& options = {});
  absl::StatusOr<std::vector<Segment>> OpenMany(absl::Span<const std::string> tickets,
                                                const OpenOptions& options = {});

  absl::StatusOr<Usage> GetUsage();
  absl::StatusOr<std::vector<DeviceInfo>> Devices();

  const std::string& tenant() const;
  // Which of the daemon's rules named the tenant, in words.
  const std::string& rule() const;
  uint64_t session_id() const;
  const std::string& daemon_version() const;

 private:
  explicit Client(std::shared_ptr<internal::Session> session);
  absl::StatusOr<std::vector<Segment>> Mapped(absl::StatusOr<internal::Grant> grant,
                                              bool read_only);

  std::shared_ptr<internal::Session> session_;
};

}  // namespace gpumem
