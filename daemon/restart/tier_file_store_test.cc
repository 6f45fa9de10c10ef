// SPDX-License-Identifier: Apache-2.0
// The file of the host tier in the service manager's store.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/restart/continuity_store.h"
#include "daemon/restart/fd_store/testing/fd_store_fixture.h"
#include "daemon/restart/journal_file.h"

namespace gpumemd {
namespace tier_file_store_test {

constexpr int kFirstFd = 3;  // of those that a manager hands over (sd_listen_fds(3))
constexpr char kStore[] = "FDSTORE=1";
constexpr char kRemove[] = "FDSTOREREMOVE=1";

// Passes the journal and the tier's file of one daemon to the next, as a manager does. `suspended`:
// the journal has a segment in the tier.
void HandOver(bool suspended) {
  // Both files are closed before descriptors get their numbers.
  UniqueFd journal_copy, tier_copy;
  {
    const auto journal = JournalFile::Create({});  // of another boot
    ASSERT_TRUE(journal.ok()) << journal.status();
    JournalImage image;
    if (suspended) {
      image.Apply(journal::Put(
          journal::Segment{.id = SegmentId{1}, .bytes = 1, .kind = Kind::kTier, .made = true}));
    }
    ASSERT_EQ((*journal)->Rewrite(image), absl::OkStatus());
    const UniqueFd tier = NewFile();
    ASSERT_EQ(::ftruncate(tier.get(), 4711), 0);
    journal_copy.reset(::fcntl((*journal)->fd(), F_DUPFD, 10));
    tier_copy.reset(::fcntl(tier.get(), F_DUPFD, 10));
  }
  ASSERT_EQ(::dup2(journal_copy.get(), kFirstFd), kFirstFd);
  ASSERT_EQ(::dup2(tier_copy.get(), kFirstFd + 1), kFirstFd + 1);
  ::setenv("LISTEN_PID", absl::StrCat(::getpid()).c_str(), 1);
  ::setenv("LISTEN_FDS", "2", 1);
  ::setenv("LISTEN_FDNAMES", "j1:t1", 1);
}

// Returns how many descriptors of this process are of files of this size.
int OpenFiles(off_t bytes) {
  int found = 0;
  for (int fd = 0; fd < 64; ++fd) {
    struct stat info = {};
    if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == bytes) ++found;
  }
  return found;
}

// A keeper that keeps what it gets. Runs `daemon` beside it, and returns its messages about the
// tier's file in their order.
std::vector<std::string> RunBesideKeeper(const std::function<void(FdStore*)>& daemon) {
  ::setenv("FDSTORE", "16", 1);
  ::setenv("GPUMEM_KEEPER_PID", absl::StrCat(::getppid()).c_str(), 1);
  const Manager manager;
  std::unique_ptr<FdStore> store = manager.Start();
  std::vector<std::string> actions;
  std::thread listener([&] {
    std::vector<Message> kept;
    while (true) {
      Message message = manager.Receive();
      if (absl::StrContains(message.text, "STOPPING=1")) return;
      if (absl::StrContains(message.text, "FDNAME=t1")) {
        if (absl::StrContains(message.text, kStore)) actions.emplace_back(kStore);
        if (absl::StrContains(message.text, kRemove)) actions.emplace_back(kRemove);
      }
      if (absl::StrContains(message.text, kStore)) kept.push_back(std::move(message));
    }
  });
  daemon(store.get());
  store->NotifyStopping("the end").IgnoreError();
  listener.join();
  return actions;
}

TEST(TierFileStore, TheFileComesBackIfItHasContents) {
  EXPECT_EQ(InChild([] {
              HandOver(/*suspended=*/true);
              int wrong = 0;
              const auto actions = RunBesideKeeper([&](FdStore* store) {
                auto continuity = ContinuityStore::Open(store);
                if (!continuity.ok()) return void(wrong = 1);
                const UniqueFd file = (*continuity)->TakeTierFile();
                struct stat info = {};
                if (::fstat(file.get(), &info) != 0 || info.st_size != 4711) wrong = 2;
                if (!(*continuity)->Begin((*continuity)->TakeFound().image).ok()) wrong = 3;
              });
              return !actions.empty() ? 4 : wrong;
            }),
            0);
}

TEST(TierFileStore, AFileWithoutContentsIsLetGo) {
  EXPECT_EQ(InChild([] {
              HandOver(/*suspended=*/false);
              int wrong = 0;
              const auto actions = RunBesideKeeper([&](FdStore* store) {
                auto continuity = ContinuityStore::Open(store);
                if (!continuity.ok()) return void(wrong = 1);
                if ((*continuity)->TakeTierFile().valid()) wrong = 2;
                // Its huge pages are free for the next one.
                if (OpenFiles(4711) != 0) wrong = 5;
                if (!(*continuity)->Begin((*continuity)->TakeFound().image).ok()) wrong = 3;
              });
              return actions != std::vector<std::string>{kRemove} ? 4 : wrong;
            }),
            0);
}

TEST(TierFileStore, ANewFileTakesThePlaceOfTheOldOne) {
  EXPECT_EQ(InChild([] {
              HandOver(/*suspended=*/false);
              int wrong = 0;
              const auto actions = RunBesideKeeper([&](FdStore* store) {
                auto continuity = ContinuityStore::Open(store);
                if (!continuity.ok()) return void(wrong = 1);
                if ((*continuity)->TakeTierFile().valid()) wrong = 2;
                const UniqueFd file = NewFile();
                (*continuity)->KeepTierFile(file.get());
                if (!(*continuity)->Begin((*continuity)->TakeFound().image).ok()) wrong = 3;
                if ((*continuity)->unkept() != 0) wrong = 4;
              });
              return actions != std::vector<std::string>{kRemove, kStore} ? 5 : wrong;
            }),
            0);
}

TEST(TierFileStore, TheFirstFileIsStored) {
  EXPECT_EQ(InChild([] {
              int wrong = 0;
              const auto actions = RunBesideKeeper([&](FdStore* store) {
                auto continuity = ContinuityStore::Open(store);
                if (!continuity.ok()) return void(wrong = 1);
                if ((*continuity)->TakeTierFile().valid()) wrong = 2;
                const UniqueFd file = NewFile();
                (*continuity)->KeepTierFile(file.get());
                if (!(*continuity)->Begin({}).ok()) wrong = 3;
              });
              return actions != std::vector<std::string>{kStore} ? 4 : wrong;
            }),
            0);
}

}  // namespace tier_file_store_test
}  // namespace gpumemd
