// SPDX-License-Identifier: Apache-2.0
// Events that the daemon sends to a session: Client::StartWatch (gpumem/client.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gpumem/types.h"

namespace gpumem {

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

}  // namespace gpumem
