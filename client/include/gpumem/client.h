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
// A daemon that dies comes back, and with it the session: the same id, leases and tickets; pointers
// never change. A call that it dies under is made again with the next one, within its own time, and
// gets nothing twice; one that finds none waits for it so long. Nothing has to be done for that.
// Where the next one does not know the session, it is over: every call says so (UNAVAILABLE), what
// is mapped stays mapped, and a new Client begins anew. CUDA: nothing here survives
// cudaDeviceReset(), which ends the context that the memory of kinds mempool and ipc, registered
// memory and events are open in; connect in another process then. Sizes are bytes. Errors say in
// one sentence what was wrong and what would help; a refusal for want of memory also carries the
// machine-readable Denial (denial()). Statuses that every call may return beside those named with
// it:
//   UNAVAILABLE         the daemon is draining; or it was gone, and none came back in time; or the
//                       session is over. Memory that is mapped stays mapped
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

// How a segment is made and shared.
//
// Mapping kind vmm needs no CUDA context in this process. Kinds mempool and ipc need the primary
// context (the CUDA runtime's) of the segment's device, and of each in map_devices: it is made
// where it is not there yet, which takes some 0.2 s, and 0.5 GB of the device that no quota
// counts. CUDA opens memory of kind ipc for one device: map_devices names one at most, and a
// process that wants it on several opens it once for each.
enum class Kind {
  kDefault,  // the device's default
  kVmm,      // one driver allocation behind one file descriptor (cuMemCreate)
  kMempool,  // from the tenant's memory pool on the device (cudaMemPoolExportPointer). Stays
             // charged until all processes that have had some of it have ended; reused till then
  kIpc,      // cudaMalloc in the daemon, opened by its cudaIpcMemHandle_t
  kPinned,   // host memory, registered with CUDA in every process that maps it
};

enum class Backend { kCuda, kHost };

// "vmm", "mempool", "ipc", "pinned", "default".
absl::string_view KindName(Kind kind);

// The 64 bytes of a cudaIpcMemHandle_t, a cudaMemPoolPtrExportData or a
// cudaIpcEventHandle_t.
using Handle = std::array<uint8_t, 64>;

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
  // Whether the session goes on with the next daemon where its own dies. Else it ends with that.
  bool reconnect = true;
  // Whether Connect waits, within `timeout`, for a daemon that does not listen: it may be
  // starting, or starting again. Only where the folder of its sockets exists. Where the service
  // manager keeps the socket (systemd's socket units, gpumem-keeper), that listens also without a
  // daemon: then Connect waits in any case, and `timeout` alone says for how long.
  bool wait = true;
};

// What a GPU can do with another's memory.
struct PeerAccess {
  std::string uuid;  // the other's
  bool access = false;
  bool native_atomics = false;
  int performance_rank = 0;  // of the link: 0 is the fastest of the node
};

struct DeviceInfo {
  std::string uuid;  // names the device in every process
  std::string name;
  Backend backend = Backend::kHost;
  std::string pci_bus_id;
  uint64_t capacity_bytes = 0;     // what the daemon may hand out
  uint64_t charged_bytes = 0;      // what all tenants together are charged with
  uint64_t granularity_bytes = 0;  // sizes are rounded up to a multiple of it
  // The same for kind mempool, where that differs; else 0.
  uint64_t pool_granularity_bytes = 0;
  uint64_t driver_free_bytes = 0;  // by the driver's own count; 0 where unknown
  std::vector<Kind> kinds;         // that it makes; the first is its default
  std::vector<PeerAccess> peers;   // the other GPUs
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
    kMaxWaiting,  // too many requests wait
    kGuarantees,  // what is free is guaranteed to others
    kQueue,       // what is free is waited for by requests that go first
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
  // Whose limit it is, where that is not `tenant` but one that it is under; else empty.
  std::string limited_tenant;
  // Who holds what is used, the largest first; a few.
  std::vector<Holder> holders;
};

namespace internal {
struct Disturbance;
class Grant;
class Interrupt;
class OpenedSegments;
class Session;
}  // namespace internal

// The Denial that a status carries, if it does.
std::optional<Denial> GetDenial(const absl::Status& status);

