// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/journal_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "daemon/core/journal/dialect.h"

namespace gpumemd {

using gpumem::UniqueFd;
using journal::Change;

namespace {

// Pages of a stage: the maximum, which exceeds the changes of any operation; and those that always
// have memory. Few batches need more than those: an Attach to thousands of segments.
constexpr uint32_t kStagePages = 4096;
constexpr uint32_t kKeptStagePages = 64;
// Slots come and go by so many pages: a few microseconds of the kernel's.
constexpr uint32_t kChunkPages = 16;
constexpr uint32_t kMinSlotPages = 4 * kChunkPages;
constexpr size_t kMaxRecords = std::numeric_limits<uint32_t>::max() / 16;  // 64 GiB of them
// Of addresses: the mapping is longer than the file, so that it seldom has to move.
constexpr size_t kMinReserved = size_t{64} << 20;

uint32_t ChunksFor(size_t records) {
  const uint32_t pages = std::max(JournalArea::PagesFor(records), kMinSlotPages);
  return (pages + kChunkPages - 1) / kChunkPages * kChunkPages;
}

// Returns the pages that a stage of so many records needs beyond kKeptStagePages.
uint32_t MoreStagePages(size_t records) {
  const uint32_t pages = JournalArea::PagesFor(records + 1);  // and the head
  return pages - std::min(pages, kKeptStagePages);
}

absl::Status NoMemory(absl::string_view call, int error, size_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat("no memory for a journal of ", bytes, " bytes (",
                                                   call, ": ", std::strerror(error),
                                                   "); give gpumemd more (MemoryMax=)"));
}

int Allocate(int fd, size_t begin, size_t end) {
  int result;
  do {
    result = fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

// A file's pages, mapped.
class JournalFile::Pages {
 public:
  // All there are.
  static absl::StatusOr<std::unique_ptr<Pages>> Map(int fd, bool writable) {
    struct stat found;
    if (fstat(fd, &found) != 0)
      return absl::ErrnoToStatus(errno, "cannot read the size of the journal");
    const int seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(found.st_mode) || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      return absl::DataLossError(
          "the file that was kept as the journal was not made by a daemon (it is not sealed "
          "against shrinking)");
    }
    const auto bytes = static_cast<size_t>(found.st_size);
    if (bytes < kJournalPageBytes) return absl::DataLossError("the journal has no header");
    // Pages behind the file's end cannot be touched, and cost nothing.
    const size_t reserved = writable ? std::max(2 * bytes, kMinReserved) : bytes;
    void* const data =
        mmap(nullptr, reserved, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return NoMemory("mmap", errno, bytes);
    return std::unique_ptr<Pages>(new Pages(data, reserved, bytes));
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(data_, reserved_); }

  absl::Span<uint8_t> span() const {
    return {static_cast<uint8_t*>(data_), std::min(file_bytes_, reserved_)};
  }

  // Extends the file, and the mapping, to `end`, and allocates memory from `begin` on.
  absl::Status Reach(int fd, size_t begin, size_t end) {
    absl::Status extended = Extend(fd, begin, end);
    return extended.ok() ? Give(fd, begin, end) : extended;
  }
  // The same for an area; of each of its stages, only the first kKeptStagePages get memory.
  absl::Status Reach(int fd, JournalArea area) {
    if (absl::Status s = Extend(fd, area.begin(), area.end()); !s.ok()) return s;
    if (absl::Status s = Give(fd, area.begin(), area.stage(0)); !s.ok()) return s;
    const size_t kept = std::min(area.stage_pages, kKeptStagePages) * kJournalPageBytes;
    for (size_t i : {0, 1}) {
      if (absl::Status s = Give(fd, area.stage(i), area.stage(i) + kept); !s.ok()) return s;
    }
    return Give(fd, area.slots_begin(), area.end());
  }
  absl::Status Extend(int fd, size_t begin, size_t end) {
    if (end > file_bytes_) {
      if (ftruncate(fd, static_cast<off_t>(end)) != 0) {
        return NoMemory("ftruncate", errno, end - begin);
      }
      file_bytes_ = end;
    }
    if (file_bytes_ > reserved_) {
      void* const data = mremap(data_, reserved_, 2 * file_bytes_, MREMAP_MAYMOVE);
      if (data == MAP_FAILED) return NoMemory("mremap", errno, end - begin);
      data_ = data;
      reserved_ = 2 * file_bytes_;
    }
    return absl::OkStatus();
  }
  // Allocates memory for a range that the file and the mapping reach.
  absl::Status Give(int fd, size_t begin, size_t end) {
    if (Allocate(fd, begin, end) != 0) return NoMemory("fallocate", errno, end - begin);
    // Only spares the faults; kernels before 5.14 cannot.
    (void)madvise(static_cast<uint8_t*>(data_) + begin, end - begin, MADV_POPULATE_WRITE);
    return absl::OkStatus();
  }

  // Releases all memory but the header's and the area's. On failure the file only keeps the memory.
  void KeepOnly(int fd, JournalArea area) const {
    GiveBack(fd, kJournalPageBytes, area.begin());
    GiveBack(fd, area.end(), file_bytes_);
  }
  static void GiveBack(int fd, size_t begin, size_t end) {
    if (end <= begin) return;
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                    static_cast<off_t>(end - begin));
  }

 private:
  Pages(void* data, size_t reserved, size_t bytes)
      : data_(data), reserved_(reserved), file_bytes_(bytes) {}

  void* data_;
  size_t reserved_;
  size_t file_bytes_;  // more than reserved_ if the mapping could not follow
};

absl::StatusOr<JournalIdentity> ReadJournalIdentity(uint32_t number) {
  JournalIdentity identity{.number = number};
  constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
  char text[64] = {};
  const UniqueFd file(open(kBootId, O_RDONLY | O_CLOEXEC));
  const ssize_t got = file.valid() ? read(file.get(), text, sizeof text) : -1;
  std::string digits =
      absl::StrReplaceAll(absl::string_view(text, static_cast<size_t>(std::max<ssize_t>(got, 0))),
                          {{"-", ""}, {"\n", ""}});
  const bool hexadecimal = std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit);
  struct stat name_space;
  if (digits.size() != 2 * identity.boot_id.size() || !hexadecimal) {
    return absl::UnavailableError(
        absl::StrCat("cannot identify this boot: ", kBootId, " has no boot id"));
  }
  if (stat("/proc/self/ns/pid", &name_space) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot identify this PID namespace: ", "/proc/self/ns/pid (", std::strerror(errno), ")"));
  }
  digits = absl::HexStringToBytes(digits);
  std::copy(digits.begin(), digits.end(), identity.boot_id.begin());
  identity.pid_namespace = name_space.st_ino;
  return identity;
}

absl::StatusOr<size_t> ChooseJournal(absl::Span<const int> fds) {
  std::optional<std::pair<uint32_t, size_t>> newest;
  for (size_t i = 0; i < fds.size(); ++i) {
    absl::StatusOr<JournalHeader> header = JournalFile::ReadHeader(fds[i]);
    if (!header.ok()) return header.status();
    if (!header->complete) continue;
    if (!newest || header->identity.number > newest->first) newest = {header->identity.number, i};
  }
  if (newest) return newest->second;
  return absl::NotFoundError("there is no complete journal");
}

absl::StatusOr<JournalHeader> JournalFile::ReadHeader(int fd) {
  absl::StatusOr<std::unique_ptr<Pages>> pages = Pages::Map(fd, /*writable=*/false);
  if (!pages.ok()) return pages.status();
  return ReadJournalHeader((*pages)->span());
}

JournalFile::JournalFile(UniqueFd fd, std::unique_ptr<Pages> pages, JournalTable table)
    : fd_(std::move(fd)), pages_(std::move(pages)), table_(std::move(table)) {}

JournalFile::~JournalFile() = default;

absl::StatusOr<std::unique_ptr<JournalFile>> JournalFile::Create(const JournalIdentity& identity,
                                                                 bool complete) {
  const JournalArea area{.page = 1, .stage_pages = kStagePages, .slot_pages = kMinSlotPages};
  UniqueFd fd(memfd_create("gpumem-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return NoMemory("memfd_create", errno, area.end());
  if (ftruncate(fd.get(), static_cast<off_t>(area.end())) != 0 ||
      fallocate(fd.get(), 0, 0, static_cast<off_t>(kJournalPageBytes)) != 0) {
    return NoMemory("fallocate", errno, area.end());
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return absl::ErrnoToStatus(errno, "cannot seal the journal");
  }
  absl::StatusOr<std::unique_ptr<Pages>> pages = Pages::Map(fd.get(), /*writable=*/true);
  if (!pages.ok()) return pages.status();
  if (absl::Status reached = (*pages)->Reach(fd.get(), area); !reached.ok()) return reached;
  JournalTable table = JournalTable::Create((*pages)->span(), identity, area, complete);
  return std::unique_ptr<JournalFile>(
      new JournalFile(std::move(fd), *std::move(pages), std::move(table)));
}

absl::StatusOr<JournalFile::Adopted> JournalFile::Adopt(UniqueFd fd) {
  absl::StatusOr<std::unique_ptr<Pages>> pages = Pages::Map(fd.get(), /*writable=*/true);
  if (!pages.ok()) return pages.status();
  absl::StatusOr<JournalContents> contents = ReadJournal((*pages)->span());
  if (!contents.ok()) return contents.status();
  if (absl::Status right = contents->image.CheckReferences(); !right.ok()) return right;
  if (contents->header.form != journal::dialect.form) {
    return Adopted{.file = nullptr, .contents = *std::move(contents)};
  }
  JournalTable table = JournalTable::Resume((*pages)->span(), *contents);
  // Memory that a daemon left which was killed while it wrote to other pages.
  (*pages)->KeepOnly(fd.get(), table.area());
  std::unique_ptr<JournalFile> file(
      new JournalFile(std::move(fd), *std::move(pages), std::move(table)));
  file->ForgetStages();
  return Adopted{std::move(file), *std::move(contents)};
}

size_t JournalFile::bytes() const {
  struct stat found = {};
  return fstat(fd_.get(), &found) == 0 ? static_cast<size_t>(found.st_blocks) * 512 : 0;
}

absl::Status JournalFile::Append(absl::Span<const Change> batch) {
  if (behind_) {
    return absl::FailedPreconditionError(
        "the journal lacks an earlier change, and takes no later one");
  }
  absl::Status room = MakeStage(batch.size());
  if (!room.ok() || !table_.Append(batch)) {
    if (absl::Status written = room.ok() ? AppendWithRoom(batch) : room; !written.ok()) {
      behind_ = true;
      table_.SetBehind();
      return written;
    }
  }
  // One chunk at a time, and never the last free one: the next change would need it again.
  if (table_.area().slot_pages > kMinSlotPages && table_.IsFree(2 * kChunkPages)) {
    const size_t end = table_.area().end();
    table_.Shrink(kChunkPages);
    Pages::GiveBack(fd_.get(), table_.area().end(), end);
  }
  return absl::OkStatus();
}

// Releases the memory of another daemon's stages, except the batch in use.
void JournalFile::ForgetStages() {
  const JournalArea area = table_.area();
  if (area.stage_pages <= kKeptStagePages) return;
  const size_t idle = table_.next_stage();
  more_stage_pages_[idle] = 0;
  more_stage_pages_[1 - idle] = MoreStagePages(table_.staged());
  for (size_t i : {0, 1}) {
    const size_t has = kKeptStagePages + more_stage_pages_[i];
    Pages::GiveBack(fd_.get(), area.stage(i) + has * kJournalPageBytes, area.stage(i + 1));
  }
}

// Gives the unused stage as much memory as the next batch takes. The other one keeps its memory: it
// is read while it is in use.
absl::Status JournalFile::MakeStage(size_t records) {
  const JournalArea area = table_.area();
  if (area.stage_pages <= kKeptStagePages || records > area.stage_records()) {
    return absl::OkStatus();
  }
  const uint32_t more = MoreStagePages(records);
  uint32_t& has = more_stage_pages_[table_.next_stage()];
  if (more == has) return absl::OkStatus();
  const size_t kept = area.stage(table_.next_stage()) + kKeptStagePages * kJournalPageBytes;
  const size_t needed = kept + more * kJournalPageBytes, end = kept + has * kJournalPageBytes;
  if (more < has) {
    Pages::GiveBack(fd_.get(), needed, end);
  } else if (absl::Status given = pages_->Give(fd_.get(), end, needed); !given.ok()) {
    return given;
  }
  has = more;
  return absl::OkStatus();
}

absl::Status JournalFile::AppendWithRoom(absl::Span<const Change> batch) {
  const JournalArea now = table_.area();
  if (now.slots() + batch.size() > kMaxRecords) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the journal holds at most ", kMaxRecords, " records"));
  }
  if (batch.size() > now.stage_records()) {
    const absl::StatusOr<JournalArea> area = MakeArea(now.slots() + batch.size());
    if (!area.ok()) return area.status();
    table_.MoveWith(*area, batch);
    pages_->KeepOnly(fd_.get(), *area);
    return absl::OkStatus();
  }
  const uint32_t more =
      (JournalArea::PagesFor(batch.size()) + kChunkPages - 1) / kChunkPages * kChunkPages;
  absl::Status reached = pages_->Reach(fd_.get(), now.end(), now.end() + more * kJournalPageBytes);
  table_.Moved(pages_->span());
  if (!reached.ok()) {
    pages_->KeepOnly(fd_.get(), now);
    return reached;
  }
  table_.Grow(more);
  if (table_.Append(batch)) return absl::OkStatus();
  abort();  // there is room for it
}

// Other pages, for so many records and a few more.
absl::StatusOr<JournalArea> JournalFile::MakeArea(size_t records) {
  const JournalArea area = table_.Place(kStagePages, ChunksFor(records + 1));
  absl::Status reached = pages_->Reach(fd_.get(), area);
  table_.Moved(pages_->span());
  if (reached.ok()) {
    more_stage_pages_ = {};
    return area;
  }
  pages_->KeepOnly(fd_.get(), table_.area());
  return reached;
}

absl::Status JournalFile::Rewrite(const JournalImage& image) {
  const absl::StatusOr<JournalArea> area = MakeArea(image.size() + journal::dialect.more_records);
  if (!area.ok()) return area.status();
  table_.Rewrite(*area, image);
  pages_->KeepOnly(fd_.get(), *area);
  behind_ = false;
  return absl::OkStatus();
}

}  // namespace gpumemd
