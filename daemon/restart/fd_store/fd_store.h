// SPDX-License-Identifier: Apache-2.0
// The daemon's side of a service manager's FD store: sd_notify(3), sd_listen_fds(3),
// sd_notify_barrier(3), and FileDescriptorStoreMax= in systemd.service(5).
//
// The manager is systemd, or gpumem-keeper, which speaks the same protocol. It hands the stored
// descriptors to the next process when this one has died and is started again.
//
// Cost of a store: systemd compares each new descriptor with every one that it holds (kcmp(2)), in
// PID 1, before it serves any other request. Measured with systemd 252, this process sending as
// fast as it could:
//   stored before      0    1,000    3,000    9,000   one more
//   each store       0.4      1.0      2.8      7.7   ms of PID 1's time
//   each removal   0.016    0.017    0.022    0.036   ms
// 1,000 stores took 0.4 s, and 10,000 took 41 s, in which `systemctl` waited up to 21 s (alone: 10
// ms); 10,000 removals took 0.25 s. gpumem-keeper takes 0.01 ms for each, whatever it holds. So
// store few descriptors here, not one for each segment: see FdCrates.
//
// Capacity: the names come back in one environment variable of at most 128 KiB; see fd_name.h. The
// descriptors count against the limits of the manager and of the process that gets them
// (LimitNOFILE=).
//
// The manager silently drops: descriptors that it has no room for; a file that it already holds, by
// any name; messages from other processes than the service's main one (NotifyAccess=main).
// CheckRoom() finds that out.
//
// Freeing memory: if the manager closes the last descriptor of a segment, PID 1 blocks until its
// memory is cleared. So call Remove() first, then Barrier(), and close this process's descriptor
// last. Then this process frees the memory, and it is free when close returns. (Since systemd 254
// the manager closes in a separate thread, perhaps a moment after the Barrier.)
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

// Thread-safe, except FromEnvironment().
//
// Each call that speaks to the manager can also return:
//   FAILED_PRECONDITION  there was no manager when this process started
//   UNAVAILABLE          the manager is gone, for good
//   DEADLINE_EXCEEDED    it did not read, or answer, in time
//   RESOURCE_EXHAUSTED   no memory or descriptors left for a message
class FdStore {
 public:
  // Deadline for the manager to take a message. Its queue holds 512 of them at most
  // (net.unix.max_dgram_qlen under systemd), of 8 ms each in the worst case measured.
  static constexpr absl::Duration kTimeout = absl::Seconds(15);

  // Reads NOTIFY_SOCKET, LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES, FDSTORE, GPUMEM_KEEPER_PID,
  // WATCHDOG_USEC and WATCHDOG_PID from the environment. Removes them, so that no child uses them,
  // and makes the inherited descriptors close-on-exec. Call once, at the start of main(), before
  // other threads run and before other descriptors are opened.
  //
  // A manager that does not listen counts as lost(), and is no error: the daemon has to start.
  //   INVALID_ARGUMENT  the variables contradict each other or the open descriptors; nothing was
  //                     taken
  //   others            as the operating system says
  static absl::StatusOr<std::unique_ptr<FdStore>> FromEnvironment();
  // Without a manager.
  FdStore() = default;
  ~FdStore();
  FdStore(const FdStore&) = delete;
  FdStore& operator=(const FdStore&) = delete;

  // True if a manager started this process, even if it is gone now.
  bool present() const { return present_; }
  // Returns the number of descriptors that the store takes; nullopt: unknown. From $FDSTORE, which
  // gpumem-keeper and systemd 254 or newer set. A unit for an older one sets Environment=FDSTORE=
  // beside FileDescriptorStoreMax=.
  std::optional<uint64_t> capacity() const { return capacity_; }
  // Returns the pid of the gpumem-keeper that started this process; 0: none did.
  pid_t keeper_pid() const { return keeper_pid_; }