struct DeviceUsage {
  std::string device_uuid;
  uint64_t leased_bytes = 0;
  uint64_t retained_bytes = 0;   // kept for reuse
  uint64_t lingering_bytes = 0;  // ended leases whose process may still map them or, of kind
                                 // mempool, has the pool open; reused by the tenant then
  uint64_t charged_bytes = 0;    // all of these
  uint64_t limit_bytes = 0;      // in force
  uint64_t peak_bytes = 0;
  uint64_t guarantee_bytes = 0;  // in force: so much the tenant can always get
  uint64_t borrowed_bytes = 0;   // held above that
  uint64_t waiting_bytes = 0;    // that requests wait for
  uint32_t waiting = 0;          // how many do
  uint64_t revocable_bytes = 0;  // held, and may be taken back
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

// What this client's tenant may hold. What is not set has no limit of its own: bytes are bounded by
// the device, counts by the daemon.
struct Quota {
  struct Device {
    std::string device_uuid;
    std::optional<uint64_t> limit_bytes;
    std::optional<uint64_t> guarantee_bytes;
  };
  std::optional<uint64_t> limit_bytes;         // on any one GPU, unless `devices` names it
  std::optional<uint64_t> total_limit_bytes;   // over all GPUs
  std::optional<uint64_t> pinned_limit_bytes;  // of kind pinned, which the others do not count
  std::optional<uint64_t> guarantee_bytes;     // on any one GPU, unless `devices` names it
  std::optional<uint64_t> max_retained_bytes;  // kept for reuse, on any one device
  std::optional<uint32_t> max_segments;
  std::optional<uint32_t> max_sessions;
  std::optional<uint32_t> max_in_flight;  // calls that wait for an answer
  std::optional<uint32_t> max_waiting;    // requests that wait for memory
  std::optional<uint32_t> max_publications;
  int32_t priority = 0;    // among who waits and borrows: the higher first
  bool revocable = false;  // all of its leases are
  std::string parent;      // under whose quota it is, too; empty: nobody's
  std::vector<Device> devices;
};

// Ends waits from another thread. Copies are one and the same; any number of calls may have it.
class CancelToken {
 public:
  CancelToken();
  // The calls that have it end with CANCELLED, unless they are done by then; those to come, too.
  void Cancel() const;
  bool cancelled() const;

 private:
  friend class Client;
  std::shared_ptr<internal::Interrupt> interrupt_;
};

// A device, by its UUID ("GPU-…"; a beginning that fits only one is enough), its PCI bus id
// ("0000:1b:00.0"), or its ordinal as this process sees it ("0", "cuda:1": what
// CUDA_VISIBLE_DEVICES leaves, in that order; on the host backend the daemon's order).
using DeviceName = std::string;

struct AcquireOptions {
  uint64_t bytes = 0;  // of each segment; rounded up to the device's granularity
  // Empty: the first GPU that this process sees and that makes the kind; with map_devices, and
  // where the daemon has no GPUs, the daemon's first device that makes it. "most-free": of those
  // that could be, the one on which this tenant can get most.
  DeviceName device;
  Kind kind = Kind::kDefault;
  // The GPUs that shall use the memory; empty: the segment's own. Not for the host backend.
  std::vector<DeviceName> map_devices;
  // Where to map it (the first of several), a multiple of 2 MiB; null: anywhere. Kinds vmm and
  // pinned alone.
  void* address = nullptr;
  // Whether others are asked to give back what they have free when this is denied (Pressure). Set
  // to false for what one could do without.
  bool presses_others = true;
  // How long to wait for memory that others hold; InfiniteDuration: for as long as the session
  // lives. Zero: it is denied at once. Who waits is served by guarantee (the tenant that is
  // furthest below its own), then priority, then arrival, and nobody who comes later gets what it
  // waits for. A wait that is over is RESOURCE_EXHAUSTED with the Denial that stood in the way, and
  // so is one that could not help or would be one too many; never DEADLINE_EXCEEDED. Meanwhile the
  // Client's other calls go on beside it.
  absl::Duration wait = absl::ZeroDuration();
  // Ends the wait (CANCELLED). Nothing is held then, nor later.
  std::optional<CancelToken> cancel;
  // The memory may be taken back (Revocation); for that it may be what is guaranteed to others and
  // idle. Not for kind mempool. A process holds memory of one sort only, revocable or not
  // (FAILED_PRECONDITION), since it is the process that is ended where it does not give it back.
  bool revocable = false;
  // For the answer, from when the wait is over.
  std::optional<absl::Duration> timeout;
};

struct OpenOptions {
  // Maps the memory without the right to write. A guard against mistakes, not a
  // security boundary: the importer chooses (cuMemSetAccess). Kinds vmm and pinned alone.
  bool read_only = false;
  std::vector<DeviceName> map_devices;  // as in AcquireOptions
  void* address = nullptr;              // as in AcquireOptions
  // As in AcquireOptions. Needed for memory that is revocable itself, and where the process holds
  // revocable memory.
  bool revocable = false;
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

class AddressRange;
struct MapOptions;

class Attachment;  // these: gpumem/publication.h
struct AttachOptions;
struct PublicationInfo;
struct PublishOptions;

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
  // Whether it may be taken back (Revocation): it was asked for so, or the tenant's quota says so.
  bool revocable() const;
  // Of kind pinned: whether GPUs can use data(), too. False where this process has no
  // usable CUDA driver: then it is an ordinary shared buffer. Where it has one, mapping the
  // first such segment makes the CUDA context of the device that the process sees first (or
  // of the first in map_devices), unless it is there.
  bool registered() const;

