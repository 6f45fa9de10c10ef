// SPDX-License-Identifier: Apache-2.0
// Copies in a process of their own, on host devices.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "daemon/device/context/context_device.h"
#include "daemon/device/context/process.h"
#include "daemon/device/context/tier_lock.h"
#include "daemon/device/host_device.h"
#include "daemon/device/testing/tier_memory.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using gpumem::kMiB;
using gpumem::UniqueFd;

// The environment variable with the path of a pipe. A copier that has it reads the pipe to its end
// before each batch.
constexpr char kHoldVariable[] = "GPUMEM_TEST_HOLD_COPIES";
// That with the path of a pipe which a copier reads to its end before it makes its context.
constexpr char kHoldStartVariable[] = "GPUMEM_TEST_HOLD_START";

void ReadToEnd(const std::string& path) {
  const UniqueFd pipe(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char byte;
  while (read(pipe.get(), &byte, 1) > 0) {
  }
}

// Forwards copies.
class HeldContext : public Context {
 public:
  HeldContext(std::unique_ptr<Context> context, std::string pipe)
      : context_(std::move(context)), pipe_(std::move(pipe)) {}
  absl::Status StartCopy(const CopyBatch& batch) override {
    ReadToEnd(pipe_);
    return context_->StartCopy(batch);
  }
  absl::Status FinishCopies() override { return context_->FinishCopies(); }

  absl::StatusOr<ExportData> CreateIpc(uint64_t, uint64_t) override { return None(); }
  absl::StatusOr<ExportData> Allocate(uint64_t, uint64_t, uint64_t) override { return None(); }
  absl::Status Free(uint64_t) override { return None(); }
  absl::StatusOr<MadePool> CreatePool(uint64_t, uint64_t) override { return None(); }
  absl::Status DestroyPool(uint64_t) override { return None(); }
  absl::StatusOr<PoolNumbers> ReadPool(uint64_t) override { return None(); }
  absl::Status SetPool(uint64_t, const PoolChange&) override { return None(); }
  absl::Status TrimPool(uint64_t, uint64_t) override { return None(); }

 private:
  static absl::Status None() { return absl::InternalError("it copies alone"); }

  const std::unique_ptr<Context> context_;
  const std::string pipe_;
};

absl::StatusOr<std::unique_ptr<Context>> MakeTestContext(const ContextSpec& spec) {
  if (const char* const start = getenv(kHoldStartVariable); start != nullptr) ReadToEnd(start);
  absl::StatusOr<std::unique_ptr<Context>> context = MakeContext(spec);
  const char* const pipe = getenv(kHoldVariable);
  // The context of kind ipc has a socket.
  if (!context.ok() || pipe == nullptr || !spec.socket_path.empty()) return context;
  return std::make_unique<HeldContext>(*std::move(context), pipe);
}

class CopierTest : public testing::Test {
 protected:
  CopierTest() : tier_(*TierMemory::Make(32 * kMiB)) {
    dir_ = "/tmp/gpumem-copier.XXXXXX";
    EXPECT_NE(mkdtemp(dir_.data()), nullptr);
    device_ = MakeDevice();
  }
  ~CopierTest() override {
    unsetenv(kHoldVariable);
    unsetenv(kHoldStartVariable);
    device_.reset();
    std::filesystem::remove_all(dir_);
  }

  std::unique_ptr<Device> MakeDevice(absl::Duration idle = absl::InfiniteDuration()) {
    auto base = MakeHostDevice({.capacity_bytes = 64 * kMiB});
    EXPECT_TRUE(base.ok()) << base.status();
    return AddContextKinds(*std::move(base), {.kinds = {Kind::kIpc},
                                              .socket_path = absl::StrCat(dir_, "/ipc"),
                                              .copier = true,
                                              .copier_idle = idle});
  }

  std::unique_ptr<Allocation> Segment(uint64_t bytes) {
    auto made = device_->Create({.kind = Kind::kVmm, .bytes = bytes});
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  static std::string Read(const Allocation& segment, uint64_t bytes) {
    std::string contents(bytes, '\0');
    EXPECT_EQ(pread(segment.fd(), contents.data(), bytes, 0), static_cast<ssize_t>(bytes));
    return contents;
  }
  static void Write(const Allocation& segment, const std::string& contents) {
    EXPECT_EQ(pwrite(segment.fd(), contents.data(), contents.size(), 0),
              static_cast<ssize_t>(contents.size()));
  }
  static std::string Contents(uint64_t bytes, uint64_t seed) {
    std::string contents(bytes, '\0');
    for (char& c : contents) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      c = static_cast<char>(seed >> 56);
    }
    return contents;
  }

  // Copies one segment of 2 MiB out to the beginning of the tier.
  absl::Status CopyOne() {
    const auto segment = Segment(2 * kMiB);
    const auto in_tier = tier_->Place({{.offset = 0, .bytes = 2 * kMiB}});
    const CopyItem item{.from = segment.get(), .to = in_tier.get(), .bytes = 2 * kMiB};
    return device_->Copy({item});
  }

  // Lets later copiers of this test wait in a copy, or in their start.
  void HoldCopies(const char* variable = kHoldVariable) {
    pipe_ = absl::StrCat(dir_, "/pipe");
    ASSERT_EQ(mkfifo(pipe_.c_str(), 0600), 0);
    ASSERT_EQ(setenv(variable, pipe_.c_str(), 1), 0);
  }
  // Returns once the copier is there. It goes on when the descriptor is closed.
  UniqueFd AwaitCopy() const { return UniqueFd(open(pipe_.c_str(), O_WRONLY | O_CLOEXEC)); }

  std::string dir_, pipe_;
  std::unique_ptr<TierMemory> tier_;
  std::unique_ptr<Device> device_;
};

TEST_F(CopierTest, ContentsGoOutAndComeBack) {
  // Scattered in the tier, the parts of a segment too.
  const std::vector<std::vector<TierExtent>> places = {
      {{.offset = 30 * kMiB, .bytes = 2 * kMiB}},
      {{.offset = 20 * kMiB, .bytes = 2 * kMiB}, {.offset = 10 * kMiB, .bytes = 4 * kMiB}},
      {{.offset = 0, .bytes = 8 * kMiB}},
      {{.offset = 28 * kMiB, .bytes = 2 * kMiB}, {.offset = 22 * kMiB, .bytes = 2 * kMiB}}};
  std::vector<std::string> contents;
  std::vector<std::unique_ptr<Allocation>> segments, in_tier;
  std::vector<CopyItem> items;
  for (size_t i = 0; i < places.size(); ++i) {
    uint64_t bytes = 0;
    for (const TierExtent& extent : places[i]) bytes += extent.bytes;
    contents.push_back(Contents(bytes, i + 1));
    segments.push_back(Segment(bytes));
    Write(*segments.back(), contents.back());
    in_tier.push_back(tier_->Place(places[i]));
    items.push_back({.from = segments.back().get(), .to = in_tier.back().get(), .bytes = bytes});
  }
  ASSERT_EQ(device_->Copy(items), absl::OkStatus());
  for (size_t i = 0; i < places.size(); ++i) {
    std::string out;
    for (const TierExtent& extent : places[i])
      out.append(tier_->data() + extent.offset, extent.bytes);
    EXPECT_TRUE(out == contents[i]) << "segment " << i;
    segments[i] = Segment(contents[i].size());
    items[i].from = in_tier[i].get();
    items[i].to = segments[i].get();
  }
  ASSERT_EQ(device_->Copy(items), absl::OkStatus());
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_TRUE(Read(*segments[i], contents[i].size()) == contents[i]) << "segment " << i;
  }
}

