// The gpumem client: GPU memory that a node's daemon owns and that several processes share.
//
//   auto client = gpumem::Client::Connect();
//   auto segment = (*client)->Acquire({.bytes = 64 << 20});
//   use(segment->data(), segment->size());          // a device pointer, mapped
//   auto ticket = segment->Share();                 // hand it to another process
//   auto same = (*client)->Open(ticket->value);     // there: the same memory, no copy
//
// Threads: every function may be called from any thread. One Segment is used by one thread at a
// time. Sizes are bytes.
// Restart of the daemon: the session resumes with the next daemon and keeps its id, leases and
// tickets. Pointers never change. A call in flight is repeated within its deadline and takes effect
// once. A call made while no daemon runs waits for one until its deadline. The program need not do
// anything. If the next daemon does not know the session, the session is over: every call returns
// UNAVAILABLE and mapped memory stays mapped. A new Client starts a new session.
// CUDA: nothing here survives cudaDeviceReset(). It ends the context in which memory of kinds
// mempool and ipc, registered memory and events are open. Connect in another process then.
// Errors: the message says in one sentence what was wrong and what would help. A refusal for lack
// of memory also carries a machine-readable Denial (GetDenial()). Every call may return these
// statuses beside those that its comment names:
//   UNAVAILABLE         the daemon is draining; or no daemon came back in time; or the session is
//                       over. Mapped memory stays mapped
//   DEADLINE_EXCEEDED   the daemon did not answer in time
//   RESOURCE_EXHAUSTED  the tenant has too many calls in flight
//   FAILED_PRECONDITION in a child after fork(), Connect included: fork before the first
//                       connection, or start the child with exec
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
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

// How a segment is allocated and shared.
//
// Kind vmm needs no CUDA context in this process. Kinds mempool and ipc need the primary context
// (the CUDA runtime's) of the segment's device and of each device in map_devices. Mapping creates a
// missing context. That takes some 0.2 s, and 0.5 GB of the device that no quota counts. CUDA opens
// memory of kind ipc for one device only: map_devices names at most one. A process that needs it on
// several devices opens it once for each.
enum class Kind {
  kDefault,  // the device's default
  kVmm,      // one driver allocation behind one file descriptor (cuMemCreate)
  kMempool,  // from the tenant's memory pool on the device (cudaMemPoolExportPointer). Stays
             // charged until all processes that opened part of it have ended; the tenant reuses it
             // till then
  kIpc,      // cudaMalloc in the daemon, opened by its cudaIpcMemHandle_t
  kPinned,   // host memory, registered with CUDA in every process that maps it
};

enum class Backend { kCuda, kHost };

// Returns "vmm", "mempool", "ipc", "pinned" or "default".
absl::string_view KindName(Kind kind);

// The 64 bytes of a cudaIpcMemHandle_t, a cudaMemPoolPtrExportData or a
// cudaIpcEventHandle_t.
using Handle = std::array<uint8_t, 64>;

struct ConnectOptions {
  // The folder with the daemon's sockets. Empty: $GPUMEM_RUNTIME_DIR if set; else
  // $XDG_RUNTIME_DIR/gpumem if a daemon is there; else /run/gpumem.
  std::string runtime_dir;
  // The tenant to charge. Empty: the first that the daemon's rules allow this process.
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
    kUnbrokered,  // the tenant uses memory that it took past the daemon
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

namespace internal {
struct Disturbance;
class Grant;
class Interrupt;
class OpenedSegments;
class Session;
}  // namespace internal

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

// A device: its UUID ("GPU-…"; a unique prefix is enough), its PCI bus id ("0000:1b:00.0"), or its
// ordinal in this process ("0", "cuda:1"). Ordinals count what CUDA_VISIBLE_DEVICES leaves, in that
// order; on the host backend they follow the daemon's order.
using DeviceName = std::string;

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

// An unguessable capability to open one segment, valid as long as the lease that minted it. Plain
// text, safe in files, environment variables and URLs. Keep it secret.
struct Ticket {
  std::string value;
};

enum class TicketScope {
  kTenant,  // only sessions of the segment's own tenant can open it
  kAny,     // any session with the ticket can open it
};

class AddressRange;
struct MapOptions;

class Attachment;  // these: gpumem/publication.h
struct AttachOptions;
struct PublicationInfo;
struct PublishOptions;

// A lease on one segment, mapped into this process. Move-only. The destructor unmaps the memory and
// releases the lease; the caller ensures that no GPU work uses the memory by then.
class Segment {
 public:
  Segment();
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();