  // For programs that do not know gpumem. Whoever is given any of these can use the memory,
  // unseen by the daemon: this lease must live for as long.
  //
  // Of kind ipc: for cudaIpcOpenMemHandle. All of its size() opens.
  //   UNIMPLEMENTED  another kind; the sentence says what it has instead
  absl::StatusOr<Handle> ipc_handle() const;
  // Of kind mempool: for cudaMemPoolImportPointer, in the pool that pool_fd() imports, in other
  // processes: in this one the driver gives the pointer that is open already, which the first
  // free would end for both.
  //   UNIMPLEMENTED  another kind
  absl::StatusOr<Handle> export_data() const;
  // Of kind mempool: for cudaMemPoolImportFromShareableHandle. Opens all that the tenant has
  // in the pool. The session's, and the same for all of its segments of the pool: valid
  // while any of them is.
  //   UNIMPLEMENTED  another kind
  absl::StatusOr<int> pool_fd() const;
  // Of kinds vmm and pinned: for cuMemImportFromShareableHandle, or mmap. Asks the daemon
  // for it the first time. The Segment's: valid as long as it.
  //   UNIMPLEMENTED  another kind
  absl::StatusOr<int> fd();

  // The ticket of this lease; the same one each time for one scope.
  //   FAILED_PRECONDITION  not valid, or the segment is lost (SegmentsLost); or scope ANY for one
  //                        of kind mempool, since its pool opens all that the tenant has in it
  absl::StatusOr<Ticket> Share(TicketScope scope = TicketScope::kTenant) const;

  // What the destructor does, with its status. The memory is unmapped in any case, and the lease
  // ends as soon as there is a daemon to hear it; the destructor does not wait for one that is
  // away, and this no longer than `timeout` (UNAVAILABLE then, and the lease ends all the same).
  //   FAILED_PRECONDITION  not valid
  absl::Status Release(std::optional<absl::Duration> timeout = std::nullopt);

