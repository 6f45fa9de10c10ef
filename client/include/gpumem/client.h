// SPDX-License-Identifier: Apache-2.0
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

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpumem/event.h"
#include "gpumem/segment.h"
#include "gpumem/tenant.h"
#include "gpumem/types.h"
#include "gpumem/watch.h"

namespace gpumem {

namespace internal {
class ArrivalMapper;
struct Disturbance;
class Grant;
class OpenedSegments;
class Session;
}  // namespace internal

class AddressRange;
struct MapOptions;

class Attachment;  // these: gpumem/publication.h
struct AttachedOrClaimed;
struct AttachOptions;
struct PublicationInfo;
struct PublishOptions;

class Pool;  // these two: gpumem/pool.h
class SharedBlock;

struct DemoteOptions;  // gpumem/demote.h

struct ResumeOptions;  // these three: gpumem/suspend.h
struct SuspendOptions;
struct SuspensionHandlers;

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

  // Waits until the daemon knows of the Segments that were destroyed: a second or so at most.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Acquires a new segment and maps it.
  //   INVALID_ARGUMENT    zero bytes, or more than any device has; an address that is no multiple
  //                       of 2 MiB; a name that fits several devices; map_devices names a device
  //                       that is no GPU. Also a malformed tag, or scratch memory of a kind other
  //                       than vmm
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
  //   FAILED_PRECONDITION a segment is another tenant's, is revocable, scratch, lost or suspended,
  //                       or is of a kind other than vmm and pinned
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
  //   RESOURCE_EXHAUSTED  too many requests wait, or the session has too many leases (Denial); the
  //                       publication is suspended and there is no room, also after the wait; out
  //                       of file descriptors or addresses
  //   UNIMPLEMENTED       as Open
  absl::StatusOr<Attachment> Attach(absl::string_view name, const AttachOptions& options);
  absl::StatusOr<Attachment> Attach(absl::string_view name);
  // Attaches to the newest version of the name if it has this content id (1 to 64 bytes of any
  // value; PublishOptions::content_id). Else returns the claim on (name, content_id), if no session
  // of the tenant has it: the caller is to load the contents and publish them. Else waits, for as
  // long as options.wait, until the session with the claim publishes them, and attaches; or until
  // that session gives the claim up or ends. Then the first that waits gets it. A thread waits for
  // a claim of its session, too. Other contents under the name are never attached to. A session can
  // have, and wait for, 64 claims.
  //   INVALID_ARGUMENT    options.wait_for_version is set; a malformed content id; or as Attach
  //   NOT_FOUND           the name is another tenant's, which has no publication of these contents
  //                       that this tenant may attach to; or as Attach
  //   DEADLINE_EXCEEDED   another session has the claim, also after the wait
  //   RESOURCE_EXHAUSTED  the session or the tenant has too many claims (Denial); or as Attach
  //   UNIMPLEMENTED       the daemon is too old; or as Attach
  //   and else as Attach
  absl::StatusOr<AttachedOrClaimed> AttachOrClaim(absl::string_view name,
                                                  absl::string_view content_id,
                                                  const AttachOptions& options);
  absl::StatusOr<AttachedOrClaimed> AttachOrClaim(absl::string_view name,
                                                  absl::string_view content_id);
  // Ends a publication of this Client's tenant. New attachments fail; existing attachments stay.
  // Returns the newest version.
  //   NOT_FOUND          there is none that this tenant may see
  //   PERMISSION_DENIED  it is another tenant's
  absl::StatusOr<uint64_t> Unpublish(absl::string_view name);
  // Lists what this Client may attach to, of one tenant or all (empty), by tenant and name.
  absl::StatusOr<std::vector<PublicationInfo>> ListPublications(absl::string_view tenant = "");