TEST_F(CopierTest, MoreSegmentsThanOneMessageHolds) {
  auto small = MakeHostDevice({.capacity_bytes = 8 * kMiB, .granularity_bytes = 4096});
  ASSERT_TRUE(small.ok()) << small.status();
  device_ = AddContextKinds(*std::move(small), {.copier = true});
  std::vector<std::unique_ptr<Allocation>> held;
  std::vector<CopyItem> items;
  for (uint64_t i = 0; i < 300; ++i) {
    held.push_back(Segment(4096));
    Write(*held.back(), Contents(4096, i));
    const Allocation* const segment = held.back().get();
    held.push_back(tier_->Place({{.offset = i * 4096, .bytes = 4096}}));
    items.push_back({.from = segment, .to = held.back().get(), .bytes = 4096});
  }
  ASSERT_EQ(device_->Copy(items), absl::OkStatus());
  for (uint64_t i = 0; i < 300; ++i) {
    EXPECT_TRUE(std::string(tier_->data() + i * 4096, 4096) == Contents(4096, i)) << i;
  }
}

TEST_F(CopierTest, TheProcessStartsWithTheFirstCopyAndStays) {
  EXPECT_EQ(device_->copier_pid(), 0);
  ASSERT_EQ(device_->Copy({}), absl::OkStatus());
  const pid_t pid = device_->copier_pid();
  ASSERT_GT(pid, 0);
  EXPECT_EQ(device_->context_pid(), 0) << "it is not the context of kind ipc";
  ASSERT_EQ(CopyOne(), absl::OkStatus());
  EXPECT_EQ(device_->copier_pid(), pid);
  device_->EndContext();
  EXPECT_EQ(device_->copier_pid(), 0);
  EXPECT_EQ(kill(pid, 0), -1) << "it is reaped";
  EXPECT_EQ(errno, ESRCH);
  ASSERT_EQ(CopyOne(), absl::OkStatus());
  EXPECT_NE(device_->copier_pid(), pid);
}

