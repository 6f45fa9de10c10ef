// SPDX-License-Identifier: Apache-2.0
// Daemons that are killed while they write: between any two instructions of the table, at every
// system call of the file, and at random, repeatedly. They leave the state after some whole batch,
// and no earlier one than they had seen written.
#include <gtest/gtest.h>
#include <linux/prctl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/journal/table.h"
#include "daemon/core/journal/testing/chance.h"
#include "daemon/restart/journal_file.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
using journal::Change;
using journal::Put;

constexpr int kNotTraced = 77;  // an exit code: it may not be traced here

// A forked child of this process, which has one thread. Killed and reaped at its end.
class Writer {
 public:
  explicit Writer(const std::function<void()>& work, bool traced = false) : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (traced) {
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotTraced);
      raise(SIGSTOP);
    }
    work();
    _exit(0);
  }
  Writer(const Writer&) = delete;
  ~Writer() { Kill(); }

  pid_t pid() const { return pid_; }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    int status;
    while (waitpid(pid_, &status, 0) == pid_ && !WIFEXITED(status) && !WIFSIGNALED(status)) {
    }
    pid_ = -1;
  }
  // Of one that is traced: until the next stop. False at its end.
  bool Next(__ptrace_request how) {
    if (!started_) {
      started_ = true;
      if (!Stopped()) return false;
    }
    return ptrace(how, pid_, nullptr, nullptr) == 0 && Stopped();
  }
  int exit_code() const { return exit_code_; }

 private:
  bool Stopped() {
    int status = 0;
    if (waitpid(pid_, &status, 0) != pid_) return false;
    if (WIFSTOPPED(status)) return true;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
    return false;
  }

  pid_t pid_;
  bool started_ = false;
  int exit_code_ = -1;
};

// Memory that a child shares.
template <typename T>
class Shared {
 public:
  explicit Shared(size_t count)
      : bytes_(count * sizeof(T)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(data_, MAP_FAILED);
  }
  Shared(const Shared&) = delete;
  ~Shared() { munmap(data_, bytes_); }
  T* get() const { return static_cast<T*>(data_); }

 private:
  const size_t bytes_;
  void* const data_;
};

TEST(JournalKill, BetweenAnyTwoInstructions) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "most instructions are the sanitizer's: it did not end in 8 minutes";
#endif
  // Three areas, each with a page for each stage, and one of slots, or three.
  constexpr size_t kBytes = 16 * kJournalPageBytes;
  const Shared<uint8_t> memory(kBytes);
  const absl::Span<uint8_t> bytes(memory.get(), kBytes);
  JournalTable table =
      JournalTable::Create(bytes, {}, {.page = 1, .stage_pages = 1, .slot_pages = 1});
  std::vector<std::vector<Change>> batches;
  for (uint32_t i = 1; i <= 24; ++i) {
    batches.push_back({Put(journal::Exposure{SessionId{1}, SegmentId{1}, i}),
                       Put(journal::Exposure{SessionId{1}, SegmentId{2 + i % 6}, i}),
                       Put(journal::Session{.id = SessionId{1 + i % 3}, .start_time = i})});
  }
  batches.push_back({journal::Erase<journal::Session>(SessionId{1})});
  batches.emplace_back();
  for (uint64_t i = 10; i < 26; ++i)
    batches.back().push_back(Put(journal::Session{.id = SessionId{i}}));
  batches.push_back({journal::Erase<journal::Exposure>({SessionId{1}, SegmentId{2}}),
                     Put(journal::Session{.id = SessionId{2}, .start_time = 99})});
  std::vector<JournalImage> states(1);
  for (const std::vector<Change>& batch : batches) {
    states.push_back(states.back());
    for (const Change& change : batch) states.back().Apply(change);
  }

  Writer writer(
      [&] {
        for (size_t i = 0; i < batches.size(); ++i) {
          // All that it does beside batches, which is to change nothing.
          if (i == 5) table.Grow(1);
          if (i == 9) table.Shrink(1);
          if (i == 13) {
            absl::StatusOr<JournalContents> contents = ReadJournal(bytes);
            if (!contents.ok()) abort();
            table = JournalTable::Resume(bytes, *contents);
          }
          if (i == 17) table.Rewrite(table.Place(1, 1), states[i]);
          if (table.Append(batches[i])) continue;
          table.MoveWith(table.Place(1, 3), batches[i]);  // the one that is longer than a stage
        }
      },
      /*traced=*/true);
  std::vector<uint8_t> seen(bytes.begin(), bytes.end());
  size_t state = 0, steps = 0, changes = 0, half_applied = 0;
  while (writer.Next(PTRACE_SINGLESTEP)) {
    ++steps;
    if (std::memcmp(seen.data(), bytes.data(), kBytes) == 0) continue;
    ++changes;
    seen.assign(bytes.begin(), bytes.end());
    const absl::StatusOr<JournalContents> read = ReadJournal(bytes);
    ASSERT_TRUE(read.ok()) << read.status() << " after " << steps << " instructions";
    if (read->unapplied > 0) ++half_applied;
    if (state + 1 < states.size() && read->image == states[state + 1]) ++state;
    ASSERT_TRUE(read->image == states[state])
        << "neither batch " << state << " nor the next, after " << steps << " instructions";
  }
  if (writer.exit_code() == kNotTraced) GTEST_SKIP() << "no process can be traced here";
  ASSERT_EQ(writer.exit_code(), 0);
  EXPECT_EQ(state, batches.size());
  EXPECT_GE(half_applied, 50u);  // batches that count, and are not in their slots yet
  EXPECT_GT(changes, 500u);
}