 private:
  friend class Attachment;
  friend class Client;
  friend class Pool;
  struct State;
  explicit Segment(std::unique_ptr<State> state);
  // MoveHost or MoveCuda of segments of kind vmm; data() is another then.
  static absl::Status Move(absl::Span<Segment* const> segments,
                           const std::shared_ptr<const AddressRange>& range, void* address);
  std::unique_ptr<State> state_;
};

// An interprocess event: a producer's stream records it, a consumer's stream, in another
// process, waits for that on the GPU, without a round trip through any host. Move-only.
//
//   auto done = client->CreateEvent({.name = "batch"});          // in the producer
//   fill<<<..., stream>>>(...); done->Record(stream);
//   auto done = client->OpenEvent("batch");                      // in the consumer
//   done->Wait(stream); use<<<..., stream>>>(...);
//
// As with every CUDA event, Wait() waits for the last Record() that was called before, and
// for nothing where there was none: that the producer has recorded must be told by other
// means. A stream that waits for a record whose producer is killed before the GPU got to it
// waits for ever. A process can have some 4000 interprocess events, made and opened together
// (RESOURCE_EXHAUSTED); one whose handle others have got counts until its session ends. CUDA
// opens an event only in other processes than its maker's, of the same user.
//
// On the host backend nothing runs behind the caller's back: what was recorded has
// happened. There an event is charged as one segment of the smallest size.
class Event {
 public:
  Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  ~Event();

  bool valid() const { return state_ != nullptr; }

  // `stream` is a cudaStream_t or CUstream; null: the default stream of the event's device.
  // All of these:
  //   FAILED_PRECONDITION  not valid, or in a child after fork()
  //   INTERNAL             the driver's error, by its name
  // To be recorded it takes a stream of its own device:
  //   INVALID_ARGUMENT     the stream is of another
  absl::Status Record(void* stream);
  absl::Status Wait(void* stream);    // the stream waits; the caller does not
  absl::Status Synchronize();         // the caller waits
  absl::StatusOr<bool> Done() const;  // whether what was recorded last has happened

  // For cudaIpcOpenEventHandle.
  const Handle& handle() const;
  // The cudaEvent_t; null on the host backend.
  void* event() const;

