#include "daemon/journal_file.h"

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

namespace gpumemd {

using gpumem::UniqueFd;
using journal::Change;

namespace {

// Room for this many records, however few there are: a small log is full so seldom that writing it
// anew costs next to nothing.
constexpr size_t kMinBytes = size_t{1} << 20;
constexpr size_t kMinRecords = kMinBytes / kJournalRecordBytes - 1;

constexpr size_t kMaxRecords = std::numeric_limits<uint32_t>::max() / 16;  // 64 GiB of them

absl::Status NoMemory(absl::string_view call, int error, size_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat("no memory for a journal of ", bytes, " bytes (",
                                                   call, ": ", std::strerror(error),
                                                   "); give gpumemd more (MemoryMax=)"));
}

int Allocate(int fd, JournalArea area) {
  int result;
  do {
    result = fallocate(fd, 0, static_cast<off_t>(area.begin()), static_cast<off_t>(area.bytes()));
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
    if (fstat(fd, &found) != 0) return absl::ErrnoToStatus(errno, "cannot look at the journal");
    const int seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(found.st_mode) || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      return absl::DataLossError(
          "what was kept as the journal is no file that a daemon made for it (it could shrink)");
    }
    const auto bytes = static_cast<size_t>(found.st_size);
    if (bytes < kJournalPageBytes) return absl::DataLossError("the journal has not even a header");
    void* const data =
        mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return NoMemory("mmap", errno, bytes);
    return std::unique_ptr<Pages>(new Pages(data, bytes));
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(data_, bytes_); }

  absl::Span<uint8_t> span() const { return {static_cast<uint8_t*>(data_), bytes_}; }

  // Makes the file, and the mapping, reach to the area's end, and gives the area memory.
  absl::Status Reach(int fd, JournalArea area) {
    if (area.end() > file_bytes_) {
      if (ftruncate(fd, static_cast<off_t>(area.end())) != 0) {
        return NoMemory("ftruncate", errno, area.bytes());
      }
      file_bytes_ = area.end();
    }
    if (file_bytes_ > bytes_) {
      void* const data = mremap(data_, bytes_, file_bytes_, MREMAP_MAYMOVE);
      if (data == MAP_FAILED) return NoMemory("mremap", errno, area.bytes());
      data_ = data;
      bytes_ = file_bytes_;
    }
    if (Allocate(fd, area) != 0) return NoMemory("fallocate", errno, area.bytes());
    // Only spares the faults; kernels before 5.14 cannot.
    (void)madvise(static_cast<uint8_t*>(data_) + area.begin(), area.bytes(), MADV_POPULATE_WRITE);
    return absl::OkStatus();
  }

  // Gives all memory back but for the header's and the area's. Where that cannot be, the memory
  // stays with the file, and that is all.
  void KeepOnly(int fd, JournalArea area) const {
    // Of small logs the next area is made of what this one leaves: most of what a compaction takes
    // is the kernel's work with pages.
    const size_t keep = area.bytes() <= kMinBytes ? kMinBytes : 0;
    const auto punch = [&](size_t begin, size_t end) {
      if (end <= begin + keep) return;
      (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                      static_cast<off_t>(end - begin));
    };
    punch(kJournalPageBytes, area.begin());
    punch(area.end(), bytes_);
  }

 private:
  Pages(void* data, size_t bytes) : data_(data), bytes_(bytes), file_bytes_(bytes) {}

  void* data_;
  size_t bytes_;
  size_t file_bytes_;  // more than bytes_ where the mapping could not follow
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
        absl::StrCat("cannot tell this boot from another: ", kBootId, " does not say"));
  }
  if (stat("/proc/self/ns/pid", &name_space) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot tell this PID namespace from another: ",
                                               "/proc/self/ns/pid (", std::strerror(errno), ")"));
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
  return absl::NotFoundError("there is no journal that was ever complete");
}

