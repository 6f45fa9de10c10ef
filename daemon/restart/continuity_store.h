// SPDX-License-Identifier: Apache-2.0
// State that survives the daemon: the journal, and the descriptors of the segments' memory, both in
// the service manager's FD store.
//
// The journal is one descriptor of the store; StorePlaces has the others. If the store fails, the
// daemon continues, and the log and `gpumemctl status` say that its next death will cost memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/unique_fd.h"
#include "daemon/core/broker/continuity.h"
#include "daemon/restart/fd_store/fd_name.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "daemon/restart/journal_file.h"
#include "daemon/restart/store_places.h"

namespace gpumemd {

// The treatment of a new segment for which the store has no place.
enum class WhenStoreFull {
  kWarn,    // it is made, and lost with the daemon
  kRefuse,  // it is not made
};

// Thread-safe, except TakeFound().
class ContinuityStore final : public Continuity {
 public:
  ~ContinuityStore() override;
  // Finds the state of an earlier daemon in the store, or begins anew. `store` outlives this.
  //   DATA_LOSS            the journal is damaged
  //   FAILED_PRECONDITION  a newer daemon wrote it, and this one does not understand it
  // Both leave everything as it is, and their messages have advice.
  //   RESOURCE_EXHAUSTED   no memory, or no descriptors left
  //   UNAVAILABLE          the service manager is gone
  static absl::StatusOr<std::unique_ptr<ContinuityStore>> Open(
      FdStore* store, WhenStoreFull when_full = WhenStoreFull::kWarn);

  // Returns the found state; call once. Without a journal, both are empty.
  struct Found {
    JournalImage image;
    absl::flat_hash_map<SegmentId, gpumem::UniqueFd> memory;
    absl::flat_hash_map<PublicationId, gpumem::UniqueFd> metadata;
    // True if the pids in the image are of another PID namespace, and so mean nothing here.
    bool strange_pids = false;
  };
  Found TakeFound();

  // Returns the file of an earlier daemon's host tier if the found state has segments in it. Else
  // lets the file go, and returns an invalid descriptor. Call before TakeFound() and Begin().
  gpumem::UniqueFd TakeTierFile() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the file of this daemon's host tier outlive it, in place of that of an earlier one. Call
  // before Begin(). May take milliseconds.
  void KeepTierFile(int fd) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the number of daemons so far, this one included.
  uint32_t generation() const { return generation_; }
  // True if the descriptors in the store outlive this daemon: no fault of the manager or the
  // journal is known. A full store keeps the descriptors that it has.
  bool keeps_memory() const ABSL_LOCKS_EXCLUDED(mutex_);
  // As keeps_memory(), and the manager was also seen to keep a descriptor. Waits a moment for that.
  bool SeenToKeep() const ABSL_LOCKS_EXCLUDED(mutex_);
  // True if the last descriptor to be kept found no place, and none was released since.
  bool full() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the present problems, in sentences for the operator.
  std::vector<std::string> Notices() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of segments, and publications' metadata, that the store did not take and
  // that are lost when this daemon dies.
  size_t unkept() const ABSL_LOCKS_EXCLUDED(mutex_);
  // places: capacity of the store; 0: unknown. used_places: those that this daemon uses, by its
  // count.
  uint64_t places() const { return store_->capacity().value_or(0); }
  uint64_t used_places() const { return places_.used(); }

  absl::Status Begin(const JournalImage& image) override;
  void Write(absl::Span<const journal::Change> batch) override;
  absl::Status Keep(SegmentId segment, int fd) override;
  void LetGo(absl::Span<const SegmentId> segments) override;
  void Keep(PublicationId publication, int fd) override;
  void LetGo(PublicationId publication) override;

 private:
  ContinuityStore(FdStore* store, WhenStoreFull when_full)
      : store_(store), when_full_(when_full), places_(*store) {}
  // Makes this daemon's journal.
  absl::Status CreateJournal(const JournalIdentity& identity, std::string* name);
  void CheckRoom() ABSL_LOCKS_EXCLUDED(mutex_);
  // Remembers the facts of an outcome that concern an operator.
  void Note(const std::string& name, const StorePlaces::Outcome& outcome)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteFull(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string FullNotice() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string UnkeptNotice() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo(absl::Span<const std::string> names);
  // Logs each kind of trouble once, until it is over.
  void Tell(std::string* trouble, std::string sentence) ABSL_LOCKS_EXCLUDED(mutex_);

  FdStore* const store_;
  const WhenStoreFull when_full_;
  StorePlaces places_;
  // Names that are released once the state is in this daemon's journal.
  std::vector<std::string> old_journals_, strange_;
  // A journal without state yet. The destructor removes it from the store: repeated failed starts
  // would otherwise fill the store.
  std::string empty_journal_;
  std::unique_ptr<JournalFile> file_;  // under the broker's mutex
  uint32_t generation_ = 1;
  bool inherits_ = false;  // a journal of an earlier daemon was found
  Found found_;
  std::vector<FdName> stored_;  // in the crates at the start
  gpumem::UniqueFd tier_file_;  // of an earlier daemon, until it is taken or let go
  bool keeps_tier_file_ = false;

  std::thread room_;  // asks the manager whether it keeps descriptors at all
  absl::Notification room_asked_;
  std::atomic<bool> seen_to_keep_ = false;

  mutable absl::Mutex mutex_;
  std::string manager_trouble_ ABSL_GUARDED_BY(mutex_);
  std::string journal_trouble_ ABSL_GUARDED_BY(mutex_);
  std::string memory_trouble_ ABSL_GUARDED_BY(mutex_);
  std::string removal_trouble_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> unkept_ ABSL_GUARDED_BY(mutex_);  // names
  std::string why_unkept_ ABSL_GUARDED_BY(mutex_);                   // the last of them
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point full_told_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumemd
