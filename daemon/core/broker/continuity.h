// SPDX-License-Identifier: Apache-2.0
// Keeps the broker's state outside this process, so that a successor can go on when it is killed.
//
// Changes of the ledger are journaled before any client or observer is told of them. Another
// process holds a segment's memory before a client is given it. The implementation reports errors:
// a broker without continuity goes on serving.
#pragma once

#include "absl/types/span.h"
#include "daemon/core/ids.h"
#include "daemon/core/journal/image.h"
#include "daemon/core/journal/records.h"

namespace gpumemd {

// Thread-safe.
class Continuity {
 public:
  virtual ~Continuity() = default;

  // Starts continuity. Replaces all state that was left before, and lets go of memory that is not
  // of its segments. Call once, before all other calls. Under the broker's mutex.
  //   RESOURCE_EXHAUSTED  no memory for it; the old state is unchanged, for the next daemon
  virtual absl::Status Begin(const JournalImage& image) = 0;
  // Writes one batch: all of it counts, or nothing. Under the broker's mutex; takes microseconds.
  virtual void Write(absl::Span<const journal::Change> batch) = 0;

  // Makes the memory behind a descriptor outlive this process. The caller keeps ownership of the
  // descriptor. Not under the broker's mutex: may take milliseconds. OK does not promise that the
  // memory is kept.
  //   RESOURCE_EXHAUSTED  no place for it; the segment must not be made
  virtual absl::Status Keep(SegmentId segment, int fd) = 0;
  // Undoes Keep: once it returns, only descriptors that the caller knows of keep the memory.
  // Ignores segments that are not kept. Threads and duration as for Keep.
  virtual void LetGo(absl::Span<const SegmentId> segments) = 0;
  // As above for a publication's metadata. The publication is made even if its metadata cannot be
  // kept.
  virtual void Keep(PublicationId publication, int fd) = 0;
  virtual void LetGo(PublicationId publication) = 0;
};

}  // namespace gpumemd