  // Suspends one or more segments of kind vmm, all or none (gpumem/suspend.h): moves their bytes to
  // the host tier and frees their device memory. On an error the segments stay as they were, unless
  // the message says otherwise: if they can be neither suspended nor mapped again, they are
  // suspended(). More than 1024 segments take several calls to the daemon. If it refuses a later
  // one, the memory of the earlier ones has moved and comes back.
  //   INVALID_ARGUMENT    no segments, or one twice; or a Segment that is not this Client's, or not
  //                       valid
  //   UNIMPLEMENTED       a segment is of another kind; or the daemon is too old
  //   FAILED_PRECONDITION a segment is suspended already, lost (SegmentsLost) or being revoked; or
  //                       it belongs to another tenant; or the daemon has no host tier; or a quota
  //                       of the tenant forbids it
  //   RESOURCE_EXHAUSTED  the host tier has no room, or not for this tenant (Denial)
  //   INTERNAL            GPU work of this process has failed, or is being captured
  //   UNAVAILABLE         the bytes could not be copied
  //   and the errors of SuspendOptions::quiesce
  absl::Status Suspend(absl::Span<Segment* const> segments, const SuspendOptions& options);
  absl::Status Suspend(absl::Span<Segment* const> segments);
  // Brings suspended segments back, all or none: the same bytes at the same addresses, with the
  // same access. segment_id() may change. On an error all stay suspended(). Segments of several
  // devices are resumed one device after another; if a later one fails, the earlier ones are
  // suspended again.
  //   INVALID_ARGUMENT    as Suspend; or the wait is below zero
  //   FAILED_PRECONDITION a segment is not suspended, or is lost (SegmentsLost)
  //   RESOURCE_EXHAUSTED  a quota or the device stands in the way, also after the wait (Denial); or
  //                       this process is out of file descriptors or memory
  //   CANCELLED           by options.cancel
  //   UNAVAILABLE         the bytes could not be copied
  absl::Status Resume(absl::Span<Segment* const> segments, const ResumeOptions& options);
  absl::Status Resume(absl::Span<Segment* const> segments);

  // Moves the bytes of segments of kind vmm to host memory at the same addresses, all or none
  // (gpumem/demote.h), and frees their device memory. Reads go on, slower.
  //   INVALID_ARGUMENT    no segments, or one twice; or a Segment that is not this Client's, or not
  //                       valid; or options without sense
  //   UNIMPLEMENTED       a segment is of another kind; the machine or the daemon has no memory of
  //                       kind host
  //   FAILED_PRECONDITION a segment is demoted already, suspended, revocable, scratch or lost
  //                       (SegmentsLost); other sessions or leases use it, or a publication; the
  //                       program has its descriptor (fd()); or it is another tenant's
  //   RESOURCE_EXHAUSTED  the host memory has no room, or not for this tenant, also after the wait
  //                       (Denial); or this process is out of addresses or memory
  //   CANCELLED           by options.cancel
  //   INTERNAL            GPU work of this process has failed, or is being captured
  //   UNAVAILABLE         a segment is being copied by the daemon
  //   and the errors of DemoteOptions::pause
  absl::Status Demote(absl::Span<Segment* const> segments, const DemoteOptions& options);
  absl::Status Demote(absl::Span<Segment* const> segments);
  // Moves the bytes of demoted segments back to their devices, at the same addresses, all or none.
  // Waits in the queue of the device as Acquire. Statuses as of Demote, for the device's memory.
  absl::Status Promote(absl::Span<Segment* const> segments, const DemoteOptions& options);
  absl::Status Promote(absl::Span<Segment* const> segments);

  // Lets operators suspend and resume this process (gpumemctl suspend), or demote and promote it,
  // until the Watch ends, and the daemon suspend it if the tenant is swappable: SuspensionHandlers
  // (gpumem/suspend.h). It counts as a watch. The daemon learns of it soon after the call; until
  // then it refuses operators.
  //   INVALID_ARGUMENT  the handlers have none of `segments`, `pools` and `serve`; or one of
  //   `pause`
  //                     and `proceed` alone, or with `serve`
  absl::StatusOr<std::unique_ptr<Watch>> ServeSuspensions(SuspensionHandlers handlers);
  // Tells the daemon that the program uses its memory now, so that others are asked to suspend
  // first. Calls for segments tell that, too. Cheap: makes one call a second at most, waits for at
  // most 100 ms, and ignores errors.
  void ReportActivity();

