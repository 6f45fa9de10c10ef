#include "daemon/continuity_store.h"

#include <algorithm>
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

std::string NameOf(SegmentId id) { return ToString(FdName{kSegmentKind, ToInt(id)}); }
std::string NameOf(PublicationId id) { return ToString(FdName{kMetadataKind, ToInt(id)}); }

// The same words wherever the daemon cannot go on with what it finds: nothing may be touched, and
// only the operator can decide to give it up.
absl::Status CannotGoOn(const absl::Status& why) {
  return absl::Status(
      why.code(),
      absl::StrCat("the journal of the daemon before this one cannot be used: ", why.message(),
                   ". Nothing was changed. Start the gpumemd that wrote it, or stop the service "
                   "(systemctl stop gpumemd, or end gpumem-keeper), which gives up all memory that "
                   "it keeps, and start it again"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ContinuityStore>> ContinuityStore::Open(FdStore* store) {
  auto it = std::unique_ptr<ContinuityStore>(new ContinuityStore(store));
  // The journal before all else: where it cannot be used, nothing may have changed.
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
          "{}, a newer one, left {} records of which this gpumemd does not understand all; it goes "
          "on without the rest, which whoever wrote it can do without",
          contents.writer, contents.passed);
    }
    const JournalIdentity& its = contents.header.identity;
    it->found_.strange_pids =
        its.pid_namespace != identity->pid_namespace || its.boot_id != identity->boot_id;
    it->generation_ = contents.header.generation;
    it->found_.image = std::move(adopted->contents.image);
    it->file_ = std::move(adopted->file);
  }

  absl::StatusOr<std::vector<NamedFd>> packed = it->crates_.Adopt(inherited);
  if (!packed.ok()) return packed.status();
  std::vector<NamedFd> directly;
  for (NamedFd& each : inherited) {
    const std::optional<FdName> name = ParseFdName(each.name);
    if (name && (name->kind == kSegmentKind || name->kind == kMetadataKind)) {
      directly.push_back(std::move(each));
    } else {
      // A probe whose daemon was killed, or what another version has left: that one's, until it is
      // certain that this one goes on.
      it->strange_.push_back(each.name);
    }
  }

  if (store->keeper_pid() != 0) {
    const uint64_t capacity = store->capacity().value_or(0);
    it->direct_room_ = capacity - capacity / 8;
  }
  it->direct_ = directly.size();
  std::vector<NamedFd> found = *std::move(packed);
  std::move(directly.begin(), directly.end(), std::back_inserter(found));
  for (NamedFd& each : found) {
    const std::optional<FdName> name = ParseFdName(each.name);
    if (!name || (name->kind != kSegmentKind && name->kind != kMetadataKind)) continue;
    it->stored_.push_back(*name);
    if (!chosen.ok()) continue;
    if (name->kind == kSegmentKind) {
      it->found_.memory.emplace(SegmentId{name->number}, std::move(each.fd));
    } else {
      it->found_.metadata.emplace(PublicationId{name->number}, std::move(each.fd));
    }
  }
  if (!chosen.ok() || it->found_.strange_pids || it->file_ == nullptr) {
    // Pids are written down from now on as this process's namespace has them, and records in this
    // daemon's form.
    if (absl::Status made = it->CreateJournal(*identity, &kept); !made.ok()) return made;
  }
  for (const NamedFd& each : journals) {
    if (each.name != kept) it->old_journals_.push_back(each.name);
  }
  absl::Status watched = store->Watch([that = it.get()](const absl::Status& why) {
    that->Tell(&that->manager_trouble_,
               absl::StrCat("The service manager that keeps memory over this daemon's death is "
                            "gone (",
                            why.message(),
                            "): when this daemon ends now, all memory is lost. Drain it, and start "
                            "it anew when nobody needs it."));
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
  // Where the manager has gone already, it will be said (Watch).
  if (absl::Status stored = store_->Store(*name, file_->fd()); !stored.ok()) {
    Tell(&journal_trouble_,
         absl::StrCat("The service manager does not take the journal (", stored.message(),
                      "): when this daemon dies, all memory is lost."));
  }
  empty_journal_ = *name;
  return absl::OkStatus();
}

void ContinuityStore::CheckRoom() {
  const absl::Status room = store_->CheckRoom();
  if (!absl::IsResourceExhausted(room)) return;
  Tell(
      &memory_trouble_,
      "The service manager keeps no descriptors for this daemon, or no more of them: when it dies, "
      "all memory is lost. Give its unit FileDescriptorStoreMax= (systemd.service(5)).");
}

ContinuityStore::Found ContinuityStore::TakeFound() { return std::exchange(found_, {}); }

std::vector<std::string> ContinuityStore::Notices() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> notices;
  for (const std::string* trouble : {&manager_trouble_, &journal_trouble_, &memory_trouble_}) {
    if (!trouble->empty()) notices.push_back(*trouble);
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
    return absl::Status(written.code(),
                        absl::StrCat("the journal cannot be written: ", written.message(),
                                     ". Nothing was let go; start gpumemd again when there is "
                                     "memory"));
  }
  empty_journal_.clear();
  Failpoint("begin-written");
  // Only now: until then they were what there was.
  for (const std::string& name : old_journals_) store_->Remove(name).IgnoreError();
  for (const std::string& name : strange_) {
    spdlog::info("the service manager handed over a descriptor named {}, which nobody needs", name);
    store_->Remove(name).IgnoreError();
  }
  std::vector<std::string> unneeded;
  for (const FdName& each : std::exchange(stored_, {})) {
    const bool known = each.kind == kSegmentKind
                           ? image.segments.contains(SegmentId{each.number})
                           : image.publications.contains(PublicationId{each.number});
    if (!known) unneeded.push_back(ToString(each));
  }
  LetGo(unneeded);
  return absl::OkStatus();
}

void ContinuityStore::Write(absl::Span<const journal::Change> batch) {
  if (absl::Status written = file_->Append(batch); !written.ok()) {
    Tell(&journal_trouble_, absl::StrCat("The journal cannot be written (", written.message(),
                                         "): when this daemon dies, all memory is lost."));
  }
}

void ContinuityStore::Keep(const std::string& name, int fd, const std::string& what) {
  const bool direct = direct_.fetch_add(1) < direct_room_;
  if (!direct) --direct_;
  const absl::Status stored = direct ? store_->Store(name, fd) : crates_.Store(name, fd);
  if (stored.ok()) {
    // It drops what it has no place for without a word: the journal, a crate's two ends.
    if (direct_room_ == 0 || 1 + direct_room_ + 2 * crates_.crates() < *store_->capacity()) return;
    return Tell(&memory_trouble_,
                "gpumem-keeper has no places left: what is made from now on is lost when this "
                "daemon dies. Give it more with --max-fds.");
  }
  Tell(&memory_trouble_,
       absl::StrCat("The service manager does not take ", what, " (", stored.message(),
                    "): of this, and perhaps of more, nothing is left when this daemon dies."));
}

void ContinuityStore::LetGo(absl::Span<const std::string> names) {
  absl::Status removed;
  std::vector<std::string> direct;
  for (const std::string& name : names) {
    const absl::Status one = crates_.Remove(name);
    if (absl::IsNotFound(one)) {
      direct.push_back(name);
    } else {
      removed.Update(one);
    }
  }
  if (direct_room_ > 0 && !direct.empty()) {
    removed.Update(store_->RemoveAndWait(direct));
    direct_ -= std::min<uint64_t>(direct_, direct.size());
  }
  if (removed.ok() || store_->lost()) return;
  Tell(&memory_trouble_,
       absl::StrCat("Memory could not be taken out of the service manager's store (",
                    removed.message(), "): it is not free, though it counts so."));
}

void ContinuityStore::Keep(SegmentId segment, int fd) {
  Keep(NameOf(segment), fd, absl::StrCat("the memory of segment ", ToInt(segment)));
}

void ContinuityStore::LetGo(absl::Span<const SegmentId> segments) {
  std::vector<std::string> names;
  for (SegmentId id : segments) names.push_back(NameOf(id));
  LetGo(names);
}

void ContinuityStore::Keep(PublicationId publication, int fd) {
  Keep(NameOf(publication), fd, absl::StrCat("the metadata of publication ", ToInt(publication)));
}

void ContinuityStore::LetGo(PublicationId publication) { LetGo({NameOf(publication)}); }

}  // namespace gpumemd