 private:
  friend class Client;
  friend class Segment;
  struct State;
  explicit Event(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct EventOptions {
  // One of the two. Under a name, for all sessions of this tenant: 1 to 64 printable
  // characters; or beside a segment, for all who lease it, of whatever tenant.
  std::string name;
  const Segment* segment = nullptr;
  // Empty: the segment's; without one, beside host memory (kind pinned) or beside memory of a
  // device that this process does not see, the first GPU that it sees.
  DeviceName device;
};

// The segments' CUDA context in the daemon is gone (kinds mempool and ipc), or the daemon died and
// the next one does not know them. What is open stays readable and writable, and nobody can open it
// any more: copy out what matters, release, and acquire again.
struct SegmentsLost {
  std::vector<uint64_t> lease_ids;  // all of this session's
};

// Another session was denied memory, or waits for it. What this process has leased and does not
// need would help; a Pool gives back what it has free by itself. Nothing happens to who gives
// nothing.
struct Pressure {
  std::string device_uuid;  // empty: any device
  uint64_t bytes = 0;       // that would have been enough
  // How long it helps from now on; zero: unknown. Where that is over before the process hears of
  // it, since it was stopped, it is not told.
  absl::Duration deadline = absl::ZeroDuration();
};

// Revocable memory is taken back, since others need what they are guaranteed. Until the end, copy
// out what matters and release the leases: then nothing happens to the process. Where it holds any
// of them at the end, the daemon ends the process: SIGTERM, and SIGKILL some seconds later.
struct Revocation {
  std::vector<uint64_t> lease_ids;  // all of this session's that are taken back
  absl::Duration until_end;         // from now on; zero where the process was stopped for so long
};

// What the daemon has to say. Empty functions are not called; all are called in one thread
// of the Watch. Where the daemon dies the Watch goes on with the next one, and brings the session
// back by itself. Where a handler keeps the daemon waiting for more than 10 s, it ends the stream,
// and the Watch begins another: pressure that was to be told meanwhile is not told, all else is as
// it stands then.
struct WatchHandlers {
  std::function<void(const SegmentsLost&)> segments_lost;
  // Whether the daemon drains: told where it does at the start, and at each change.
  std::function<void(bool draining)> draining;
  std::function<void(const Pressure&)> pressure;
  std::function<void(const Revocation&)> revocation;
  // The tenant's quota was changed while it is in use.
  std::function<void(const Quota&)> quota_changed;
  // The Watch has ended. UNAVAILABLE: the session is over, the daemon has ended the Watch, or a
  // handler kept it waiting so long and the session does not reconnect. RESOURCE_EXHAUSTED: the
  // session or the tenant has too many (Denial).
  std::function<void(const absl::Status&)> ended;
};

// Its end ends the calls to the handlers, and waits for one under way. A handler may end its own
// Watch: then nobody waits, and the thread ends by itself soon after the handler has returned;
// what the handlers use must live until then. The session lives as long as its last Watch, too.
// A forked child has none.
class Watch {
 public:
  virtual ~Watch() = default;
};

class Pool;  // these two: gpumem/pool.h
class SharedBlock;

// A session with the daemon. Segments may outlive it: the session ends with the last
// of them.
class Client {
 public:
  // Connects, and waits for the daemon's word on who this process is. Waits for a daemon that does
  // not listen yet, unless ConnectOptions::wait is false or the runtime folder does not exist.
  // Where the daemon dies meanwhile, the next one is asked, unless ConnectOptions::reconnect is
  // false.
  //   UNAVAILABLE         no daemon listened in time, or none lived for long enough
  //   DEADLINE_EXCEEDED   a daemon listens, and did not answer in time
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
  //   INVALID_ARGUMENT    zero bytes, or more than any device has; an address that is no multiple
  //                       of 2 MiB; a name that fits several devices; map_devices names what is
  //                       no GPU
  //   NOT_FOUND           no such device, or this process does not see it
  //                       (CUDA_VISIBLE_DEVICES; map_devices may name one that it sees)
  //   UNIMPLEMENTED       the device does not make this kind; this machine's driver cannot
  //                       map it; or there is no peer access from a device in map_devices
  //   FAILED_PRECONDITION the wished address is taken; or the memory was lost right after it was
  //                       granted (SegmentsLost): ask again; or the process holds memory of the
  //                       other sort (revocable or not)
  //   RESOURCE_EXHAUSTED  a quota or the device stands in the way (Denial), also after the wait
  //   CANCELLED           by options.cancel
  absl::StatusOr<Segment> Acquire(const AcquireOptions& options);

  // Gets `count` segments (1 to 253) of one size in one call: all or none. They are
  // mapped one after another in one range of addresses (kinds vmm and pinned).
  absl::StatusOr<std::vector<Segment>> AcquireMany(const AcquireOptions& options, int count);

  // Maps what a ticket stands for.
  //   INVALID_ARGUMENT    not a ticket; one address for several devices or kinds; or as Acquire
  //   NOT_FOUND           the lease behind it has ended; or as Acquire
  //   PERMISSION_DENIED   it is for another tenant's sessions
  //   FAILED_PRECONDITION the segment is lost (SegmentsLost); or it is revocable, and
  //                       options.revocable is not set; or as Acquire
  //   UNIMPLEMENTED       as Acquire
  absl::StatusOr<Segment> Open(absl::string_view ticket, const OpenOptions& options = {});
  absl::StatusOr<std::vector<Segment>> OpenMany(absl::Span<const std::string> tickets,
                                                const OpenOptions& options = {});

  // Makes an interprocess event and tells the daemon of it, until it ends or its session
  // does.
  //   INVALID_ARGUMENT    neither a name nor a segment, or both, or a name that is none; or a
  //                       Segment that is not this Client's, or not valid
  //   ALREADY_EXISTS      the tenant has an event of that name
  //   NOT_FOUND           no such device, or this process does not see it
  //   UNIMPLEMENTED       the device has no interprocess events, or this process no driver
  //   RESOURCE_EXHAUSTED  the session has too many (Denial), or the process
  absl::StatusOr<Event> CreateEvent(const EventOptions& options);
  // Opens the event of that name.
  //   NOT_FOUND            this tenant has none of that name
  //   FAILED_PRECONDITION  this process has made it: CUDA opens it in other processes only
  //   PERMISSION_DENIED    a process of another user has made it: CUDA does not open it
  //   UNIMPLEMENTED        this process has no usable CUDA driver
  //   RESOURCE_EXHAUSTED   the process has too many events
  absl::StatusOr<Event> OpenEvent(absl::string_view name);
  // Opens the events that other processes have made beside this segment: those that it can.
  //   INVALID_ARGUMENT  the Segment is not this Client's, or not valid
  //   NOT_FOUND         there are none
  //   and as OpenEvent, where there are some and none can be opened
  absl::StatusOr<std::vector<Event>> OpenEvents(const Segment& segment);

  // Publications (gpumem/publication.h). Names are 1 to 64 letters, digits, '.', '_' and '-', of
  // this Client's tenant; "TENANT/NAME" is another tenant's.

  // Publishes segments, 1 to 4096 of this Client's, as the next version of the name: 1 for a new
  // one. Answers which. The Segments stay the caller's, and may be released at once.
  //   INVALID_ARGUMENT    a name that is none; no segments, too many, or one twice; too much
  //                       metadata; or a Segment that is not this Client's, or not valid
  //   FAILED_PRECONDITION a segment is another tenant's, is revocable or lost, or is of a kind
  //                       other than vmm and pinned
  //   RESOURCE_EXHAUSTED  the tenant has too many publications, or the daemon too many or too much
  //                       metadata (Denial)
  absl::StatusOr<uint64_t> Publish(absl::string_view name, absl::Span<const Segment> segments,
                                   const PublishOptions& options);
  absl::StatusOr<uint64_t> Publish(absl::string_view name,
                                   absl::Span<const Segment* const> segments,
                                   const PublishOptions& options);
  // Maps all segments of a publication: one call, and those of one device and kind in one range of
  // addresses. Needs as many file descriptors as it has segments while it maps them (ulimit -n).
  //   INVALID_ARGUMENT    a name that is none; or as Open
  //   NOT_FOUND           there is no such publication, or this tenant may not attach to it; or
  //                       this process does not see a device
  //   DEADLINE_EXCEEDED   the version was not there in time
  //   CANCELLED           by options.cancel
  //   FAILED_PRECONDITION the process holds memory of the other sort (revocable or not); or as Open
  //   RESOURCE_EXHAUSTED  too many requests wait, or the session has too many leases (Denial); out
  //                       of file descriptors or addresses
  //   UNIMPLEMENTED       as Open
  absl::StatusOr<Attachment> Attach(absl::string_view name, const AttachOptions& options);
  absl::StatusOr<Attachment> Attach(absl::string_view name);
  // Ends a publication of this Client's tenant: nobody attaches to it any more, and who has it
  // attached keeps it. Answers which version was the newest.
  //   NOT_FOUND          there is none that this tenant may know of
  //   PERMISSION_DENIED  it is another tenant's
  absl::StatusOr<uint64_t> Unpublish(absl::string_view name);
  // Those that this Client may attach to, by tenant and name; of one tenant, or of all (empty).
  absl::StatusOr<std::vector<PublicationInfo>> ListPublications(absl::string_view tenant = "");

  // Calls the handlers when the daemon has something to say, until the Watch ends. What was
  // lost before is told at once.
  absl::StatusOr<std::unique_ptr<Watch>> StartWatch(WatchHandlers handlers);

  absl::StatusOr<Usage> GetUsage();
  absl::StatusOr<std::vector<DeviceInfo>> Devices();

  const std::string& tenant() const;
  // Which of the daemon's rules named the tenant, in words.
  const std::string& rule() const;
  uint64_t session_id() const;
  const std::string& daemon_version() const;

 private:
  explicit Client(std::shared_ptr<internal::Session> session);
  // As Acquire and AcquireMany; where `range` is set, at options.address in it. Where it waits, it
  // minds the disturbance, and not options.cancel.
  absl::StatusOr<std::vector<Segment>> AcquireIn(std::shared_ptr<const AddressRange> range,
                                                 const AcquireOptions& options, int count,
                                                 const internal::Disturbance& disturbance);
  absl::StatusOr<std::vector<Segment>> Mapped(absl::StatusOr<internal::Grant> grant,
                                              const MapOptions& options);

  friend class Pool;
  friend absl::StatusOr<SharedBlock> OpenBlock(Client& client, absl::string_view ticket,
                                               const OpenOptions& options);
  std::shared_ptr<internal::Session> session_;
  std::unique_ptr<internal::OpenedSegments> opened_;  // for blocks of others' pools
};

}  // namespace gpumem
