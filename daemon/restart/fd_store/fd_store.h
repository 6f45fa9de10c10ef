// The daemon's side of a service manager's FD store: sd_notify(3), sd_listen_fds(3),
// sd_notify_barrier(3), and FileDescriptorStoreMax= in systemd.service(5).
//
// The manager is systemd, or gpumem-keeper, which speaks the same protocol. What it stores for
// this process it hands to the next one, when this one has died and is started again.
//
// What a store costs. systemd compares each new descriptor with every one that it holds
// (kcmp(2)), in PID 1, before it answers anybody else. Measured with systemd 252, this process
// sending as fast as it could:
//   stored before      0    1,000    3,000    9,000   one more
//   each store       0.4      1.0      2.8      7.7   ms of PID 1's time
//   each removal   0.016    0.017    0.022    0.036   ms
// 1,000 stores took 0.4 s, and 10,000 took 41 s, in which `systemctl` waited up to 21 s (alone:
// 10 ms); 10,000 removals took 0.25 s. gpumem-keeper takes 0.01 ms for each, whatever it holds.
// So keep few descriptors here, not one for each segment: see FdCrates.
//
// How many fit. The names come back in one environment variable of at most 128 KiB; see
// fd_name.h. The descriptors take their numbers in the manager and in the process that gets them
// (LimitNOFILE=).
//
// The manager drops, without a word: what it has no room for; a file that it holds already, by
// whatever name; all that comes from another process than the service's main one
// (NotifyAccess=main). CheckRoom finds that out.
//
// Who frees memory. Where the manager closes the last descriptor of a segment, PID 1 stands still
// until its memory is cleared. So Remove first, Barrier, and close your own descriptor last:
// then this process frees the memory, and it is free when close returns. (Since systemd 254 the
// manager closes in a thread of its own, perhaps a moment after the Barrier.)
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "daemon/restart/fd_store/manager_socket.h"

namespace gpumemd {

struct NamedFd {
  std::string name;
  gpumem::UniqueFd fd;
};

// Thread-safe, but for FromEnvironment.
//
// Each call that speaks to the manager can return, beside what it says:
//   FAILED_PRECONDITION  there was no manager when this process started
//   UNAVAILABLE          the manager is gone, for good
//   DEADLINE_EXCEEDED    it did not read, or answer, in time
//   RESOURCE_EXHAUSTED   no memory or descriptors left for a message
class FdStore {
 public:
  // How long a manager may take for a message. Its queue holds 512 of them at most
  // (net.unix.max_dgram_qlen under systemd), of 8 ms each in the worst case measured.
  static constexpr absl::Duration kPatience = absl::Seconds(15);

  // Reads NOTIFY_SOCKET, LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES, FDSTORE, GPUMEM_KEEPER_PID,
  // WATCHDOG_USEC and WATCHDOG_PID from the environment and removes them, so that no child takes
  // them for its own, and makes the inherited descriptors close-on-exec. To be called once, first
  // thing in main(): nothing else may run then, nor have opened descriptors that were not
  // inherited.
  //
  // A manager that does not listen is one that is lost(), no error: the daemon has to start.
  //   INVALID_ARGUMENT  the variables contradict each other or what is open; nothing was taken
  //   others            as the operating system says
  static absl::StatusOr<std::unique_ptr<FdStore>> FromEnvironment();
  // Without a manager.
  FdStore() = default;
  ~FdStore();
  FdStore(const FdStore&) = delete;
  FdStore& operator=(const FdStore&) = delete;

  // Whether this process was started by a manager, gone or not.
  bool present() const { return present_; }
  // How many descriptors the store takes ($FDSTORE; set by gpumem-keeper and by systemd 254 or
  // newer. A unit for an older one says Environment=FDSTORE= beside FileDescriptorStoreMax=);
  // nullopt: unknown.
  std::optional<uint64_t> capacity() const { return capacity_; }
  // The process of the gpumem-keeper that started this one; 0: none did.
  pid_t keeper_pid() const { return keeper_pid_; }

  // The manager ends this process when it has not heard of it for so long (NotifyAlive); nullopt:
  // it does not ask (WatchdogSec= in systemd.service(5)).
  std::optional<absl::Duration> watchdog() const { return watchdog_; }

  // Of what the manager handed to this process the sockets that listen (systemd.socket(5)), by
  // the names that their units say. They are not stored, and stay the manager's, too: who connects
  // when this process is gone waits for the next one. Before TakeInherited; nothing the second
  // time.
  std::vector<NamedFd> TakeListeners();
  // What the manager handed to this process; nothing the second time. In no useful order:
  // systemd's is not the order of storing. Names can repeat.
  std::vector<NamedFd> TakeInherited();