  // False after Release(), after a move, and if default-constructed.
  bool valid() const { return state_ != nullptr; }

  // On the CUDA backend a device pointer, usable on the segment's device; on the host backend an
  // ordinary pointer. Null if not valid. Stays valid when the daemon dies.
  void* data() const;
  uint64_t size() const;  // after rounding
  const std::string& device_uuid() const;
  Kind kind() const;
  Backend backend() const;
  uint64_t lease_id() const;
  uint64_t segment_id() const;
  // True if the memory holds old bytes of the same tenant; else it is zeroed.
  bool reused() const;
  // True if the memory may be revoked (Revocation): the request or the tenant's quota said so.
  bool revocable() const;
  // Kind pinned: true if GPUs can use data(), too. False if this process has no usable CUDA driver:
  // the memory is then an ordinary shared buffer. With a driver, mapping the first such segment
  // creates a CUDA context if none exists. The context is that of the device that the process sees
  // first (or of the first in map_devices).
  bool registered() const;

  // For programs that do not use gpumem. A process that is given any of these can use the memory
  // without the daemon's knowledge. This lease must outlive that use.
  //
  // Kind ipc: returns the handle for cudaIpcOpenMemHandle. It opens all size() bytes.
  //   UNIMPLEMENTED  another kind; the message says what that kind has instead
  absl::StatusOr<Handle> ipc_handle() const;
  // Kind mempool: returns the data for cudaMemPoolImportPointer on the pool that pool_fd() imports.
  // For other processes only: in this process the driver returns the pointer that is already open,
  // and the first free would end both uses.
  //   UNIMPLEMENTED  another kind
  absl::StatusOr<Handle> export_data() const;
  // Kind mempool: returns the descriptor for cudaMemPoolImportFromShareableHandle. It opens all
  // memory that the tenant has in the pool. The session owns it, and all its segments of the pool
  // share it: it is valid while any of them is.
  //   UNIMPLEMENTED  another kind
  absl::StatusOr<int> pool_fd() const;
  // Kinds vmm and pinned: returns the descriptor for cuMemImportFromShareableHandle or mmap. The
  // first call asks the daemon for it. The Segment owns it; it is valid as long as the Segment.
  //   UNIMPLEMENTED  another kind
  absl::StatusOr<int> fd();

  // Returns the ticket of this lease; always the same one for a scope.
  //   FAILED_PRECONDITION  not valid, or the segment is lost (SegmentsLost); or scope kAny for kind
  //                        mempool, since its pool opens all memory that the tenant has in it
  absl::StatusOr<Ticket> Share(TicketScope scope = TicketScope::kTenant) const;

  // Unmaps the memory and ends the lease, like the destructor, and returns the status. The memory
  // is unmapped in any case. If no daemon runs, the lease ends when one is back. The destructor
  // does not wait for that. Release() waits at most `timeout` (UNAVAILABLE).
  //   FAILED_PRECONDITION  not valid
  absl::Status Release(std::optional<absl::Duration> timeout = std::nullopt);

 private:
  friend class Attachment;
  friend class Client;
  friend class Pool;
  struct State;
  explicit Segment(std::unique_ptr<State> state);
  // Moves segments of kind vmm with MoveHost or MoveCuda; changes data().
  static absl::Status Move(absl::Span<Segment* const> segments,
                           const std::shared_ptr<const AddressRange>& range, void* address);
  std::unique_ptr<State> state_;
};

// An interprocess event. A stream of the producer records it; a stream of a consumer, in another
// process, waits for that on the GPU, without a round trip through a host. Move-only.
//
//   auto done = client->CreateEvent({.name = "batch"});          // in the producer
//   fill<<<..., stream>>>(...); done->Record(stream);
//   auto done = client->OpenEvent("batch");                      // in the consumer
//   done->Wait(stream); use<<<..., stream>>>(...);
//
// As with every CUDA event, Wait() waits for the last Record() before it, and for nothing if there
// was none. The producer must tell the consumer by other means that it has recorded. A stream that
// waits for a record waits for ever if the producer is killed before the GPU reached the record. A
// process can have some 4000 interprocess events, created and opened together (RESOURCE_EXHAUSTED).
// An event whose handle other processes have received counts until its session ends. CUDA opens an
// event only in processes other than its creator, and of the same user.
//
// On the host backend all work is synchronous: recorded work has already completed. An event is
// charged there as one segment of the smallest size.
class Event {
 public:
  Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  ~Event();