  // Calls the handlers for events of the daemon until the Watch ends. Reports earlier lost segments
  // at once.
  absl::StatusOr<std::unique_ptr<Watch>> StartWatch(WatchHandlers handlers);

  // Makes a tenant under this Client's, which holds what runs in it to the limits. Returns its
  // whole name: processes of this user connect to it with ConnectOptions::tenant or $GPUMEM_TENANT.
  // What it uses counts against this Client's tenant, too. It ends with this Client's session,
  // unless it is lasting, or by EndTenant; one without a name is another at each call. A lasting
  // one that is there already, with the same limits, is no error.
  //   INVALID_ARGUMENT    a malformed name, or one that is too long with this tenant's; none, for a
  //                       lasting tenant
  //   NOT_FOUND           no such device
  //   ALREADY_EXISTS      another session has made it, or it was made with other limits, or it has
  //                       ended and still holds something
  //   PERMISSION_DENIED   the priority is above that of this tenant
  //   FAILED_PRECONDITION this tenant has ended; or it is on the lowest level already
  //   RESOURCE_EXHAUSTED  the user, the tenant or the daemon has too many such tenants (Denial)
  //   UNIMPLEMENTED       the daemon is older than the call, or than lasting tenants
  absl::StatusOr<std::string> CreateTenant(const TenantOptions& options = {});
  // Changes the limits that are present, and removes those of the fields of TenantLimits that
  // `clear` names, such as "limit_bytes". Either drops the limits of single GPUs with limit_bytes.
  // Revokes nothing.
  //   NOT_FOUND           this user's sessions of this tenant have made none of that name
  //   INVALID_ARGUMENT    no limit is present or named, or it is none that can be cleared
  //   FAILED_PRECONDITION it has ended
  //   PERMISSION_DENIED   as CreateTenant
  absl::Status UpdateTenant(absl::string_view tenant, const TenantLimits& limits,
                            absl::Span<const std::string> clear = {});
  // Ends a tenant that CreateTenant has made, and all that were made under it: they get no new
  // session and no new memory. What they hold stays until it is released. Returns what that is;
  // call it again to see it go. A tenant that is gone, or that this user has not made, is no error.
  absl::StatusOr<TenantRemains> EndTenant(absl::string_view tenant);
  // Returns the tenants that this user's programs have made under this Client's, on all levels, by
  // name: 64 at most.
  absl::StatusOr<std::vector<MadeTenant>> ListTenants();

  absl::StatusOr<Usage> GetUsage();
  // Returns the tenant's limit and free bytes on a device, as GetUsage does. Takes no call where
  // the daemon offers its page, but for the first of a connection: a fraction of a microsecond.
  // Acquires and releases of this client that have returned are in it; those of others within some
  // milliseconds. Takes a call otherwise.
  //   NOT_FOUND            there is no such device
  //   FAILED_PRECONDITION  in a child after fork()
  absl::StatusOr<DeviceMemory> GetMemory(absl::string_view device_uuid);
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
                                              internal::ArrivalMapper& mapper);
  template <typename Answered>
  absl::StatusOr<Attachment> MapAttached(Answered attached, internal::ArrivalMapper& mapper);

  friend class Pool;
  friend absl::StatusOr<SharedBlock> OpenBlock(Client& client, absl::string_view ticket,
                                               const OpenOptions& options);
  std::shared_ptr<internal::Session> session_;
  std::unique_ptr<internal::OpenedSegments> opened_;  // for blocks of other sessions' pools
};

}  // namespace gpumem
