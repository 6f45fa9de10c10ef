#include "daemon/continuity_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/fd_store/fd_store_fixture.h"
#include "daemon/journal_file.h"

namespace gpumemd {
namespace {

constexpr int kFirstFd = 3;  // of those that a manager hands over (sd_listen_fds(3))

// What a manager gives its second daemon: the first one's journal.
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

// What a daemon asks the manager to let go when it begins with `sessions` sessions, and has
// memory for a journal of `journal_bytes`.
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

TEST(ContinuityStoreTest, TheOldJournalGoesWhenTheNewOneIsWhole) {
  EXPECT_EQ(InChild([] {
              const std::vector<std::string> removed = LetGo(10, size_t{64} << 20);
              if (!Says(removed, "begun")) return 1;
              if (Says(removed, "FDNAME=j2")) return 2;
              return Says(removed, "FDNAME=j1") ? 0 : 3;
            }),
            0);
}

// It is a start that fails, and leaves things as they were: starts may be many.
TEST(ContinuityStoreTest, WithoutMemoryForTheNewJournalOnlyThatGoes) {
  EXPECT_EQ(InChild([] {
              const std::vector<std::string> removed = LetGo(100'000, size_t{1} << 20);
              if (Says(removed, "begun")) return 1;
              if (Says(removed, "FDNAME=j1")) return 2;
              return Says(removed, "FDNAME=j2") ? 0 : 3;
            }),
            0);
}

}  // namespace
}  // namespace gpumemd
