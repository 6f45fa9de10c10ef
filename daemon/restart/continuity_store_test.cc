// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/continuity_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "daemon/restart/fd_store/testing/fd_store_fixture.h"
#include "daemon/restart/journal_file.h"

namespace gpumemd {
namespace continuity_store_test {

constexpr int kFirstFd = 3;  // of those that a manager hands over (sd_listen_fds(3))

// Passes the first daemon's journal to the second, as a manager does.
void HandOverJournal() {
  UniqueFd copy;
  {
    const auto file = JournalFile::Create({});  // of another boot
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->Rewrite({}), absl::OkStatus());
    copy.reset(::fcntl((*file)->fd(), F_DUPFD, 10));
  }
  ASSERT_EQ(::dup2(copy.get(), kFirstFd), kFirstFd);
  ::setenv("LISTEN_PID", absl::StrCat(::getpid()).c_str(), 1);
  ::setenv("LISTEN_FDS", "1", 1);
  ::setenv("LISTEN_FDNAMES", "j1", 1);
}

// Of one that has nothing in it.
size_t NewJournalBytes() {
  const auto file = JournalFile::Create({});
  EXPECT_TRUE(file.ok()) << file.status();
  struct stat found = {};
  EXPECT_EQ(::fstat((*file)->fd(), &found), 0);
  return static_cast<size_t>(found.st_size);
}

// Returns the names that a daemon asks the manager to release when it begins with `sessions`
// sessions and has memory for a journal of `journal_bytes`.
std::vector<std::string> LetGo(int sessions, size_t journal_bytes) {
  HandOverJournal();
  Manager manager;
  std::vector<std::string> removed;
  std::unique_ptr<FdStore> store = manager.Start();
  std::thread listener([&] {
    while (true) {
      const Message message = manager.Receive();
      if (absl::StrContains(message.text, "STOPPING=1")) return;
      if (absl::StrContains(message.text, "FDSTOREREMOVE=1")) removed.push_back(message.text);
    }
  });
  {
    signal(SIGXFSZ, SIG_IGN);  // no memory: files in memory know this limit, too (setrlimit(2))
    const rlimit limit = {.rlim_cur = journal_bytes, .rlim_max = RLIM_INFINITY};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    auto continuity = ContinuityStore::Open(store.get());
    EXPECT_TRUE(continuity.ok()) << continuity.status();
    JournalImage image;
    for (int i = 1; i <= sessions; ++i) {
      image.Apply(journal::Put(journal::Session{.id = SessionId{static_cast<uint64_t>(i)}}));
    }
    if (continuity.ok() && (*continuity)->Begin(image).ok()) removed.emplace_back("begun");
  }
  store->NotifyStopping("the end").IgnoreError();
  listener.join();
  return removed;
}

bool Says(const std::vector<std::string>& messages, absl::string_view words) {
  return std::any_of(messages.begin(), messages.end(),
                     [&](const std::string& each) { return absl::StrContains(each, words); });
}

TEST(ContinuityStoreTest, TheOldJournalIsRemovedWhenTheNewOneIsComplete) {
  EXPECT_EQ(InChild([] {
              const std::vector<std::string> removed = LetGo(10, 8 * NewJournalBytes());
              if (!Says(removed, "begun")) return 1;
              if (Says(removed, "FDNAME=j2")) return 2;
              return Says(removed, "FDNAME=j1") ? 0 : 3;
            }),
            0);
}

// It is a start that fails, and leaves things as they were: starts may be many.
TEST(ContinuityStoreTest, WithoutMemoryForTheNewJournalOnlyThatGoes) {
  EXPECT_EQ(InChild([] {
              const std::vector<std::string> removed =
                  LetGo(100'000, NewJournalBytes() + (size_t{1} << 20));
              if (Says(removed, "begun")) return 1;
              if (Says(removed, "FDNAME=j1")) return 2;
              return Says(removed, "FDNAME=j2") ? 0 : 3;
            }),
            0);
}

// --- A store that is full ---------------------------------------------------------------

// Keeps so many descriptors and drops others without a word, as systemd does.
class FullManager {
 public:
  explicit FullManager(size_t places) : places_(places) {}
  std::unique_ptr<FdStore> Start() {
    std::unique_ptr<FdStore> store = manager_.Start();
    thread_ = std::thread([this] { Serve(); });
    return store;
  }
  // After NotifyStopping.
  void Join() { thread_.join(); }
  // But for probes.
  size_t kept() const { return kept_.size(); }
  size_t dropped() const { return dropped_; }
  // How often it was asked for room.
  int64_t probes() const { return probes_; }

 private:
  void Serve() {
    while (true) {
      Message message = manager_.Receive();
      if (absl::StrContains(message.text, "STOPPING=1")) return;
      const size_t at = message.text.find("FDNAME=");
      const std::string name = at == std::string::npos ? "" : message.text.substr(at + 7);
      if (absl::StrContains(message.text, "FDSTOREREMOVE=1")) kept_.erase(name);
      if (!absl::StrContains(message.text, "FDSTORE=1")) continue;
      if (name == "probe") ++probes_;
      for (UniqueFd& fd : message.fds) {
        if (kept_.size() < places_) {
          kept_.emplace(name, std::move(fd));
        } else if (name != "probe") {
          ++dropped_;
        }
      }
    }
  }

  const size_t places_;
  Manager manager_;
  std::multimap<std::string, UniqueFd> kept_;
  size_t dropped_ = 0;
  int64_t probes_ = 0;
  std::thread thread_;
};

// Stores 170 segments in a store of 12 places, which announces `says` as its capacity (null:
// nothing). Returns the number of a check that failed; 0: none.
int Fill(const char* says, WhenStoreFull when_full, size_t room) {
  constexpr uint64_t kSegments = 170;
  const auto start = std::chrono::steady_clock::now();
  if (says != nullptr) ::setenv("FDSTORE", says, 1);
  FullManager manager(12);
  const std::unique_ptr<FdStore> store = manager.Start();
  int wrong = 0;
  {
    auto continuity = ContinuityStore::Open(store.get(), when_full);
    if (!continuity.ok()) return 1;
    const UniqueFd memory = NewFile();
    size_t refused = 0;
    for (uint64_t id = 1; id <= kSegments; ++id) {
      const absl::Status kept = (*continuity)->Keep(SegmentId{id}, memory.get());
      if (absl::IsResourceExhausted(kept)) ++refused;
    }
    const bool refuses = when_full == WhenStoreFull::kRefuse;
    const size_t without = kSegments - room;
    if (refused != (refuses ? without : 0)) wrong = 2;
    if ((*continuity)->unkept() != (refuses ? 0 : without)) wrong = 3;
    if (!Says((*continuity)->Notices(), "store of descriptors is full")) wrong = 4;
    if (Says((*continuity)->Notices(), "new segments are refused") != refuses) wrong = 5;
    // Stored descriptors are still kept.
    if (!(*continuity)->keeps_memory() || !(*continuity)->SeenToKeep()) wrong = 9;
    if (!(*continuity)->full()) wrong = 10;
    // Freeing a place, or releasing an unkept segment, ends it.
    (*continuity)->LetGo({SegmentId{1}});
    if ((*continuity)->full()) wrong = 11;
    if (!(*continuity)->Keep(SegmentId{kSegments + 1}, memory.get()).ok()) wrong = 6;
    for (uint64_t id = room + 1; id <= kSegments; ++id) (*continuity)->LetGo({SegmentId{id}});
    if ((*continuity)->unkept() != 0 || !(*continuity)->Notices().empty()) wrong = 7;
  }
  store->NotifyStopping("the end").IgnoreError();
  manager.Join();
  // It is asked for each crate, for anything at all, and otherwise once a second.
  const auto took = std::chrono::steady_clock::now() - start;
  const auto asked = static_cast<int64_t>(room / 32) + 3 +
                     std::chrono::duration_cast<std::chrono::seconds>(took).count();
  if (manager.probes() > asked) wrong = 12;
  return manager.dropped() == 0 ? wrong : 8;
}

TEST(ContinuityStoreTest, NothingIsDroppedByAStoreWhosePlacesAreKnown) {
  // Except those for the daemon, two of 12 places for each 32.
  EXPECT_EQ(InChild([] { return Fill("12", WhenStoreFull::kWarn, 96); }), 0);
  EXPECT_EQ(InChild([] { return Fill("12", WhenStoreFull::kRefuse, 96); }), 0);
}

TEST(ContinuityStoreTest, NothingIsDroppedByAStoreWhosePlacesAreUnknown) {
  EXPECT_EQ(InChild([] { return Fill(nullptr, WhenStoreFull::kWarn, 160); }), 0);
  EXPECT_EQ(InChild([] { return Fill(nullptr, WhenStoreFull::kRefuse, 160); }), 0);
}

TEST(ContinuityStoreTest, NothingIsDroppedByAStoreThatSaysMoreThanItHas) {
  EXPECT_EQ(InChild([] { return Fill("2048", WhenStoreFull::kWarn, 160); }), 0);
}

TEST(ContinuityStoreTest, AManagerThatIsSlowHoldsUpOnlyWhatNeedsItsAnswer) {
  EXPECT_EQ(InChild([] {
              ::setenv("FDSTORE", "64", 1);
              const Manager manager;
              const std::unique_ptr<FdStore> store = manager.Start();
              std::atomic<bool> holds = false;
              absl::Notification asked, go_on;
              std::thread listener([&] {
                std::vector<Message> kept;
                while (true) {
                  kept.push_back(manager.Receive());
                  if (absl::StrContains(kept.back().text, "STOPPING=1")) return;
                  if (kept.back().text == "BARRIER=1") kept.pop_back();
                  if (!holds || asked.HasBeenNotified()) continue;
                  asked.Notify();
                  go_on.WaitForNotification();
                }
              });
              int wrong = 0;
              {
                auto continuity = ContinuityStore::Open(store.get());
                if (!continuity.ok() || !(*continuity)->SeenToKeep()) return 1;
                const UniqueFd memory = NewFile();
                for (uint64_t id = 1; id <= 32; ++id) {
                  if (!(*continuity)->Keep(SegmentId{id}, memory.get()).ok()) wrong = 2;
                }
                if (!store->Barrier().ok()) wrong = 3;
                holds = true;
                std::thread needs_a_crate([&] {
                  if (!(*continuity)->Keep(SegmentId{33}, memory.get()).ok()) wrong = 4;
                });
                asked.WaitForNotification();
                // There is room for this one.
                (*continuity)->LetGo({SegmentId{1}});
                const absl::Status kept = (*continuity)->Keep(SegmentId{34}, memory.get());
                go_on.Notify();
                needs_a_crate.join();
                if (!kept.ok() || (*continuity)->unkept() != 0) wrong = 5;
                if (!(*continuity)->Notices().empty()) wrong = 6;
              }
              store->NotifyStopping("the end").IgnoreError();
              listener.join();
              return wrong;
            }),
            0);
}

TEST(ContinuityStoreTest, WithoutDescriptorsToAskWithItIsNotFull) {
  EXPECT_EQ(InChild([] {
              FullManager manager(64);
              const std::unique_ptr<FdStore> store = manager.Start();
              int wrong = 0;
              {
                auto opened = ContinuityStore::Open(store.get(), WhenStoreFull::kRefuse);
                if (!opened.ok() || !(*opened)->SeenToKeep()) return 1;
                ContinuityStore& continuity = **opened;
                const UniqueFd memory = NewFile();
                for (uint64_t id = 1; id <= 32; ++id) {
                  if (!continuity.Keep(SegmentId{id}, memory.get()).ok()) wrong = 2;
                }
                rlimit files;
                getrlimit(RLIMIT_NOFILE, &files);
                const rlimit none = {.rlim_cur = 0, .rlim_max = files.rlim_max};
                if (!store->Barrier().ok() || setrlimit(RLIMIT_NOFILE, &none) != 0) wrong = 3;
                // It is made, and told of.
                if (!continuity.Keep(SegmentId{33}, memory.get()).ok()) wrong = 4;
                setrlimit(RLIMIT_NOFILE, &files);
                if (continuity.full() || continuity.unkept() != 1) wrong = 5;
                if (!Says(continuity.Notices(), "did not take 1 segments")) wrong = 6;
                if (!continuity.keeps_memory()) wrong = 7;
                continuity.LetGo({SegmentId{33}});
                if (!continuity.Notices().empty()) wrong = 8;
              }
              store->NotifyStopping("the end").IgnoreError();
              manager.Join();
              return wrong;
            }),
            0);
}

TEST(ContinuityStoreTest, WhatAKeeperDidNotTakeHasNoPlaceThere) {
  EXPECT_EQ(InChild([] {
              ::setenv("FDSTORE", "16", 1);
              ::setenv("GPUMEM_KEEPER_PID", absl::StrCat(::getppid()).c_str(), 1);
              FullManager manager(16);
              const std::unique_ptr<FdStore> store = manager.Start();
              int wrong = 0;
              {
                auto opened = ContinuityStore::Open(store.get());
                if (!opened.ok() || !(*opened)->SeenToKeep()) return 1;
                ContinuityStore& continuity = **opened;
                const uint64_t used = continuity.used_places();
                for (uint64_t id = 1; id <= 10; ++id) {
                  if (!continuity.Keep(SegmentId{id}, /*fd=*/-1).ok()) wrong = 2;
                }
                if (continuity.unkept() != 10 || continuity.used_places() != used) wrong = 3;
                for (uint64_t id = 1; id <= 10; ++id) continuity.LetGo({SegmentId{id}});
                const UniqueFd memory = NewFile();
                for (uint64_t id = 11; id <= 20; ++id) {
                  if (!continuity.Keep(SegmentId{id}, memory.get()).ok()) wrong = 4;
                }
                if (continuity.unkept() != 0 || continuity.used_places() != used + 10) wrong = 5;
                continuity.LetGo({SegmentId{11}});
                if (continuity.used_places() != used + 9) wrong = 6;
                if (!continuity.Notices().empty()) wrong = 7;
              }
              store->NotifyStopping("the end").IgnoreError();
              manager.Join();
              return wrong;
            }),
            0);
}

TEST(ContinuityStoreTest, AManagerThatKeepsNothingIsSeen) {
  EXPECT_EQ(InChild([] {
              FullManager manager(0);
              const std::unique_ptr<FdStore> store = manager.Start();
              int wrong = 0;
              {
                const auto continuity = ContinuityStore::Open(store.get());
                if (!continuity.ok()) return 1;
                if ((*continuity)->SeenToKeep() || (*continuity)->keeps_memory()) wrong = 2;
                if ((*continuity)->full()) wrong = 3;
              }
              store->NotifyStopping("the end").IgnoreError();
              manager.Join();
              return wrong;
            }),
            0);
}

}  // namespace continuity_store_test
}  // namespace gpumemd