  bool valid() const { return state_ != nullptr; }

  // `stream` is a cudaStream_t or CUstream; null: the default stream of the event's device. All of
  // these return:
  //   FAILED_PRECONDITION  not valid, or in a child after fork()
  //   INTERNAL             the driver's error, by its name
  // Record() requires a stream of the event's device:
  //   INVALID_ARGUMENT     the stream is of another device
  absl::Status Record(void* stream);
  absl::Status Wait(void* stream);    // blocks the stream, not the caller
  absl::Status Synchronize();         // blocks the caller
  absl::StatusOr<bool> Done() const;  // true if the last recorded work has completed

  // Returns the handle for cudaIpcOpenEventHandle. The Event owns it.
  const Handle& handle() const;
  // Returns the cudaEvent_t; null on the host backend.
  void* event() const;

 private:
  friend class Client;
  friend class Segment;
  struct State;
  explicit Event(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct EventOptions {
  // Set one of the two. A name makes the event visible to all sessions of this tenant: 1 to 64
  // printable characters. A segment makes it visible to all that lease the segment, of any tenant.
  std::string name;
  const Segment* segment = nullptr;
  // Empty: the segment's device. Without a segment, beside host memory (kind pinned), or if this
  // process does not see the segment's device: the first GPU that it sees.
  DeviceName device;
};

// The daemon's CUDA context of the segments is gone (kinds mempool and ipc), or the daemon died and
// the next one does not know them. Open mappings stay readable and writable, but the segments
// cannot be opened again. Copy out what matters, release, and acquire again.
struct SegmentsLost {
  std::vector<uint64_t> lease_ids;  // all of this session's
};

// Another session was denied memory, or waits for it. Releasing unneeded leases of this process
// would help; a Pool gives back its free memory by itself. Giving nothing back has no consequence.
struct Pressure {
  std::string device_uuid;  // empty: any device
  uint64_t bytes = 0;       // that would have sufficed
  // How long a release helps, from now; zero: unknown. A process that was stopped past the deadline
  // does not receive the event.
  absl::Duration deadline = absl::ZeroDuration();
};

// Revocable memory is taken back, since other tenants need their guarantee. Until the end, copy out
// what matters and release the leases: then the process is unharmed. If it still holds any of them
// at the end, the daemon ends the process: SIGTERM, and SIGKILL some seconds later.
struct Revocation {
  std::vector<uint64_t> lease_ids;  // all of this session's that are taken back
  absl::Duration until_end;         // from now; zero if the process was stopped past the end
};

// Events from the daemon. Empty functions are not called. All calls come from one thread of the
// Watch. If the daemon dies, the Watch continues with the next one and resumes the session. If a
// handler blocks the daemon for more than 10 s, the daemon ends the stream and the Watch opens
// another. Pressure of that period is lost; all other state is reported as it stands then.
struct WatchHandlers {
  std::function<void(const SegmentsLost&)> segments_lost;
  // Reports if the daemon is draining: at the start if it is, and at each change.
  std::function<void(bool draining)> draining;
  std::function<void(const Pressure&)> pressure;
  std::function<void(const Revocation&)> revocation;
  // The tenant's quota was changed while it is in use.
  std::function<void(const Quota&)> quota_changed;
  // Reports why the Watch has ended:
  //   UNAVAILABLE         the session is over, or the daemon ended the Watch; or a handler blocked
  //                       it for 10 s and the session does not reconnect
  //   RESOURCE_EXHAUSTED  the session or the tenant has too many watches (Denial)
  std::function<void(const absl::Status&)> ended;
};

// The destructor stops the handlers and waits for one in progress. A handler may destroy the Watch
// that called it. The destructor then does not wait: the thread ends soon after the handler has
// returned, and the handlers' data must live until then. A Watch keeps its session alive. A forked
// child has none.
class Watch {
 public:
  virtual ~Watch() = default;
};

class Pool;  // these two: gpumem/pool.h
class SharedBlock;

// A session with the daemon. The session ends with the Client and all its Segments: Segments may
// outlive the Client.
class Client {
 public:
  // Connects, and blocks until the daemon has identified this process. Waits for a daemon that does
  // not listen yet, unless ConnectOptions::wait is false or the runtime folder does not exist. If
  // the daemon dies meanwhile, asks the next one, unless ConnectOptions::reconnect is false.
  //   UNAVAILABLE         no daemon listened in time, or none lived for long enough
  //   DEADLINE_EXCEEDED   a daemon listens, and did not answer in time
  //   PERMISSION_DENIED   no rule of the daemon's configuration matches this process,
  //                       or none allows it the tenant it named
  //   RESOURCE_EXHAUSTED  the tenant has too many sessions (Denial)
  //   UNIMPLEMENTED       the daemon speaks another version of the protocol
  //   INVALID_ARGUMENT    the options are invalid
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ConnectOptions& options = {});

  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Acquires a new segment and maps it.
  //   INVALID_ARGUMENT    zero bytes, or more than any device has; an address that is no multiple
  //                       of 2 MiB; a name that fits several devices; map_devices names a device
  //                       that is no GPU
  //   NOT_FOUND           no such device, or this process does not see it
  //                       (CUDA_VISIBLE_DEVICES; map_devices may name one that it sees)
  //   UNIMPLEMENTED       the device does not support this kind; this machine's driver cannot map
  //                       it; or there is no peer access from a device in map_devices
  //   FAILED_PRECONDITION the requested address is taken; or the memory was lost right after the
  //                       grant (SegmentsLost): ask again; or the process holds revocable memory
  //                       and this is not, or the reverse
  //   RESOURCE_EXHAUSTED  a quota or the device denies it (Denial), also after the wait
  //   CANCELLED           by options.cancel
  absl::StatusOr<Segment> Acquire(const AcquireOptions& options);

  // Acquires `count` segments (1 to 253) of one size in one call: all or none. They lie in one
  // range of addresses, one after another (kinds vmm and pinned). INVALID_ARGUMENT for another
  // count.
  absl::StatusOr<std::vector<Segment>> AcquireMany(const AcquireOptions& options, int count);

  // Opens the segment of a ticket and maps it. OpenMany takes 1 to 253 tickets.
  //   INVALID_ARGUMENT    not a ticket; one address for several devices or kinds; or as Acquire
  //   NOT_FOUND           the lease of the ticket has ended; or as Acquire
  //   PERMISSION_DENIED   the ticket is for sessions of another tenant
  //   FAILED_PRECONDITION the segment is lost (SegmentsLost); or it is revocable, and
  //                       options.revocable is not set; or as Acquire
  //   UNIMPLEMENTED       as Acquire
  absl::StatusOr<Segment> Open(absl::string_view ticket, const OpenOptions& options = {});
  absl::StatusOr<std::vector<Segment>> OpenMany(absl::Span<const std::string> tickets,
                                                const OpenOptions& options = {});

  // Creates an interprocess event and registers it with the daemon until the Event or its session
  // ends.
  //   INVALID_ARGUMENT    neither a name nor a segment, or both, or an invalid name; or a Segment
  //                       that is not this Client's, or not valid
  //   ALREADY_EXISTS      the tenant has an event of that name
  //   NOT_FOUND           no such device, or this process does not see it
  //   UNIMPLEMENTED       the device has no interprocess events, or this process has no driver
  //   RESOURCE_EXHAUSTED  the session (Denial) or the process has too many events
  absl::StatusOr<Event> CreateEvent(const EventOptions& options);
  // Opens the event of that name.
  //   NOT_FOUND            this tenant has none of that name
  //   FAILED_PRECONDITION  this process created it: CUDA opens it in other processes only
  //   PERMISSION_DENIED    a process of another user created it: CUDA does not open it
  //   UNIMPLEMENTED        this process has no usable CUDA driver
  //   RESOURCE_EXHAUSTED   the process has too many events
  absl::StatusOr<Event> OpenEvent(absl::string_view name);
  // Opens the events that other processes created beside this segment; skips any that it cannot.
  //   INVALID_ARGUMENT  the Segment is not this Client's, or not valid
  //   NOT_FOUND         there are none
  //   and as OpenEvent, if there are some and none can be opened
  absl::StatusOr<std::vector<Event>> OpenEvents(const Segment& segment);

  // Publications (gpumem/publication.h). Names are 1 to 64 letters, digits, '.', '_' and '-', in
  // this Client's tenant; "TENANT/NAME" is another tenant's.

  // Publishes 1 to 4096 segments of this Client as the next version of the name. Returns the
  // version: 1 for a new name. The caller keeps the Segments and may release them at once.
  //   INVALID_ARGUMENT    an invalid name; no segments, too many, or one twice; too much metadata;
  //                       or a Segment that is not this Client's, or not valid
  //   FAILED_PRECONDITION a segment is another tenant's, is revocable or lost, or is of a kind
  //                       other than vmm and pinned
  //   RESOURCE_EXHAUSTED  the tenant has too many publications, or the daemon too many or too much
  //                       metadata (Denial)
  absl::StatusOr<uint64_t> Publish(absl::string_view name, absl::Span<const Segment> segments,
                                   const PublishOptions& options);
  absl::StatusOr<uint64_t> Publish(absl::string_view name,
                                   absl::Span<const Segment* const> segments,
                                   const PublishOptions& options);
  // Maps all segments of a publication in one call; those of one device and kind lie in one range
  // of addresses. Needs one file descriptor a segment meanwhile (ulimit -n).
  //   INVALID_ARGUMENT    an invalid name; or as Open
  //   NOT_FOUND           there is no such publication, or this tenant may not attach to it; or
  //                       this process does not see a device
  //   DEADLINE_EXCEEDED   the version was not published in time
  //   CANCELLED           by options.cancel
  //   FAILED_PRECONDITION the process holds revocable memory and this is not, or the reverse; or as
  //                       Open
  //   RESOURCE_EXHAUSTED  too many requests wait, or the session has too many leases (Denial); out
  //                       of file descriptors or addresses
  //   UNIMPLEMENTED       as Open
  absl::StatusOr<Attachment> Attach(absl::string_view name, const AttachOptions& options);
  absl::StatusOr<Attachment> Attach(absl::string_view name);
  // Ends a publication of this Client's tenant. New attachments fail; existing attachments stay.
  // Returns the newest version.
  //   NOT_FOUND          there is none that this tenant may see
  //   PERMISSION_DENIED  it is another tenant's
  absl::StatusOr<uint64_t> Unpublish(absl::string_view name);
  // Lists what this Client may attach to, of one tenant or all (empty), by tenant and name.
  absl::StatusOr<std::vector<PublicationInfo>> ListPublications(absl::string_view tenant = "");

  // Calls the handlers for events of the daemon until the Watch ends. Reports earlier lost segments
  // at once.
  absl::StatusOr<std::unique_ptr<Watch>> StartWatch(WatchHandlers handlers);

  absl::StatusOr<Usage> GetUsage();
  absl::StatusOr<std::vector<DeviceInfo>> Devices();

  const std::string& tenant() const;
  // Returns the daemon's rule that chose the tenant, in words.
  const std::string& rule() const;
  uint64_t session_id() const;
  const std::string& daemon_version() const;

 private:
  explicit Client(std::shared_ptr<internal::Session> session);
  // As Acquire and AcquireMany; with `range`, maps at options.address in it. A wait obeys
  // `disturbance`, not options.cancel.
  absl::StatusOr<std::vector<Segment>> AcquireIn(std::shared_ptr<const AddressRange> range,
                                                 const AcquireOptions& options, int count,
                                                 const internal::Disturbance& disturbance);
  absl::StatusOr<std::vector<Segment>> Mapped(absl::StatusOr<internal::Grant> grant,
                                              const MapOptions& options);

  friend class Pool;
  friend absl::StatusOr<SharedBlock> OpenBlock(Client& client, absl::string_view ticket,
                                               const OpenOptions& options);
  std::shared_ptr<internal::Session> session_;
  std::unique_ptr<internal::OpenedSegments> opened_;  // for blocks of other sessions' pools
};

}  // namespace gpumem