// Batches by chance, each with its number in it, and with `fresh` new objects, or the end of some.
class Batches {
 public:
  explicit Batches(uint64_t seed, size_t most, uint64_t fresh = 0)
      : chance_(seed), most_(most), fresh_(fresh) {}
  std::vector<Change> Next() {
    std::vector<Change> batch = chance_.Batch(most_);
    std::erase_if(batch, [](const Change& change) {  // what would refer to something
      return !std::holds_alternative<journal::Session>(change.object) &&
             !std::holds_alternative<journal::Segment>(change.object) &&
             !std::holds_alternative<journal::Counters>(change.object);
    });
    batch.push_back(Put(journal::Session{.id = kMark, .start_time = ++number_}));
    // Eight batches that put, and eight that erase what they did.
    const bool erases = number_ / 8 % 2 == 1;
    const uint64_t of = erases ? number_ - 8 : number_;
    for (uint64_t i = 0; i < fresh_; ++i) {
      const SegmentId id{100000 + of * fresh_ + i};
      batch.push_back(erases ? journal::Erase<journal::Segment>(id)
                             : Put(journal::Segment{.id = id}));
    }
    return batch;
  }
  uint64_t number() const { return number_; }

  // How many of them an image has.
  static uint64_t In(const JournalImage& image) {
    const auto mark = image.sessions.find(kMark);
    return mark == image.sessions.end() ? 0 : mark->second.start_time;
  }

 private:
  static constexpr SessionId kMark{1000};

  JournalChance chance_;
  size_t most_;
  uint64_t fresh_;
  uint64_t number_ = 0;
};

void Follow(JournalImage& model, Batches& batches, uint64_t until) {
  while (batches.number() < until) {
    for (const Change& change : batches.Next()) model.Apply(change);
  }
}

JournalFile::Adopted Adopt(int fd) {
  absl::StatusOr<JournalFile::Adopted> adopted = JournalFile::Adopt(UniqueFd(dup(fd)));
  EXPECT_EQ(adopted.status().ToString(), "OK");
  return *std::move(adopted);
}

