// What a broker leaves behind as it goes, so that another can go on when this process is killed.
//
// The ledger's changes are written down before anybody is told of what they made so, and the memory
// of a segment is kept by somebody else before anybody is given it. Errors are the implementation's
// to tell of: a broker that cannot be survived any more serves all the same.
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

  // From here on. All that was left behind before is replaced by this; memory that is not of its
  // segments is let go. Once, before all other calls. Under the broker's mutex.
  //   RESOURCE_EXHAUSTED  no memory for it; what was left behind is as it was, for the next daemon
  virtual absl::Status Begin(const JournalImage& image) = 0;
  // One batch: all of it counts, or nothing. Under the broker's mutex; takes microseconds.
  virtual void Write(absl::Span<const journal::Change> batch) = 0;

  // The memory behind a descriptor outlives this process. The descriptor stays the caller's. Not
  // under the broker's mutex: may take milliseconds.
  //   RESOURCE_EXHAUSTED  there is no place for it, and no segment is to be made without one
  // OK does not say that it is kept.
  virtual absl::Status Keep(SegmentId segment, int fd) = 0;
  // It does so no longer: when this returns, only descriptors that the caller knows of keep it.
  // Segments that nobody keeps are no error. As Keep.
  virtual void LetGo(absl::Span<const SegmentId> segments) = 0;
  // The same of a publication's metadata, which is made in any case.
  virtual void Keep(PublicationId publication, int fd) = 0;
  virtual void LetGo(PublicationId publication) = 0;
};

}  // namespace gpumemd
