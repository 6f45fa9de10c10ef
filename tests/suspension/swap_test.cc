// SPDX-License-Identifier: Apache-2.0
// Programs whose tenants are swappable take turns on one device, end to end on the host backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/pattern.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::ContextWith;
using testing::DaemonProcess;
using testing::MemoryOf;
using testing::WireSession;

constexpr absl::Duration kLong = absl::Seconds(60);

// Counts turns on the device.
class Turns {
 public:
  explicit Turns(int count) : left_(count) {}
  // False if there are no more.
  bool Take() {
    absl::MutexLock lock(&mutex_);
    return left_ > 0 && left_-- > 0;
  }
  bool over() const {
    absl::MutexLock lock(&mutex_);
    return left_ == 0;
  }

 private:
  mutable absl::Mutex mutex_;
  int left_ ABSL_GUARDED_BY(mutex_);
};

// A program with one segment that is suspended when the daemon asks, and resumes by itself.
class Program {
 public:
  Program(std::unique_ptr<Client> client, uint64_t seed, std::optional<bool> swappable = {})
      : client_(std::move(client)), seed_(seed) {
    auto watch = client_->ServeSuspensions({.segments = [this] { return AwaitSegments(); },
                                            .suspended =
                                                [this](SuspensionCause cause) {
                                                  absl::MutexLock lock(&mutex_);
                                                  suspended_ = cause;
                                                },
                                            .swappable = swappable});
    EXPECT_OK(watch);
    if (watch.ok()) watch_ = *std::move(watch);
  }
  void Acquire(uint64_t bytes) {
    Use([&] {
      auto segment = client_->Acquire({.bytes = bytes, .wait = kLong});
      ASSERT_OK(segment);
      segment_ = *std::move(segment);
      EXPECT_OK(testing::Fill(MemoryOf(*segment_), seed_));
    });
  }
  void Resume() {
    Use([&] {
      ASSERT_OK(client_->Resume({&*segment_}, {.wait = kLong}));
      EXPECT_OK(testing::Check(MemoryOf(*segment_), seed_));
    });
  }
  // Returns why the program was suspended; nothing if `over` came first.
  std::optional<SuspensionCause> AwaitSuspension(const Turns* turns = nullptr) {
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return suspended_.has_value() || (turns != nullptr && turns->over());
    };
    absl::MutexLock lock(&mutex_);
    while (!mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Milliseconds(10))) {
    }
    return std::exchange(suspended_, std::nullopt);
  }
  // Plays until there are no more turns, and leaves the device to others.
  void Play(Turns& turns, uint64_t bytes) {
    for (bool first = true; turns.Take(); first = false) {
      first ? Acquire(bytes) : Resume();
      if (!AwaitSuspension(&turns)) break;
    }
    watch_.reset();
    segment_.reset();
  }
  Client& client() { return *client_; }

 private:
  // Runs `use` while the daemon's requests wait.
  template <typename Function>
  void Use(Function use) {
    {
      absl::MutexLock lock(&mutex_);
      busy_ = true;
    }
    use();
    absl::MutexLock lock(&mutex_);
    busy_ = false;
  }
  std::vector<Segment*> AwaitSegments() {
    absl::MutexLock lock(&mutex_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !busy_; };
    mutex_.Await(absl::Condition(&idle));
    if (!segment_) return {};
    return {&*segment_};
  }

  const std::unique_ptr<Client> client_;
  const uint64_t seed_;
  absl::Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<SuspensionCause> suspended_ ABSL_GUARDED_BY(mutex_);
  std::optional<Segment> segment_;
  std::unique_ptr<Watch> watch_;
};

class SwapTest : public ::testing::Test {
 protected:
  // `keys`: of the tenants a and b.
  void Start(const std::string& keys, const std::string& grace = "30s") {
    std::string config =
        absl::StrCat("[daemon]\nsuspension_grace = \"", grace,
                     "\"\n[host]\ndevice_bytes = \"64MiB\"\n", "[tier]\ncapacity = \"256MiB\"\n");
    for (const char* name : {"a", "b"}) {
      absl::StrAppend(&config, "[[tenant]]\nname = \"", name, "\"\n", keys, "[[rule]]\ntenant = \"",
                      name, "\"\ndefault = true\n");
    }
    auto daemon = DaemonProcess::Start({.config = config});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
  }
  std::unique_ptr<Client> Connect(const std::string& tenant) {
    auto client = daemon_->Connect(tenant);
    EXPECT_OK(client);
    return client.ok() ? *std::move(client) : nullptr;
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(SwapTest, TwoTenantsThatDoNotFitTakeTurns) {
  Start("swappable = true\nmin_residence = \"5ms\"\n");
  Program a(Connect("a"), 1), b(Connect("b"), 2);
  Turns turns(20);
  std::thread plays([&] { a.Play(turns, 48 * kMiB); });
  b.Play(turns, 48 * kMiB);
  plays.join();
  EXPECT_TRUE(turns.over());
}

TEST_F(SwapTest, AProgramOffersItByItself) {
  Start("min_residence = \"0s\"\n");
  Program a(Connect("a"), 1, /*swappable=*/true);
  a.Acquire(48 * kMiB);
  const auto b = Connect("b");
  auto taken = b->Acquire({.bytes = 48 * kMiB, .wait = kLong});
  ASSERT_OK(taken);
  EXPECT_EQ(a.AwaitSuspension(), SuspensionCause::kMemoryNeeded);
  EXPECT_OK(taken->Release());
  a.Resume();
}

TEST_F(SwapTest, AnIdleProgramIsSuspended) {
  Start("swappable = true\nidle_suspend = \"1s\"\n");
  Program a(Connect("a"), 1);
  a.Acquire(16 * kMiB);
  for (int i = 0; i < 1000; ++i) a.client().ReportActivity();
  EXPECT_EQ(a.AwaitSuspension(), SuspensionCause::kIdle);
  a.Resume();
}

// It is asked first, since it has been idle for longest, and ignores that.
TEST_F(SwapTest, ASessionThatIgnoresRequestsDelaysAWaiterOnce) {
  Start("swappable = true\nmin_residence = \"0s\"\n", /*grace=*/"2s");
  WireSession wire(daemon_->Socket("session.sock"));
  ASSERT_OK(wire.Greet(testing::HelloOf("a")));
  const auto broker = wire.TakeBroker();
  v1::AcquireRequest acquire;
  acquire.set_bytes(24 * kMiB);
  v1::AcquireResponse acquired;
  ASSERT_TRUE(broker->Acquire(ContextWith(wire.token()).get(), acquire, &acquired).ok());
  const auto context = ContextWith(wire.token(), kLong);
  v1::WatchRequest watch;
  watch.set_accepts_suspension(true);
  const auto events = broker->Watch(context.get(), watch);
  v1::Event event;
  ASSERT_TRUE(events->Read(&event)) << "the daemon knows of the watch";
  Program honest(Connect("a"), 1);
  honest.Acquire(24 * kMiB);

  const auto b = Connect("b");
  auto taken = b->Acquire({.bytes = 40 * kMiB, .wait = kLong});
  ASSERT_OK(taken);
  EXPECT_EQ(honest.AwaitSuspension(), SuspensionCause::kMemoryNeeded);
  while (!event.has_suspension_requested() && events->Read(&event)) {
  }
  EXPECT_EQ(event.suspension_requested().cause(), v1::SuspensionRequested::MEMORY_NEEDED);
  EXPECT_FALSE(event.suspension_requested().resume());
}

}  // namespace
}  // namespace gpumem