// Kills at every system call as the file grows, as batches longer than a stage go to other pages,
// and as memory is given back.
void KillAtEverySystemCall(uint64_t segments) {
  constexpr int kBatches = 30;
  std::vector<Change> first;
  for (uint64_t i = 1; i <= segments; ++i) {
    first.push_back(Put(journal::Segment{.id = SegmentId{1000 + i}}));
  }
  for (int stop = 1;; ++stop) {
    SCOPED_TRACE(absl::StrCat("stop ", stop));
    ASSERT_LT(stop, 1000);
    absl::StatusOr<std::unique_ptr<JournalFile>> file = JournalFile::Create({});
    ASSERT_TRUE(file.ok());
    const UniqueFd kept(dup((*file)->fd()));
    ASSERT_TRUE((*file)->Append(first).ok());
    Batches batches(5, 3000, 300);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE((*file)->Append(batches.Next()).ok());
    const uint64_t before = batches.number();
    bool ended = false;
    {
      Writer writer(
          [&] {
            Batches mine = batches;
            for (int i = 0; i < kBatches; ++i) {
              if (!(*file)->Append(mine.Next()).ok()) abort();
            }
          },
          /*traced=*/true);
      for (int i = 0; i < stop && !ended; ++i) ended = !writer.Next(PTRACE_SYSCALL);
      if (ended && writer.exit_code() == kNotTraced)
        GTEST_SKIP() << "no process can be traced here";
      if (ended) {
        ASSERT_EQ(writer.exit_code(), 0);
      }
    }
    file->reset();
    JournalFile::Adopted adopted = Adopt(kept.get());
    ASSERT_GE(Batches::In(adopted.contents.image), before);
    JournalImage model;
    for (const Change& change : first) model.Apply(change);
    Batches all(5, 3000, 300);
    Follow(model, all, Batches::In(adopted.contents.image));
    ASSERT_TRUE(adopted.contents.image == model);
    const std::vector<Change> batch = all.Next();
    ASSERT_TRUE(adopted.file->Append(batch).ok());
    for (const Change& change : batch) model.Apply(change);
    ASSERT_TRUE(Adopt(kept.get()).contents.image == model);
    if (ended) {
      EXPECT_EQ(all.number(), before + kBatches + 1);
      EXPECT_GT(stop, 10);
      return;
    }
  }
}

TEST(JournalKill, AtEverySystemCallOfASmallTable) { KillAtEverySystemCall(0); }
TEST(JournalKill, AtEverySystemCallOfALargeTable) { KillAtEverySystemCall(6000); }

TEST(JournalKill, TwoHundredTimesAtRandom) {
  absl::StatusOr<std::unique_ptr<JournalFile>> made = JournalFile::Create({});
  ASSERT_TRUE(made.ok());
  const UniqueFd kept(dup((*made)->fd()));
  made->reset();
  const Shared<std::atomic<uint64_t>> reported(1);
  JournalChance chance(17);
  Batches batches(9, 500);
  JournalImage model;
  uint64_t half_applied = 0;
  for (uint32_t killed = 1; killed <= 200; ++killed) {
    SCOPED_TRACE(absl::StrCat("kill ", killed));
    const uint64_t from = batches.number();
    {
      Writer writer([&] {
        absl::StatusOr<JournalFile::Adopted> adopted =
            JournalFile::Adopt(UniqueFd(dup(kept.get())));
        if (!adopted.ok()) abort();
        while (adopted->file->Append(batches.Next()).ok()) *reported.get() = batches.number();
        abort();
      });
      const uint64_t wait_for = from + 1 + chance.Below(40);
      while (*reported.get() < wait_for) {
        ASSERT_EQ(waitpid(writer.pid(), nullptr, WNOHANG), 0) << "it ended by itself";
      }
      for (uint64_t spin = chance.Below(20000); spin > 0; --spin) (void)reported.get()->load();
      writer.Kill();
    }
    const uint64_t least = *reported.get();
    const JournalFile::Adopted adopted = Adopt(kept.get());
    // Adopted by the child, and here.
    ASSERT_EQ(adopted.contents.header.generation, 1 + 2 * killed);
    const uint64_t is = Batches::In(adopted.contents.image);
    ASSERT_GE(is, least);
    ASSERT_LE(is, least + 1);  // one was written, and not yet reported
    if (adopted.contents.unapplied > 0) ++half_applied;
    Follow(model, batches, is);
    ASSERT_TRUE(adopted.contents.image == model);
  }
  RecordProperty("half_applied", static_cast<int>(half_applied));
  EXPECT_GT(batches.number(), 2000u);
}

}  // namespace
}  // namespace gpumemd