TEST_F(CopierTest, TheProcessIsStartedAheadAndOnlyOnce) {
  HoldCopies(kHoldStartVariable);
  device_->PrepareCopies();
  UniqueFd held = AwaitCopy();  // it has not blocked
  device_->PrepareCopies();
  std::thread copy([this] { EXPECT_EQ(CopyOne(), absl::OkStatus()); });
  held.reset();
  copy.join();
  // A second start would block at the pipe.
  const pid_t pid = device_->copier_pid();
  EXPECT_GT(pid, 0);
  device_->PrepareCopies();
  ASSERT_EQ(CopyOne(), absl::OkStatus());
  EXPECT_EQ(device_->copier_pid(), pid);
}

TEST_F(CopierTest, ADeviceEndsWithAStartThatNoCopyAwaits) {
  HoldCopies(kHoldStartVariable);
  device_->PrepareCopies();
  AwaitCopy().reset();
  device_.reset();
}

TEST_F(CopierTest, TheProcessEndsWhenItIsIdle) {
  device_ = MakeDevice(absl::Milliseconds(50));
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(CopyOne(), absl::OkStatus());
    const pid_t pid = device_->copier_pid();
    if (pid == 0) continue;  // it was idle already
    const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd.valid()) continue;
    pollfd exited = {pidfd.get(), POLLIN, 0};
    EXPECT_EQ(poll(&exited, 1, 60'000), 1);
    EXPECT_EQ(device_->copier_pid(), 0);
  }
}

TEST_F(CopierTest, ACopyHoldsUpNoOtherCall) {
  HoldCopies();
  std::thread copy([this] { EXPECT_EQ(CopyOne(), absl::OkStatus()); });
  UniqueFd held = AwaitCopy();
  auto ipc = device_->Create({.kind = Kind::kIpc, .bytes = 2 * kMiB});
  EXPECT_TRUE(ipc.ok()) << ipc.status();
  ipc = absl::UnavailableError("none");
  EXPECT_NE(Segment(2 * kMiB), nullptr);
  held.reset();
  copy.join();
}

TEST_F(CopierTest, AProcessThatIsKilledFailsItsCopyAndIsReplaced) {
  HoldCopies();
  const auto ipc = device_->Create({.kind = Kind::kIpc, .bytes = 2 * kMiB});
  ASSERT_TRUE(ipc.ok()) << ipc.status();
  absl::Status status;
  std::thread copy([&] { status = CopyOne(); });
  UniqueFd held = AwaitCopy();
  ASSERT_EQ(kill(device_->copier_pid(), SIGKILL), 0);
  copy.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(device_->copier_pid(), 0);
  EXPECT_FALSE((*ipc)->lost()) << "no segment is in it";
  held.reset();
  unsetenv(kHoldVariable);
  EXPECT_EQ(CopyOne(), absl::OkStatus());
}

TEST_F(CopierTest, TheEndOfTheContextEndsACopy) {
  HoldCopies();
  absl::Status status;
  std::thread copy([&] { status = CopyOne(); });
  const UniqueFd held = AwaitCopy();
  device_->EndContext();
  EXPECT_EQ(device_->copier_pid(), 0);
  copy.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
}