  // Has `on_lost` called when the manager is gone, once, in a thread of this object, with an
  // UNAVAILABLE that says why: when the keeper's process ends, or when any message finds nobody.
  // Once only. on_lost must not destroy this object.
  //   RESOURCE_EXHAUSTED  no further thread
  absl::Status Watch(std::function<void(const absl::Status&)> on_lost);
  // When this returns, on_lost has returned or will never be called: what it uses may go. Not to be
  // called by on_lost itself. The destructor does it, too.
  void StopWatching();
  // Whether the manager is known to be gone.
  bool lost() const { return lost_; }

  // Stores a descriptor by a name of 1 to 255 printable ASCII characters, no ':' among them. A
  // name can be used again: Remove then removes all that have it. Returns when the message is in
  // the manager's queue; from then on the descriptor outlives this process.
  //   INVALID_ARGUMENT  the name or the descriptor is none
  absl::Status Store(absl::string_view name, int fd, absl::Duration timeout = kPatience);
  // Many of one name in messages of up to 253.
  absl::Status Store(absl::string_view name, absl::Span<const int> fds,
                     absl::Duration timeout = kPatience);

  // Removes all of this name. Returns when the message is in the manager's queue; Barrier waits
  // for the rest.
  //   INVALID_ARGUMENT  the name is none
  absl::Status Remove(absl::string_view name, absl::Duration timeout = kPatience);
  // Removes many and waits until the manager has done it, in portions with a rest after each that
  // is as long as the portion took: PID 1 is half free for others. Of those not removed by the
  // time of an error, some may be. `timeout` is for all of it.
  absl::Status RemoveAndWait(absl::Span<const std::string> names,
                             absl::Duration timeout = kPatience);

  // Waits until the manager has handled all that was sent before by this process.
  absl::Status Barrier(absl::Duration timeout = kPatience);

  // Whether the store takes one more descriptor: stores one for a moment and sees whether the
  // manager keeps it. A yes takes some 50 ms, since newer managers close what they refuse a
  // moment later.
  //   RESOURCE_EXHAUSTED  it does not: it is full, or keeps nothing for this process
  //   ABORTED             no memory or descriptors left to ask with
  absl::Status CheckRoom(absl::Duration timeout = kPatience) ABSL_LOCKS_EXCLUDED(probe_mutex_);
  // The same of several descriptors, without those 50 ms: a newer manager's refusal may be missed.
  absl::Status CheckRoomNow(size_t descriptors, absl::Duration timeout = kPatience)
      ABSL_LOCKS_EXCLUDED(probe_mutex_);

  // Words about the daemon's state, sd_notify(3). Without a manager they go to nobody, and
  // that is OK. STATUS= is one line: control characters become spaces.
  absl::Status NotifyReady(absl::string_view status);
  absl::Status NotifyStatus(absl::string_view status);
  // That this process lives, which a manager with a watchdog wants to hear, and how it does;
  // empty: no news of that. Never waits: where the manager's queue is full, DEADLINE_EXCEEDED.
  absl::Status NotifyAlive(absl::string_view status);
  // With the MONOTONIC_USEC= that Type=notify-reload wants; NotifyReady ends it.
  absl::Status NotifyReloading();
  absl::Status NotifyStopping(absl::string_view status);

 private:
  absl::Status Send(absl::string_view message, absl::Span<const int> fds, absl::Time deadline);
  absl::Status Notify(absl::string_view message);
  absl::Status BarrierUntil(absl::Time deadline);
  absl::Status Probe(size_t descriptors, absl::Duration refusal_time, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(probe_mutex_);
  void MarkLost(const absl::Status& why);
  void WatchLoop();

  bool present_ = false;
  std::optional<uint64_t> capacity_;
  std::optional<absl::Duration> watchdog_;
  std::optional<ManagerSocket> socket_;
  pid_t keeper_pid_ = 0;
  gpumem::UniqueFd keeper_;  // pidfd

  absl::Mutex probe_mutex_;  // over a Probe: all have one name

  std::atomic<bool> lost_ = false;
  absl::Mutex mutex_;
  absl::Status why_lost_ ABSL_GUARDED_BY(mutex_);
  std::vector<NamedFd> inherited_ ABSL_GUARDED_BY(mutex_);

  // Of Watch's thread.
  gpumem::UniqueFd wake_;  // eventfd: lost_ or stop_ has been set
  std::atomic<bool> stop_ = false;
  std::function<void(const absl::Status&)> on_lost_;
  std::thread watcher_;
};

}  // namespace gpumemd