absl::StatusOr<JournalHeader> JournalFile::ReadHeader(int fd) {
  absl::StatusOr<std::unique_ptr<Pages>> pages = Pages::Map(fd, /*writable=*/false);
  if (!pages.ok()) return pages.status();
  return ReadJournalHeader((*pages)->span());
}

JournalFile::JournalFile(UniqueFd fd, std::unique_ptr<Pages> pages, JournalLog log)
    : fd_(std::move(fd)), pages_(std::move(pages)), log_(log) {}

JournalFile::~JournalFile() = default;

absl::StatusOr<std::unique_ptr<JournalFile>> JournalFile::Create(const JournalIdentity& identity) {
  const JournalArea area{.page = 1, .pages = JournalArea::PagesFor(kMinRecords)};
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
  const JournalLog log = JournalLog::Create((*pages)->span(), identity, area);
  return std::unique_ptr<JournalFile>(new JournalFile(std::move(fd), *std::move(pages), log));
}

absl::StatusOr<JournalFile::Adopted> JournalFile::Adopt(UniqueFd fd) {
  absl::StatusOr<std::unique_ptr<Pages>> pages = Pages::Map(fd.get(), /*writable=*/true);
  if (!pages.ok()) return pages.status();
  absl::StatusOr<JournalContents> contents = ReadJournal((*pages)->span());
  if (!contents.ok()) return contents.status();
  if (absl::Status right = contents->image.CheckReferences(); !right.ok()) return right;
  JournalLog log = JournalLog::Resume((*pages)->span(), *contents);
  // Memory that a daemon left which was killed while it wrote the log to other pages.
  (*pages)->KeepOnly(fd.get(), log.area());
  return Adopted{
      std::unique_ptr<JournalFile>(new JournalFile(std::move(fd), *std::move(pages), log)),
      *std::move(contents)};
}

size_t JournalFile::bytes() const {
  struct stat found = {};
  return fstat(fd_.get(), &found) == 0 ? static_cast<size_t>(found.st_blocks) * 512 : 0;
}

absl::Status JournalFile::Append(absl::Span<const Change> batch) {
  if (behind_) {
    return absl::FailedPreconditionError(
        "the journal has not got an earlier change, and so takes no later one");
  }
  if (log_.Append(batch)) return absl::OkStatus();
  if (absl::Status compacted = Compact(batch.size()); !compacted.ok()) {
    behind_ = true;
    log_.SetBehind();
    return compacted;
  }
  if (log_.Append(batch)) return absl::OkStatus();
  abort();  // Compact has made room for it
}

// Other pages, with room for half as many records again.
absl::StatusOr<JournalArea> JournalFile::MakeRoom(size_t records) {
  const size_t room = std::max(records + records / 2, kMinRecords);
  if (room > kMaxRecords) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the journal holds at most ", kMaxRecords, " records"));
  }
  const JournalArea area = log_.Place(JournalArea::PagesFor(room));
  absl::Status reached = pages_->Reach(fd_.get(), area);
  log_.Moved(pages_->span());
  if (reached.ok()) return area;
  pages_->KeepOnly(fd_.get(), log_.area());
  return reached;
}

absl::Status JournalFile::Compact(size_t more) {
  const absl::StatusOr<JournalLog::Live> live = log_.FindLive();
  if (!live.ok()) return live.status();
  const absl::StatusOr<JournalArea> area = MakeRoom(live->records.size() + 1 + more);
  if (!area.ok()) return area.status();
  log_.Compact(*area, *live);
  pages_->KeepOnly(fd_.get(), *area);
  ++compactions_;
  return absl::OkStatus();
}

absl::Status JournalFile::Rewrite(const JournalImage& image) {
  const absl::StatusOr<JournalArea> area = MakeRoom(image.size());
  if (!area.ok()) return area.status();
  log_.Rewrite(*area, image);
  pages_->KeepOnly(fd_.get(), *area);
  ++compactions_;
  behind_ = false;
  return absl::OkStatus();
}

}  // namespace gpumemd
