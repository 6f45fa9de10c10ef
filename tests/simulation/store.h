// SPDX-License-Identifier: Apache-2.0
// The simulated service manager's store: the journal's bytes, and descriptors. And a daemon's way
// to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/core/broker/continuity.h"
#include "daemon/core/broker/options.h"
#include "daemon/core/journal/table.h"
#include "tests/simulation/driver.h"

namespace gpumemd::simulation {

// Outlives daemons.
struct Store {
  std::vector<uint8_t> journal;  // empty: there is none yet
  std::map<SegmentId, MemoryPtr> memory;
  std::map<PublicationId, gpumem::UniqueFd> metadata;
  size_t places = SIZE_MAX;  // for descriptors of segments
  bool refuses = true;  // without a place a segment is not made; else it is lost with its daemon
  std::set<SegmentId> unkept;
  uint64_t batches = 0;  // written in all
};

// How a daemon is killed within a write.
struct Tear {
  bool counts = false;  // the batch counts: the kill comes after the store of its number
  uint64_t at = 0;      // how far the copying had come, modulo what there is
};

class StoreHost : public DeviceHost {
 public:
  // A moment at which the daemon may be killed. Other threads do not run: it holds the mutex.
  virtual bool Moment(const char* where) = 0;
  // Returns where in the next write the daemon is to be killed, if it is.
  virtual std::optional<Tear> TearsWrite() = 0;
};

// A daemon's way to the store.
class StoreLink final : public Continuity {
 public:
  StoreLink(Store* store, StoreHost* host) : store_(*store), host_(*host) {}

  // Reads what the last daemon left; an empty image if there was none.
  absl::StatusOr<JournalImage> Open();

  absl::Status Begin(const JournalImage& image) override;
  void Write(absl::Span<const journal::Change> batch) override;
  absl::Status Keep(SegmentId segment, int fd) override;
  void LetGo(absl::Span<const SegmentId> segments) override;
  void Keep(PublicationId publication, int fd) override;
  void LetGo(PublicationId publication) override;

  // The daemon dies in the midst of what it does: what it has written of the journal counts.
  void Died();

  // The driver in which descriptors are looked up.
  Driver* driver = nullptr;

 private:
  void Reach(size_t end);
  void Append(absl::Span<const journal::Change> batch);
  // Runs `write`, which writes to the journal, up to the daemon's death.
  void UpToDeath(absl::FunctionRef<void()> write);

  Store& store_;
  StoreHost& host_;
  std::optional<JournalTable> table_;
  bool writing_ = false;
  std::optional<std::vector<uint8_t>> at_death_;  // the journal
};

}  // namespace gpumemd::simulation
