// SPDX-License-Identifier: Apache-2.0
// Demoting segments: their bytes move to host memory that GPUs map at the same addresses, and their
// device memory becomes free for others. Reads go on meanwhile, and afterwards: some 70 times
// slower, over PCIe. Promoting brings the bytes back to the device.
//
//   client->Demote(weights, {.pause = [&] { return HoldReaders(); },
//                            .proceed = [&] { LetReadersGo(); }});
//   client->Promote(weights, {.pause = …, .proceed = …, .wait = absl::Hours(1)});
//
// In contrast to suspended memory (gpumem/suspend.h), demoted memory can be used: pointers, CUDA
// graphs and tensors stay valid. It is for memory that is mostly read, and seldom. It takes pinned
// host memory of the daemon (kind host), which counts against the tenant's pinned_limit.
//
// What the program does:
// - From the call until its return no thread and no GPU work writes to the segments. What was
//   submitted before the call is waited for. Reads may go on.
// - `pause` holds the reads, and waits for those under way; `proceed` lets them go on. Between the
//   two the segments are unmapped for some milliseconds, one group of segments after another. A
//   read in that time is as bad as of a suspended segment.
//
// While a segment is demoted:
//   kind()      is kHost, and device_uuid() the daemon's device of pinned memory
//   data()      is the same as before. On the CUDA backend GPUs alone can use it
//   fd()        is of the host memory; a dma-buf of it cannot be made. Promote closes it
//   Share()     works, and earlier tickets do. A segment that others have opened cannot be promoted
//   Publish(), Client::Suspend   refused: promote it first
// cuMemGetAddressRange and the pointer's memory type differ from those of device memory. A process
// with demoted memory cannot be checkpointed by the driver.
//
// Only kind vmm can be demoted: not revocable or scratch, used by this lease alone, not published,
// and without a descriptor of fd(). A dma-buf or another duplicate that the program has made of the
// memory, for example for RDMA, keeps the old memory, and shows the old bytes: the library cannot
// know of it.
//
// All calls are all or nothing. After an error the segments are as they were, unless the message
// says otherwise: those that cannot be brought back stay demoted(), or are suspended(). It is an
// error of the driver, or of `pause`, that was called once more to undo. Resume maps the suspended
// ones, unless they are demoted as well: these can only be released.
//
// Restart of the daemon: the call goes on with the next one. If the process ends, nothing is left.
#pragma once

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gpumem/client.h"

namespace gpumem {

struct DemoteOptions {
  // Hold this process's reads of the segments, and let them go on. Both or none are set. Called in
  // the thread of the call, around each short switch of some segments, and to undo them after an
  // error. An error of `pause` ends the call, and `proceed` is not called for it. They must not
  // release or move the segments.
  //
  // Empty: the call waits for the work in the primary contexts of the GPUs that the segments are
  // mapped for before each switch. Until it returns, the program must not use the segments.
  std::function<absl::Status()> pause;
  std::function<void()> proceed;
  // So many segments are switched at a time that it takes about so long, one at least: 1.8 ms for
  // 64 MiB, 0.2 ms for 2 MiB. The time that `pause` takes is added.
  absl::Duration longest_pause = absl::Milliseconds(5);
  // For the other memory, as in AcquireOptions. More than 253 segments, or segments of several
  // sizes or devices, take several requests. Each keeps its memory while the next one waits.
  absl::Duration wait = absl::ZeroDuration();
  // Cancels the wait (CANCELLED). Nothing changes.
  std::optional<CancelToken> cancel;
  // For each answer of the daemon, counted from the end of the wait. Unset: as the Client's calls,
  // and a second for each GiB.
  std::optional<absl::Duration> timeout;
};

}  // namespace gpumem
