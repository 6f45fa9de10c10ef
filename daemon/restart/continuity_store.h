// What the daemon leaves behind: the journal, and the descriptors of the segments' memory, both in
// the service manager's FD store.
//
// The journal is one descriptor of the store. Those of the segments lie in crates where systemd is
// the manager (fd_crates.h); gpumem-keeper takes each by itself, as long as it has places.
// Where the store fails, the daemon goes on, and the log and `gpumemctl status` say that its next
// death will cost memory. A manager drops what it has no place for without a word. So places are
// counted where their number is known, and before each new crate the manager is asked for them.
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
#include "daemon/restart/fd_store/fd_crates.h"
#include "daemon/restart/fd_store/fd_name.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "daemon/restart/journal_file.h"

namespace gpumemd {

// What happens to a new segment for which the store has no place.
enum class WhenStoreFull {
  kWarn,    // it is made, and lost with the daemon
  kRefuse,  // it is not made
};

// Thread-safe, but for TakeFound.
class ContinuityStore final : public Continuity {
 public:
  ~ContinuityStore() override;
  // Finds in the store what an earlier daemon has left, or begins anew. `store` outlives this.
  //   DATA_LOSS            the journal is damaged
  //   FAILED_PRECONDITION  a newer daemon wrote it, and this one does not understand it
  // Both leave everything as it is, and say what helps.
  //   RESOURCE_EXHAUSTED   no memory, or no descriptors left
  //   UNAVAILABLE          the service manager is gone
  static absl::StatusOr<std::unique_ptr<ContinuityStore>> Open(
      FdStore* store, WhenStoreFull when_full = WhenStoreFull::kWarn);

  // What was found; once. Without a journal, both are empty.
  struct Found {
    JournalImage image;
    absl::flat_hash_map<SegmentId, gpumem::UniqueFd> memory;
    absl::flat_hash_map<PublicationId, gpumem::UniqueFd> metadata;
    // The pids in the image mean nothing here: they are of another PID namespace.
    bool strange_pids = false;
  };
  Found TakeFound();

  // How many daemons there have been, this one included.
  uint32_t generation() const { return generation_; }
  // True if the descriptors in the store outlive this daemon: no fault of the manager or the
  // journal is known. A full store keeps the descriptors that it has.
  bool keeps_memory() const ABSL_LOCKS_EXCLUDED(mutex_);
  // As keeps_memory, where the manager was also seen to keep something. Waits a moment for that.
  bool SeenToKeep() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The last that was to be kept found no place, and nothing was let go since.
  bool full() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What is wrong with it now, in sentences for the operator.
  std::vector<std::string> Notices() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Segments, and publications' metadata, that exist and are lost when this daemon dies, since the
  // store did not take them.
  size_t unkept() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Capacity of the store, in places; 0: unknown. used_places: how many this daemon uses, as it
  // counts them.
  uint64_t places() const { return store_->capacity().value_or(0); }
  uint64_t used_places() const ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Begin(const JournalImage& image) override;
  void Write(absl::Span<const journal::Change> batch) override;
  absl::Status Keep(SegmentId segment, int fd) override;
  void LetGo(absl::Span<const SegmentId> segments) override;
  void Keep(PublicationId publication, int fd) override;
  void LetGo(PublicationId publication) override;

 private:
  ContinuityStore(FdStore* store, WhenStoreFull when_full)
      : store_(store), when_full_(when_full), crates_(*store) {}
  // The journal of this daemon's own.
  absl::Status CreateJournal(const JournalIdentity& identity, std::string* name);
  void CheckRoom() ABSL_LOCKS_EXCLUDED(mutex_);
  // What became of what was to be kept.
  struct Outcome {
    absl::Status status;  // OK: it is
    bool full = false;    // it is not, since the store has no place for it
  };
  Outcome Put(const std::string& name, int fd) ABSL_LOCKS_EXCLUDED(crates_mutex_, mutex_);
  bool TakeDirectPlace(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes a crate, where all are full.
  Outcome MakeRoom() ABSL_LOCKS_EXCLUDED(crates_mutex_);
  Outcome CheckPlacesOfACrate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(crates_mutex_);
  bool HasPlace() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Remembers what of it an operator has to know.
  void Note(const std::string& name, const Outcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteFull(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string FullNotice() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string UnkeptNotice() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo(absl::Span<const std::string> names);
  // Once for each sort of trouble, until it is over.
  void Tell(std::string* trouble, std::string sentence) ABSL_LOCKS_EXCLUDED(mutex_);

  FdStore* const store_;
  const WhenStoreFull when_full_;
  // From the question whether there are places for a crate to the crate. Not for what has room in
  // one that there is.
  absl::Mutex crates_mutex_;
  Outcome no_crate_ ABSL_GUARDED_BY(crates_mutex_);  // of the last question; holds until then:
  std::chrono::steady_clock::time_point ask_again_ ABSL_GUARDED_BY(crates_mutex_);
  FdCrates crates_;
  // How many descriptors go to the manager itself; crates hold the rest, and need places of it,
  // too.
  uint64_t direct_room_ = 0;
  // Names that are let go when the state is in this daemon's journal.
  std::vector<std::string> old_journals_, strange_;
  // A journal that nothing has begun yet: without that it goes with this object.
  std::string empty_journal_;
  std::unique_ptr<JournalFile> file_;  // under the broker's mutex
  uint32_t generation_ = 1;
  bool inherits_ = false;  // a journal of an earlier daemon was found
  Found found_;
  std::vector<FdName> stored_;  // that the crates had at the start

  std::thread room_;  // asks the manager whether it keeps anything at all
  absl::Notification room_asked_;
  std::atomic<bool> seen_to_keep_ = false;

  mutable absl::Mutex mutex_;
  absl::flat_hash_set<std::string> direct_ ABSL_GUARDED_BY(mutex_);  // names that went directly
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
