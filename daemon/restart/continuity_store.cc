// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/continuity_store.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/failpoint.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

constexpr char kJournalKind = 'j';
constexpr char kSegmentKind = 's';
constexpr char kMetadataKind = 'm';
constexpr char kTierKind = 't';
// There is one tier, and so one name of its file.
constexpr uint64_t kTierNumber = 1;

// How often the log tells that the store is full.
constexpr std::chrono::seconds kTellEvery(60);

std::string NameOf(SegmentId id) { return ToString(FdName{kSegmentKind, ToInt(id)}); }
std::string NameOf(PublicationId id) { return ToString(FdName{kMetadataKind, ToInt(id)}); }

std::string NameOfTier() { return ToString(FdName{kTierKind, kTierNumber}); }

// True if the descriptors of this kind lie in places or crates.
bool IsStored(const FdName& name) {
  return name.kind == kSegmentKind || name.kind == kMetadataKind ||
         (name.kind == kTierKind && name.number == kTierNumber);
}

// Returns the same message for every state from which the daemon cannot continue: nothing may be
// touched, and only the operator can decide to give it up.
absl::Status CannotGoOn(const absl::Status& why) {
  return absl::Status(
      why.code(), absl::StrCat("the journal of the previous daemon cannot be used: ", why.message(),
                               ". Nothing was changed. Start the gpumemd that wrote it, or stop "
                               "the service (systemctl stop gpumemd, or end gpumem-keeper), which "
                               "releases all memory that it holds, and start it again"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ContinuityStore>> ContinuityStore::Open(FdStore* store,
                                                                       WhenStoreFull when_full) {
  auto it = std::unique_ptr<ContinuityStore>(new ContinuityStore(store, when_full));
  // The journal before all else: if it is unusable, nothing may have changed.
  std::vector<NamedFd> inherited, journals;
  std::vector<int> journal_fds;
  uint64_t last_number = 0;
  for (NamedFd& each : store->TakeInherited()) {
    const std::optional<FdName> name = ParseFdName(each.name);
    if (!name || name->kind != kJournalKind) {
      inherited.push_back(std::move(each));
      continue;
    }
    last_number = std::max(last_number, name->number);
    journal_fds.push_back(each.fd.get());
    journals.push_back(std::move(each));
  }
  // There is nothing in one whose daemon was killed before it began with it.
  for (size_t i = journals.size(); i-- > 0;) {
    const auto header = JournalFile::ReadHeader(journal_fds[i]);
    if (!header.ok() || header->complete) continue;
    store->Remove(journals[i].name).IgnoreError();
    journals.erase(journals.begin() + static_cast<std::ptrdiff_t>(i));
    journal_fds.erase(journal_fds.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const absl::StatusOr<size_t> chosen = ChooseJournal(journal_fds);
  if (!chosen.ok() && !absl::IsNotFound(chosen.status())) return CannotGoOn(chosen.status());
  absl::StatusOr<JournalIdentity> identity =
      ReadJournalIdentity(static_cast<uint32_t>(last_number + 1));
  if (!identity.ok()) return identity.status();
  std::string kept;
  if (chosen.ok()) {
    kept = journals[*chosen].name;
    absl::StatusOr<JournalFile::Adopted> adopted =
        JournalFile::Adopt(std::move(journals[*chosen].fd));
    if (!adopted.ok()) return CannotGoOn(adopted.status());
    const JournalContents& contents = adopted->contents;
    if (contents.passed > 0) {
      spdlog::warn(
          "{}, a newer one, left {} records of which this gpumemd does not understand all; it "
          "ignores the fields that it does not know, which are optional",
          contents.writer, contents.passed);
    }
    const JournalIdentity& its = contents.header.identity;
    it->found_.strange_pids =
        its.pid_namespace != identity->pid_namespace || its.boot_id != identity->boot_id;
    it->generation_ = contents.header.generation;
    it->found_.image = std::move(adopted->contents.image);
    it->file_ = std::move(adopted->file);
  }

  absl::StatusOr<std::vector<NamedFd>> packed = it->places_.Adopt(inherited);
  if (!packed.ok()) return packed.status();
  std::vector<NamedFd> directly;
  for (NamedFd& each : inherited) {
    const std::optional<FdName> name = ParseFdName(each.name);
    if (name && IsStored(*name)) {
      directly.push_back(std::move(each));
    } else {
      // Descriptors of another version belong to it until this one has certainly taken over.
      it->strange_.push_back(each.name);
    }
  }

  for (const NamedFd& each : directly) it->places_.AdoptDirect(each.name);
  std::vector<NamedFd> found = *std::move(packed);
  std::move(directly.begin(), directly.end(), std::back_inserter(found));
  for (NamedFd& each : found) {
    const std::optional<FdName> name = ParseFdName(each.name);
    if (!name || !IsStored(*name)) continue;
    it->stored_.push_back(*name);
    if (!chosen.ok()) continue;
    if (name->kind == kSegmentKind) {
      it->found_.memory.emplace(SegmentId{name->number}, std::move(each.fd));
    } else if (name->kind == kTierKind) {
      it->tier_file_ = std::move(each.fd);
    } else {
      it->found_.metadata.emplace(PublicationId{name->number}, std::move(each.fd));
    }
  }
  it->inherits_ = chosen.ok();
  if (!chosen.ok() || it->found_.strange_pids || it->file_ == nullptr) {
    // Pids are written down from now on as this process's namespace has them, and records in this
    // daemon's form.
    if (absl::Status made = it->CreateJournal(*identity, &kept); !made.ok()) return made;
  }
  for (const NamedFd& each : journals) {
    if (each.name != kept) it->old_journals_.push_back(each.name);
  }
  absl::Status watched = store->Watch([that = it.get()](const absl::Status& why) {
    that->Tell(
        &that->manager_trouble_,
        absl::StrCat(
            "The service manager that holds memory across restarts of this daemon has ended (",
            why.message(),
            "): when this daemon ends, all memory is lost. Drain the daemon, and restart it when "
            "no process uses its memory."));
  });
  if (!watched.ok()) return watched;
  it->room_ = std::thread([that = it.get()] { that->CheckRoom(); });
  return it;
}

ContinuityStore::~ContinuityStore() {
  if (room_.joinable()) room_.join();
  store_->StopWatching();
  // Starts that fail again and again would fill the store.
  if (!empty_journal_.empty()) store_->Remove(empty_journal_).IgnoreError();
}

absl::Status ContinuityStore::CreateJournal(const JournalIdentity& identity, std::string* name) {
  absl::StatusOr<std::unique_ptr<JournalFile>> file =
      JournalFile::Create(identity, /*complete=*/false);
  if (!file.ok()) return file.status();
  *name = ToString(FdName{kJournalKind, identity.number});
  file_ = *std::move(file);
  // If the manager has gone already, Watch() reports it.
  if (absl::Status stored = store_->Store(*name, file_->fd()); !stored.ok()) {
    Tell(&journal_trouble_,
         absl::StrCat("The service manager does not take the journal (", stored.message(),
                      "): when this daemon ends, all memory is lost."));
  }
  empty_journal_ = *name;
  return absl::OkStatus();
}

void ContinuityStore::CheckRoom() {
  const absl::Status room = store_->CheckRoom();
  seen_to_keep_ = room.ok();
  if (absl::IsResourceExhausted(room) && inherits_) {
    // It has kept the descriptors of the previous daemon.
    absl::MutexLock lock(&mutex_);
    if (!places_.HasPlace()) NoteFull(room);
  } else if (absl::IsResourceExhausted(room)) {
    Tell(&memory_trouble_,
         "The service manager keeps no descriptors for this daemon: when it ends, all memory is "
         "lost. Give its unit FileDescriptorStoreMax= (systemd.service(5)).");
  }
  room_asked_.Notify();
}

bool ContinuityStore::keeps_memory() const {
  absl::MutexLock lock(&mutex_);
  return manager_trouble_.empty() && journal_trouble_.empty() && memory_trouble_.empty();
}

bool ContinuityStore::SeenToKeep() const {
  if (!inherits_) {
    room_asked_.WaitForNotificationWithTimeout(StorePlaces::kAnswerTime);
    if (!seen_to_keep_) return false;
  }
  return keeps_memory();
}

bool ContinuityStore::full() const {
  absl::MutexLock lock(&mutex_);
  return full_;
}

ContinuityStore::Found ContinuityStore::TakeFound() { return std::exchange(found_, {}); }

gpumem::UniqueFd ContinuityStore::TakeTierFile() {
  const auto& segments = found_.image.segments;
  keeps_tier_file_ =
      tier_file_.valid() && std::any_of(segments.begin(), segments.end(), [](const auto& segment) {
        return segment.second.kind == Kind::kTier;
      });
  if (keeps_tier_file_) return std::move(tier_file_);
  // It has no contents, and the next one may need its huge pages.
  LetGo({NameOfTier()});
  tier_file_.reset();  // after the manager's, so that this process frees the memory
  return gpumem::UniqueFd();
}

void ContinuityStore::KeepTierFile(int fd) {
  LetGo({NameOfTier()});
  // After the manager's, so that this process frees the memory.
  tier_file_.reset();
  keeps_tier_file_ = true;
  const std::string name = NameOfTier();
  Note(name, places_.Put(name, fd));
}

std::vector<std::string> ContinuityStore::Notices() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> notices;
  for (const std::string* trouble :
       {&manager_trouble_, &journal_trouble_, &memory_trouble_, &removal_trouble_}) {
    if (!trouble->empty()) notices.push_back(*trouble);
  }
  if (full_) {
    notices.push_back(FullNotice());
  } else if (!unkept_.empty() && memory_trouble_.empty()) {
    notices.push_back(UnkeptNotice());
  }
  return notices;
}

void ContinuityStore::Tell(std::string* trouble, std::string sentence) {
  absl::MutexLock lock(&mutex_);
  if (!trouble->empty()) return;
  spdlog::error("{}", sentence);
  *trouble = std::move(sentence);
}

absl::Status ContinuityStore::Begin(const JournalImage& image) {
  if (absl::Status written = file_->Rewrite(image); !written.ok()) {
    return absl::Status(
        written.code(),
        absl::StrCat("the journal cannot be written: ", written.message(),
                     ". No memory was released; start gpumemd again when there is memory"));
  }
  empty_journal_.clear();
  Failpoint("begin-written");
  // Only now: until then they were the only state.
  for (const std::string& name : old_journals_) store_->Remove(name).IgnoreError();
  for (const std::string& name : strange_) {
    spdlog::info("the service manager handed over a descriptor named {}, which is not needed",
                 name);
    store_->Remove(name).IgnoreError();
  }
  std::vector<std::string> unneeded;
  for (const FdName& each : std::exchange(stored_, {})) {
    const bool known = each.kind == kSegmentKind ? image.segments.contains(SegmentId{each.number})
                       : each.kind == kTierKind
                           ? keeps_tier_file_
                           : image.publications.contains(PublicationId{each.number});
    if (!known) unneeded.push_back(ToString(each));
  }
  LetGo(unneeded);
  tier_file_.reset();
  return absl::OkStatus();
}

void ContinuityStore::Write(absl::Span<const journal::Change> batch) {
  if (absl::Status written = file_->Append(batch); !written.ok()) {
    Tell(&journal_trouble_, absl::StrCat("The journal cannot be written (", written.message(),
                                         "): when this daemon ends, all memory is lost."));
  }
}

void ContinuityStore::Note(const std::string& name, const StorePlaces::Outcome& outcome) {
  absl::MutexLock lock(&mutex_);
  if (outcome.status.ok()) {
    full_ = false;
    return;
  }
  unkept_.insert(name);
  const bool first = why_unkept_.empty();
  why_unkept_ = std::string(outcome.status.message());
  if (outcome.full) {
    NoteFull(outcome.status);
  } else if (first && memory_trouble_.empty()) {
    spdlog::error("{}", UnkeptNotice());
  }
}

void ContinuityStore::NoteFull(const absl::Status& why) {
  if (std::exchange(full_, true)) return;
  const auto now = std::chrono::steady_clock::now();
  if (full_told_ != std::chrono::steady_clock::time_point() && now < full_told_ + kTellEvery) {
    return;
  }
  full_told_ = now;
  spdlog::error("{} ({})", FullNotice(), std::string(why.message()));
}

std::string ContinuityStore::FullNotice() const {
  std::string notice = "The service manager's store of descriptors is full";
  const char* join = ": ";
  if (when_full_ == WhenStoreFull::kRefuse) {
    absl::StrAppend(&notice, join, "new segments are refused");
    join = ", and ";
  }
  if (!unkept_.empty()) {
    absl::StrAppend(&notice, join, unkept_.size(),
                    " segments and publications will be lost when this daemon ends");
  }
  return absl::StrCat(notice, ". Give it more places: ",
                      store_->keeper_pid() != 0
                          ? "--max-fds of gpumem-keeper."
                          : "FileDescriptorStoreMax= in the unit (systemd.service(5)).");
}

std::string ContinuityStore::UnkeptNotice() const {
  return absl::StrCat("The service manager's store did not take ", unkept_.size(),
                      " segments and publications (", why_unkept_,
                      "): they will be lost when this daemon ends.");
}

size_t ContinuityStore::unkept() const {
  absl::MutexLock lock(&mutex_);
  return unkept_.size();
}

void ContinuityStore::LetGo(absl::Span<const std::string> names) {
  std::vector<std::string> kept;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& name : names) {
      if (unkept_.erase(name) == 0) {
        kept.push_back(name);
      } else if (unkept_.empty()) {
        why_unkept_.clear();
      }
    }
  }
  const StorePlaces::Removal removed = places_.Remove(kept);
  if (removed.freed) {
    absl::MutexLock lock(&mutex_);
    full_ = false;
  }
  if (removed.status.ok() || store_->lost()) return;
  Tell(&removal_trouble_,
       absl::StrCat("Memory could not be removed from the service manager's store (",
                    removed.status.message(), "): it stays allocated, but is counted as free."));
}

absl::Status ContinuityStore::Keep(SegmentId segment, int fd) {
  const std::string name = NameOf(segment);
  const StorePlaces::Outcome outcome = places_.Put(name, fd);
  if (outcome.full && when_full_ == WhenStoreFull::kRefuse) {
    absl::MutexLock lock(&mutex_);
    NoteFull(outcome.status);
    return absl::ResourceExhaustedError(absl::StrCat(
        "the service manager's store has no place for the segment (", outcome.status.message(),
        "), and [daemon] when_store_full is \"refuse\"; release segments, or have the operator "
        "give the store more places"));
  }
  Note(name, outcome);
  return absl::OkStatus();
}

void ContinuityStore::LetGo(absl::Span<const SegmentId> segments) {
  std::vector<std::string> names;
  for (SegmentId id : segments) names.push_back(NameOf(id));
  LetGo(names);
}

void ContinuityStore::Keep(PublicationId publication, int fd) {
  const std::string name = NameOf(publication);
  Note(name, places_.Put(name, fd));
}

void ContinuityStore::LetGo(PublicationId publication) { LetGo({NameOf(publication)}); }

}  // namespace gpumemd
