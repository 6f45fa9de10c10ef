// SPDX-License-Identifier: Apache-2.0
// Suspending segments: their bytes move to the daemon's host tier, their device memory becomes free
// for others, and their addresses in this process stay reserved. Resuming brings the bytes back to
// the same addresses, so that pointers stay valid.
//
//   std::vector<gpumem::Segment*> all = …;
//   client->Suspend(all);                          // the GPU is free; the process keeps its state
//   client->Resume(all, {.wait = absl::Hours(1)}); // the same bytes at the same addresses
//
// Only kind vmm can be suspended. All calls are all or nothing.
//
// Scratch memory (AcquireOptions::scratch) gives its bytes up when it is suspended: that takes no
// room in the tier and no copy. Resume brings zeroed memory to the same addresses. Only what never
// left its device keeps its bytes: another session still used it, or Suspend has failed.
//
// While a segment is suspended:
//   data()      returns the reserved address. A use of the memory is an error of the program. On
//               the host backend the process gets SIGSEGV. With CUDA, copies and memsets fail at
//               once. A kernel fails with an illegal address, and from then on every CUDA call of
//               the process fails.
//   Share()     works. The ticket opens the memory once it is resumed; until then Open returns
//               FAILED_PRECONDITION
//   fd()        FAILED_PRECONDITION. Suspend closes a descriptor that it returned earlier, also
//               if Suspend then fails
//   Publish()   FAILED_PRECONDITION
//   Release(), destructor   end the lease, drop the bytes and return the addresses
//
// Memory stays on its device as long as anything else holds it: another session, a second lease of
// this session, a descriptor that the program has duplicated, or a dma-buf.
//
// Several threads may suspend different segments of one Client. Only the newest reservation of a
// Client counts, so that a Suspend at the same time as another may be refused after its quiesce;
// then it changes nothing.
//
// Restart of the daemon: suspended segments survive it as all leases do, if their bytes do. Resume
// returns FAILED_PRECONDITION for a segment that is lost (SegmentsLost). If the session ends while
// segments are suspended, their bytes are lost.
//
// Pool::Suspend and Pool::Resume (pool.h) do the same for all memory of a pool.
//
// An operator can have a process suspend, and resume, by gpumemctl suspend. The program opts in:
//
//   auto served = client->ServeSuspensions({.segments = [&] { return all; },
//                                           .quiesce = [&] { return StopWork(); },
//                                           .resumed = [&] { StartWork(); }});
//
// The operator may name a tag (AcquireOptions::tag), and means the segments with that tag alone.
// SuspensionHandlers::pools names pools in the same way.
//
// If the tenant's quota or SuspensionHandlers::swappable allows it, the daemon also asks such a
// process to suspend when another request waits for the memory, or when it is idle for long. Then
// the program resumes by itself: `suspended` tells it, and Resume waits for its turn.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gpumem/client.h"