TEST_F(CopierTest, ADescriptorOfAnotherSizeIsRefusedAndNothingElse) {
  const auto segment = Segment(4 * kMiB);
  const auto in_tier = tier_->Place({{.offset = 0, .bytes = 2 * kMiB}});
  const CopyItem item{.from = segment.get(), .to = in_tier.get(), .bytes = 2 * kMiB};
  const absl::Status refused = device_->Copy({item});
  EXPECT_EQ(refused.code(), StatusCode::kInternal) << refused;
  EXPECT_NE(refused.message().find("2.00 MiB"), std::string::npos) << refused;
  const pid_t pid = device_->copier_pid();
  EXPECT_EQ(CopyOne(), absl::OkStatus());
  EXPECT_EQ(device_->copier_pid(), pid) << "the process goes on";
}

TEST_F(CopierTest, APlaceBeyondTheTiersEndIsRefused) {
  const auto segment = Segment(2 * kMiB);
  const auto in_tier = tier_->Place({{.offset = 32 * kMiB, .bytes = 2 * kMiB}});
  const CopyItem item{.from = in_tier.get(), .to = segment.get(), .bytes = 2 * kMiB};
  const absl::Status refused = device_->Copy({item});
  EXPECT_EQ(refused.code(), StatusCode::kInternal) << refused;
}

TEST_F(CopierTest, AnotherTierTakesThePlaceOfTheFirst) {
  ASSERT_EQ(CopyOne(), absl::OkStatus());
  tier_ = *TierMemory::Make(4 * kMiB);
  const auto segment = Segment(2 * kMiB);
  Write(*segment, Contents(2 * kMiB, 7));
  const auto in_tier = tier_->Place({{.offset = 2 * kMiB, .bytes = 2 * kMiB}});
  const CopyItem item{.from = segment.get(), .to = in_tier.get(), .bytes = 2 * kMiB};
  ASSERT_EQ(device_->Copy({item}), absl::OkStatus());
  EXPECT_TRUE(std::string(tier_->data() + 2 * kMiB, 2 * kMiB) == Contents(2 * kMiB, 7));
}

TEST_F(CopierTest, TheNextDaemonKnowsOfTheProcess) {
  ASSERT_EQ(CopyOne(), absl::OkStatus());
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, device_->copier_pid(), 0)));
  EXPECT_EQ(AwaitCopiers(tier_->fd(), absl::ZeroDuration()), absl::OkStatus());
  pollfd exited = {pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&exited, 1, 0), 1) << "it was killed";
  CopyOne().IgnoreError();  // may be what notices it
  ASSERT_EQ(CopyOne(), absl::OkStatus());
  device_.reset();
  // One that was idle has ended.
  EXPECT_EQ(AwaitCopiers(tier_->fd(), absl::ZeroDuration()), absl::OkStatus());
}

TEST_F(CopierTest, AProcessWithTooFewDescriptorsSaysSo) {
  ASSERT_EQ(device_->Copy({}), absl::OkStatus());
  std::vector<std::unique_ptr<Allocation>> held;
  std::vector<CopyItem> items;
  for (uint64_t i = 0; i < 12; ++i) {
    held.push_back(Segment(2 * kMiB));
    const Allocation* const segment = held.back().get();
    held.push_back(tier_->Place({{.offset = i * 2 * kMiB, .bytes = 2 * kMiB}}));
    items.push_back({.from = segment, .to = held.back().get(), .bytes = 2 * kMiB});
  }
  rlimit before = {};
  ASSERT_EQ(prlimit(device_->copier_pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit few = {.rlim_cur = 8, .rlim_max = before.rlim_max};
  ASSERT_EQ(prlimit(device_->copier_pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  const absl::Status refused = device_->Copy(items);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  ASSERT_EQ(prlimit(device_->copier_pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(device_->Copy(items), absl::OkStatus());
}

// A device that says which of its functions was called.
class CopyingBase : public Device {
 public:
  CopyingBase() { info_.uuid = "HOST-00000000"; }
  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec&) override {
    return absl::InternalError("none");
  }
  absl::Status Copy(absl::Span<const CopyItem>) override { return absl::AbortedError("the base"); }
  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return 0; }

 private:
  DeviceInfo info_;
};

TEST(ContextDevice, WithoutACopierTheBaseCopies) {
  const auto device = AddContextKinds(std::make_unique<CopyingBase>(), {});
  EXPECT_EQ(device->Copy({}), absl::AbortedError("the base"));
  EXPECT_EQ(device->copier_pid(), 0);
}

}  // namespace
}  // namespace gpumemd

int main(int argc, char** argv) {
  const std::optional<int> status =
      gpumemd::RunAsContextProcess(argc, argv, gpumemd::MakeTestContext);
  if (status.has_value()) return *status;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