  // Returns the time without NotifyAlive() after which the manager ends this process; nullopt: no
  // watchdog (WatchdogSec= in systemd.service(5)).
  std::optional<absl::Duration> watchdog() const { return watchdog_; }

  // Returns the listening sockets (systemd.socket(5)) among the handed-over descriptors, by their
  // units' names for them. They are not stored, and the manager also keeps them: when this process
  // ends, connections wait for the next one. Call before TakeInherited(); empty the second time.
  std::vector<NamedFd> TakeListeners();
  // Returns the descriptors that the manager handed over; empty the second time. In no useful
  // order: systemd's is not the order of storing. Names can repeat.
  std::vector<NamedFd> TakeInherited();

  // Has `on_lost` called once, in a thread of this object, when the manager is gone, with an
  // UNAVAILABLE that says why. The loss is noticed when the keeper's process ends, or when any
  // message finds no receiver. Call once. on_lost must not destroy this object.
  //   RESOURCE_EXHAUSTED  no further thread
  absl::Status Watch(std::function<void(const absl::Status&)> on_lost);
  // Blocks until on_lost has returned or can never be called: the objects that it uses may then be
  // destroyed. on_lost must not call it. The destructor does it, too.
  void StopWatching();
  // True if the manager is known to be gone.
  bool lost() const { return lost_; }

  // Stores a descriptor by a name of 1 to 255 printable ASCII characters except ':'. Names may
  // repeat: Remove() then removes all of that name. Returns when the message is in the manager's
  // queue; from then on the descriptor outlives this process.
  //   INVALID_ARGUMENT  the name or the descriptor is invalid
  absl::Status Store(absl::string_view name, int fd, absl::Duration timeout = kTimeout);
  // Stores many by one name, in messages of up to 253.
  absl::Status Store(absl::string_view name, absl::Span<const int> fds,
                     absl::Duration timeout = kTimeout);

  // Removes all of this name. Returns when the message is in the manager's queue; Barrier() waits
  // for the rest.
  //   INVALID_ARGUMENT  the name is invalid
  absl::Status Remove(absl::string_view name, absl::Duration timeout = kTimeout);
  // Removes many and waits until the manager has done it. Works in portions, and rests after each
  // for as long as the portion took, so that PID 1 is half free for others. On an error some of the
  // remaining ones may be removed. `timeout` is for all of it.
  absl::Status RemoveAndWait(absl::Span<const std::string> names,
                             absl::Duration timeout = kTimeout);

  // Blocks until the manager has handled all earlier messages of this process.
  absl::Status Barrier(absl::Duration timeout = kTimeout);

  // Checks that the store takes one more descriptor: stores one for a moment and sees whether the
  // manager keeps it. Success takes some 50 ms, since newer managers close a refused one a moment
  // later.
  //   RESOURCE_EXHAUSTED  it does not: it is full, or keeps nothing for this process
  //   ABORTED             no memory or descriptors left to ask with
  absl::Status CheckRoom(absl::Duration timeout = kTimeout) ABSL_LOCKS_EXCLUDED(probe_mutex_);
  // The same for several descriptors, without those 50 ms: may miss a newer manager's refusal.
  absl::Status CheckRoomNow(size_t descriptors, absl::Duration timeout = kTimeout)
      ABSL_LOCKS_EXCLUDED(probe_mutex_);

  // Report the daemon's state, sd_notify(3). OK without a manager. STATUS= is one line: control
  // characters become spaces.
  absl::Status NotifyReady(absl::string_view status);
  // Tells a manager with a watchdog that this process lives, and its status; empty: unchanged.
  // Never waits: if the manager's queue is full, DEADLINE_EXCEEDED.
  absl::Status NotifyAlive(absl::string_view status);
  // Sends the MONOTONIC_USEC= that Type=notify-reload requires; NotifyReady() ends it.
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

  absl::Mutex probe_mutex_;  // held during a Probe: all have one name

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