namespace gpumem {

class Pool;  // gpumem/pool.h

struct SuspendOptions {
  // Stops this process's use of the segments. Called in the thread of Suspend, after the daemon has
  // reserved the room and before the memory is unmapped. When it returns OK, no thread and no GPU
  // work uses the memory until Resume. On an error Suspend changes nothing and returns the error.
  // It must not release or move the segments.
  //
  // Empty: on the CUDA backend Suspend waits for the work in the primary contexts (the CUDA
  // runtime's) of the GPUs that the segments are mapped for. It does not see other contexts, and it
  // does not stop other threads: work that they launch meanwhile fails with an illegal address.
  std::function<absl::Status()> quiesce;
  // For each answer of the daemon. Unset: as the Client's calls, and a second for each GiB.
  std::optional<absl::Duration> timeout;
};

struct ResumeOptions {
  // As in AcquireOptions. More than 1,024 segments take several calls to the daemon, and so do
  // segments of several devices. If a later one waits for long, the earlier ones are undone and all
  // begins again, until the wait is over. So two processes that each hold a part go on.
  absl::Duration wait = absl::ZeroDuration();
  // Cancels the wait (CANCELLED). The segments stay suspended.
  std::optional<CancelToken> cancel;
  // For each answer of the daemon, counted from the end of the wait. Unset: as in SuspendOptions.
  std::optional<absl::Duration> timeout;
};

// Who asks a program to suspend.
enum class SuspensionCause {
  kOperator,      // an operator, who also asks to resume
  kMemoryNeeded,  // another request waits for the memory; the program resumes by itself
  kIdle,          // the session was idle for the quota's idle_suspend; the same
};

// A request to a program.
struct SuspensionRequest {
  bool resume = false;  // false: suspend
  std::string tag;      // of the segments that are meant; empty: all memory
  absl::Duration left;  // until the request ends; above zero
  SuspensionCause cause = SuspensionCause::kOperator;
};

// How a program is suspended and resumed by others (Client::ServeSuspensions). One of `segments`,
// `pools` and `serve` is required.
//
// All calls come from one thread of the Watch, which also makes the library's Suspend and Resume,
// Demote and Promote. While one of these is under way, no other thread may use, move or destroy the
// segments and pools; reads of memory that is demoted or promoted go on (gpumem/demote.h). The
// Watch's destructor waits for it. The program may suspend and resume by
// itself, too: memory in the wanted state is left as it is.
//
// The operator's call succeeds once all leases of the session that can be suspended are, also those
// that `segments` and `pools` leave out.
struct SuspensionHandlers {
  // Returns the segments to suspend or to resume, of this Client. They belong to the program. The
  // library leaves out those with another tag than the operator names.
  std::function<std::vector<Segment*>()> segments;
  // Returns the pools to suspend or to resume: those of kind vmm that lease by this Client. Not
  // called if the operator names a tag, since a pool's segments have none. All memory is suspended
  // and resumed, or none: if a later pool refuses, the earlier ones are brought back.
  std::function<std::vector<Pool*>()> pools;
  // As SuspendOptions::quiesce. Not called if all is suspended already. If there are pools, it is
  // called first, also before a refusal: a pool that is about to be suspended allocates nothing.
  std::function<absl::Status()> quiesce;
  // All that was asked for is suspended. Must not call Suspend or Resume. After another cause than
  // kOperator another thread of the program calls Resume once it needs the memory.
  std::function<void(SuspensionCause cause)> suspended;
  // All that was asked for is back: the program may go on. If the operator has named a tag, others
  // may be suspended still (Segment::suspended()). Called after an operator's request only.
  std::function<void()> resumed;
  // Suspend or Resume, or Demote or Promote has failed, with its status. Segments and pools that
  // are not suspended() can be used: after a failed Suspend the program goes on. The operator
  // learns only that time has passed.
  std::function<void(const absl::Status&)> failed;
  // Both set: operators can demote and promote the segments, too (gpumemctl demote). As in
  // DemoteOptions (gpumem/demote.h). Nothing writes to the segments while they are demoted or
  // promoted: that begins with the call of `demotable`. Called by the same thread.
  std::function<absl::Status()> pause;
  std::function<void()> proceed;
  // Returns the segments to demote or to promote: only such that the program does not write to. All
  // or none of them change; one that others use, too, is refused, and all with it. Unset: those of
  // `segments` that can be demoted. The library leaves out those with another tag than the operator
  // names.
  std::function<std::vector<Segment*>()> demotable;
  // Called last for each request, also if there was nothing to do: the library no longer uses the
  // segments and pools. A program that locks them in `segments`, and in `demotable`, which is
  // called in its place, unlocks them here. `pause` is called in between: it takes another lock.
  std::function<void()> done;
  // As WatchHandlers::ended.
  std::function<void(const absl::Status&)> ended;
  // True or false: others than operators may ask, or may not, whatever the tenant's quota says
  // (swappable). Unset: the quota decides.
  std::optional<bool> swappable;
  // In place of all others but `ended` and `swappable`: serves the request by calls such as
  // Pool::Suspend, and returns when that is done or has failed.
  std::function<void(const SuspensionRequest&)> serve;
};

}  // namespace gpumem
