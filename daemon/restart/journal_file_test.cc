// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/journal_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "daemon/core/journal/testing/chance.h"

namespace gpumemd {
namespace journal_file_test {

using gpumem::kMiB;
using gpumem::UniqueFd;
using journal::Change;
using journal::Erase;
using journal::Put;
using ::testing::HasSubstr;

constexpr size_t kStagePages = 4096;

std::unique_ptr<JournalFile> MakeJournal(uint32_t number = 1) {
  absl::StatusOr<std::unique_ptr<JournalFile>> file = JournalFile::Create({.number = number});
  EXPECT_EQ(file.status().ToString(), "OK");
  return *std::move(file);
}

// As the service manager keeps it.
UniqueFd Kept(const JournalFile& file) { return UniqueFd(fcntl(file.fd(), F_DUPFD_CLOEXEC, 3)); }

JournalFile::Adopted Adopt(UniqueFd fd) {
  absl::StatusOr<JournalFile::Adopted> adopted = JournalFile::Adopt(std::move(fd));
  EXPECT_EQ(adopted.status().ToString(), "OK");
  return *std::move(adopted);
}

Change PutExposure(uint64_t segment, uint32_t count = 1) {
  return Put(journal::Exposure{SessionId{1}, SegmentId{segment}, count});
}
Change EraseExposure(uint64_t segment) {
  return Erase<journal::Exposure>({SessionId{1}, SegmentId{segment}});
}

// Returns records with one of each kind on 10,000 segments.
std::vector<Change> OnSegment(uint64_t i) {
  return {Put(journal::Segment{.id = SegmentId{i}, .bytes = 1, .tenant = "alice"}),
          Put(journal::Lease{.id = LeaseId{i}, .session = SessionId{1}, .segment = SegmentId{i}}),
          PutExposure(i)};
}

TEST(JournalFile, TheNextDaemonGoesOn) {
  std::unique_ptr<JournalFile> file = MakeJournal(7);
  EXPECT_NE(fcntl(file->fd(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_TRUE(file->Append({Put(journal::Session{.id = SessionId{1}, .tenant = "alice"})}).ok());
  ASSERT_TRUE(file->Append(OnSegment(5)).ok());
  UniqueFd kept = Kept(*file);
  file.reset();
  for (uint32_t generation = 2; generation < 5; ++generation) {
    JournalFile::Adopted adopted = Adopt(std::move(kept));
    EXPECT_EQ(adopted.contents.header.generation, generation);
    EXPECT_EQ(adopted.contents.header.identity.number, 7u);
    EXPECT_EQ(adopted.contents.image.sessions.at(SessionId{1}).tenant.view(), "alice");
    EXPECT_EQ(adopted.contents.image.segments.size(), generation - 1);
    ASSERT_TRUE(adopted.file->Append(OnSegment(5 + generation)).ok());
    kept = Kept(*adopted.file);
  }
}

TEST(JournalFile, KeepsItsDescriptorAndLittleMemory) {
  std::unique_ptr<JournalFile> file = MakeJournal();
  UniqueFd kept = Kept(*file);
  const size_t before = file->bytes();
  EXPECT_LT(before, kMiB);
  JournalImage model;
  std::vector<Change> first = {Put(journal::Session{.id = SessionId{1}})};
  for (uint64_t i = 1; i <= 7; ++i) first.push_back(Put(journal::Segment{.id = SegmentId{i}}));
  for (const Change& change : first) model.Apply(change);
  ASSERT_TRUE(file->Append(first).ok());
  for (uint32_t i = 1; i <= 100000; ++i) {
    const Change changes[] = {PutExposure(1 + i % 7, i), EraseExposure(1 + i % 5)};
    ASSERT_TRUE(file->Append(changes).ok());
    model.Apply(changes[0]);
    model.Apply(changes[1]);
  }
  EXPECT_EQ(file->bytes(), before);
  file.reset();
  EXPECT_TRUE(Adopt(std::move(kept)).contents.image == model);
}

TEST(JournalFile, TenThousandSegmentsInEightMiB) {
  std::unique_ptr<JournalFile> file = MakeJournal();
  ASSERT_TRUE(file->Append({Put(journal::Session{.id = SessionId{1}})}).ok());
  for (uint64_t i = 1; i <= 10000; ++i) ASSERT_TRUE(file->Append(OnSegment(i)).ok());
  // Leases come and go.
  const size_t before = file->bytes();
  for (uint64_t i = 1; i <= 60000; ++i) {
    ASSERT_TRUE(file->Append({Erase<journal::Lease>(LeaseId{i}),
                              Put(journal::Lease{.id = LeaseId{10000 + i},
                                                 .session = SessionId{1},
                                                 .segment = SegmentId{1 + (i - 1) % 10000}})})
                    .ok());
  }
  EXPECT_LE(file->bytes(), before + kMiB / 16);
  EXPECT_LE(file->bytes(), 8 * kMiB);
  const JournalFile::Adopted adopted = Adopt(Kept(*file));
  EXPECT_EQ(adopted.contents.image.leases.size(), 10000u);
  EXPECT_EQ(adopted.contents.image.leases.begin()->first, LeaseId{60001});
  EXPECT_EQ(adopted.contents.image.exposures.size(), 10000u);
  EXPECT_EQ(adopted.contents.image.counters.lease, 70000u);
}

TEST(JournalFile, ABatchLongerThanAStage) {
  std::unique_ptr<JournalFile> file = MakeJournal();
  std::vector<Change> batch = {Put(journal::Session{.id = SessionId{1}})};
  for (uint64_t i = 1; i <= 20000; ++i) {
    batch.push_back(Put(journal::Segment{.id = SegmentId{i}}));
  }
  ASSERT_TRUE(file->Append(batch).ok());
  ASSERT_TRUE(file->Append({PutExposure(20000)}).ok());
  EXPECT_EQ(Adopt(Kept(*file)).contents.image.segments.size(), 20000u);
  // And when nothing is left of it, its memory goes, a little with each batch.
  for (Change& change : batch) change.op = journal::Op::kErase;
  batch[0] = EraseExposure(20000);
  ASSERT_TRUE(file->Append(batch).ok());
  EXPECT_GT(file->bytes(), 4 * kMiB);
  for (uint32_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(file->Append({Put(journal::Counters{.session = i})}).ok());
  }
  EXPECT_LE(file->bytes(), kMiB);
  const JournalFile::Adopted adopted = Adopt(Kept(*file));
  EXPECT_EQ(adopted.contents.image.sessions.size(), 1u);
  EXPECT_TRUE(adopted.contents.image.segments.empty());
  EXPECT_EQ(adopted.contents.image.counters.segment, 20000u);
}

// Which page of the file its records begin at.
uint64_t AreaPage(const JournalFile& file) {
  uint64_t page = 0;
  EXPECT_EQ(pread(file.fd(), &page, sizeof page, 88), static_cast<ssize_t>(sizeof page));
  return page;
}

// Existing records are not copied for a batch of any length that one operation makes.
TEST(JournalFile, ALongBatchLeavesTheOthersWhereTheyAre) {
  std::unique_ptr<JournalFile> file = MakeJournal();
  JournalImage model;
  const auto append = [&](const std::vector<Change>& batch) {
    ASSERT_TRUE(file->Append(batch).ok());
    for (const Change& change : batch) model.Apply(change);
  };
  append({Put(journal::Session{.id = SessionId{1}})});
  for (uint64_t i = 1; i <= 500; ++i) append({Put(journal::Segment{.id = SegmentId{i}})});
  const uint64_t page = AreaPage(*file);
  std::vector<Change> longer, erased;
  for (uint64_t i = 1000; i < 1000 + 65'535; ++i) {
    longer.push_back(Put(journal::Segment{.id = SegmentId{i}}));
    erased.push_back(Erase<journal::Segment>(SegmentId{i}));
  }
  append(longer);
  EXPECT_EQ(AreaPage(*file), page);
  EXPECT_TRUE(Adopt(Kept(*file)).contents.image == model);
  // Its copy of the batch goes with the next ones.
  for (uint64_t i : {1, 2}) append({PutExposure(i)});
  EXPECT_LT(file->bytes(), 18 * kMiB);  // its slots
  append(erased);
  append({PutExposure(3)});
  EXPECT_EQ(AreaPage(*file), page);
  EXPECT_TRUE(Adopt(Kept(*file)).contents.image == model);
  // And where the next daemon finds such a batch in use.
  append(longer);
  UniqueFd kept = Kept(*file);
  file = Adopt(std::move(kept)).file;
  for (uint64_t i : {4, 5}) append({PutExposure(i)});
  EXPECT_LT(file->bytes(), 18 * kMiB);  // its slots
  EXPECT_TRUE(Adopt(Kept(*file)).contents.image == model);
  // One more is copied to other pages with all the others.
  longer.push_back(Put(journal::Segment{.id = SegmentId{999}}));
  append(longer);
  EXPECT_NE(AreaPage(*file), page);
  EXPECT_TRUE(Adopt(Kept(*file)).contents.image == model);
}

TEST(JournalFile, CannotShrink) {
  std::unique_ptr<JournalFile> file = MakeJournal();
  EXPECT_NE(ftruncate(file->fd(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(fcntl(file->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
}

TEST(JournalFile, TakesNothingThatIsNoJournal) {
  const auto refused = [](UniqueFd fd, absl::string_view words) {
    const absl::Status status = JournalFile::Adopt(std::move(fd)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(words)));
  };
  const auto memfd = [](off_t bytes, int seals) {
    UniqueFd fd(memfd_create("journal-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  refused(memfd(8192, 0), "not sealed against shrinking");
  refused(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)), "not made by a daemon");
  refused(UniqueFd(open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC)), "not made by a daemon");
  refused(memfd(0, F_SEAL_SHRINK), "no header");
  refused(memfd(100, F_SEAL_SHRINK), "no header");
  refused(memfd(8192, F_SEAL_SHRINK), "does not begin with the header of a journal");
  // Sparse, and larger than all memory: looked at, and not read through.
  refused(memfd(off_t{1} << 40, F_SEAL_SHRINK), "does not begin with the header of a journal");
  EXPECT_FALSE(JournalFile::Adopt(UniqueFd()).ok());
}

// Bytes of the file, through a mapping of the test's own.
class View {
 public:
  explicit View(int fd) {
    struct stat found = {};
    EXPECT_EQ(fstat(fd, &found), 0);
    bytes_ = static_cast<size_t>(found.st_size);
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(data_, MAP_FAILED);
  }
  View(const View&) = delete;
  ~View() { munmap(data_, bytes_); }
  uint8_t& operator[](size_t at) const { return static_cast<uint8_t*>(data_)[at]; }

 private:
  void* data_;
  size_t bytes_;
};

TEST(JournalFile, RefusesDamageAndOtherVersionsAndLeavesThemAsTheyAre) {
  std::unique_ptr<JournalFile> file = MakeJournal();
  ASSERT_TRUE(file->Append(OnSegment(1)).ok());  // of no session
  const UniqueFd kept = Kept(*file);
  EXPECT_EQ(JournalFile::Adopt(Kept(*file)).status().code(), absl::StatusCode::kDataLoss);
  const View view(kept.get());
  constexpr size_t kGenerationAt = 80;
  EXPECT_EQ(view[kGenerationAt], 1);  // none more
  ASSERT_TRUE(file->Append({Put(journal::Session{.id = SessionId{1}})}).ok());
  view[8] = 3;
  EXPECT_EQ(JournalFile::Adopt(Kept(*file)).status().code(), absl::StatusCode::kFailedPrecondition);
  view[8] = 2;
  // In the first slot: behind the area's head and two stages.
  const size_t first = (2 + 2 * kStagePages) * kJournalPageBytes;
  view[first + 100] ^= 1;
  EXPECT_EQ(JournalFile::Adopt(Kept(*file)).status().code(), absl::StatusCode::kDataLoss);
  view[first + 100] ^= 1;
  EXPECT_EQ(view[kGenerationAt], 1);
  EXPECT_EQ(JournalFile::Adopt(Kept(*file)).status().ToString(), "OK");
  EXPECT_EQ(view[kGenerationAt], 2);
}

// No memory: as if by a limit, which files in memory know too (setrlimit(2), RLIMIT_FSIZE).
class NoMoreMemory {
 public:
  explicit NoMoreMemory(size_t bytes) : before_(signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &limit_), 0);
    const rlimit lower = {.rlim_cur = bytes, .rlim_max = limit_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &lower), 0);
  }
  NoMoreMemory(const NoMoreMemory&) = delete;
  ~NoMoreMemory() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    signal(SIGXFSZ, before_);
  }

 private:
  rlimit limit_ = {};
  void (*before_)(int);
};

TEST(JournalFile, WithoutMemoryItSaysThatItIsBehind) {
  std::unique_ptr<JournalFile> file = MakeJournal();
  JournalImage model;
  uint64_t next = 1;
  const auto append = [&] {
    const Change change = Put(journal::Session{.id = SessionId{next++}});
    absl::Status status = file->Append({change});
    if (status.ok()) model.Apply(change);
    return status;
  };
  {
    // The stages have places for long batches, and no memory for them yet.
    const NoMoreMemory limit(2 * kStagePages * kJournalPageBytes + kMiB);
    EXPECT_EQ(JournalFile::Create({}).status().ToString(), "OK");
    absl::Status status;
    while (status.ok()) status = append();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    // But for the heads and less than a chunk.
    EXPECT_GT(model.sessions.size(), 16 * (256 - 2 - 16));
    EXPECT_EQ(append().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(file->Rewrite(model).code(), absl::StatusCode::kResourceExhausted);
  }
  // The missing batch stays missing, though there is memory now.
  EXPECT_EQ(append().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(JournalFile::Adopt(Kept(*file)).status().code(), absl::StatusCode::kDataLoss);
  model.Apply(Put(journal::Session{.id = SessionId{next++}}));
  EXPECT_EQ(file->Rewrite(model).ToString(), "OK");
  EXPECT_EQ(append().ToString(), "OK");
  EXPECT_TRUE(Adopt(Kept(*file)).contents.image == model);
  {
    const NoMoreMemory limit(1000);
    EXPECT_EQ(JournalFile::Create({}).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

// Corrupted records are not accepted as valid when they are moved.
TEST(JournalFile, DamageStaysDamage) {
  std::unique_ptr<JournalFile> file = MakeJournal();
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(file->Append({Put(journal::Session{.id = SessionId{i}})}).ok());
  }
  {
    const View view(file->fd());
    view[(2 + 2 * kStagePages) * kJournalPageBytes + 100] ^= 1;
  }
  EXPECT_EQ(JournalFile::Adopt(Kept(*file)).status().code(), absl::StatusCode::kDataLoss);
  const std::vector<Change> longer(2000, Put(journal::Session{.id = SessionId{9}}));
  ASSERT_TRUE(file->Append(longer).ok());
  EXPECT_EQ(JournalFile::Adopt(Kept(*file)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(file->Rewrite(JournalImage()).ToString(), "OK");
  EXPECT_TRUE(Adopt(Kept(*file)).contents.image == JournalImage());
}

TEST(ChooseJournal, TheNewestThatIsComplete) {
  EXPECT_EQ(ChooseJournal({}).status().code(), absl::StatusCode::kNotFound);
  const std::unique_ptr<JournalFile> a = MakeJournal(1), b = MakeJournal(3), c = MakeJournal(2);
  EXPECT_EQ(*ChooseJournal({a->fd()}), 0u);
  EXPECT_EQ(*ChooseJournal({a->fd(), b->fd(), c->fd()}), 1u);
  {
    const View view(b->fd());
    for (size_t at = 88; at < 96; ++at) view[at] = 0;
  }
  EXPECT_EQ(*ChooseJournal({a->fd(), b->fd(), c->fd()}), 2u);
  EXPECT_EQ(ChooseJournal({b->fd()}).status().code(), absl::StatusCode::kNotFound);
  {
    const View view(b->fd());
    view[20] ^= 1;  // its number is unknown
  }
  EXPECT_EQ(ChooseJournal({a->fd(), b->fd(), c->fd()}).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(ChooseJournal, NotOneThatIsStillToBeWritten) {
  const std::unique_ptr<JournalFile> old = MakeJournal(1);
  auto next = JournalFile::Create({.number = 2}, /*complete=*/false);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*ChooseJournal({old->fd(), (*next)->fd()}), 0u);
  EXPECT_EQ(ChooseJournal({(*next)->fd()}).status().code(), absl::StatusCode::kNotFound);
  JournalImage image;
  image.Apply(Put(journal::Session{.id = SessionId{1}}));
  EXPECT_EQ((*next)->Rewrite(image).ToString(), "OK");
  EXPECT_EQ(*ChooseJournal({old->fd(), (*next)->fd()}), 1u);
  EXPECT_TRUE(Adopt(Kept(**next)).contents.image == image);
}

TEST(JournalIdentity, IsOfThisBoot) {
  const absl::StatusOr<JournalIdentity> identity = ReadJournalIdentity(4);
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->number, 4u);
  EXPECT_EQ(identity->boot_id[6] >> 4, 4);  // a random UUID (RFC 4122, 4.1.3)
  struct stat found = {};
  ASSERT_EQ(stat("/proc/self/ns/pid", &found), 0);
  EXPECT_EQ(identity->pid_namespace, found.st_ino);
  EXPECT_EQ(*ReadJournalIdentity(4), *identity);
}

}  // namespace journal_file_test
}  // namespace gpumemd
