// SPDX-License-Identifier: Apache-2.0
// gpumemctl suspend --process: a process with leased and private memory goes to host
// memory, its CUDA context included, and comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "common/bytes.h"
#include "common/cuda/checkpoint.h"
#include "common/cuda/context.h"
#include "common/cuda/driver.h"
#include "common/unix_channel.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/pattern.h"
#include "tests/support/wire.h"

#if GPUMEM_WITH_CUDA

namespace gpumem {
namespace whole_process_test {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;
using testing::Hear;
using testing::kParentChannel;
using testing::MemoryOf;
using testing::ProgramPath;
using testing::Say;

constexpr uint64_t kLeased = 128 * kMiB;
constexpr uint64_t kOwn = 64 * kMiB;
// A context takes more than this.
constexpr uint64_t kContext = 128 * kMiB;

class WholeProcessOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto calls = Checkpointer::ForCuda(); !calls.ok()) GTEST_SKIP() << calls.status();
    auto daemon =
        DaemonProcess::Start({.backend = "cuda", .config = "[tier]\ncapacity = \"512MiB\"\n"});
    if (!daemon.ok()) GTEST_SKIP() << daemon.status();
    daemon_ = *std::move(daemon);
    admin_ = v1::Admin::NewStub(testing::ChannelTo(daemon_->Socket("admin.sock")));
    gpu_ = Status().devices(0).device_uuid();
  }

  v1::GetStatusResponse Status() {
    v1::GetStatusResponse status;
    EXPECT_TRUE(admin_->GetStatus(testing::ContextWith().get(), {}, &status).ok());
    return status;
  }
  uint64_t FreeBytes() { return Status().devices(0).driver_free_bytes(); }
  // Of the only session.
  v1::SessionInfo Session() {
    v1::ListSessionsResponse sessions;
    EXPECT_TRUE(admin_->ListSessions(testing::ContextWith().get(), {}, &sessions).ok());
    EXPECT_EQ(sessions.sessions_size(), 1);
    return sessions.sessions_size() == 1 ? sessions.sessions(0) : v1::SessionInfo();
  }
  uint64_t SuspendedBytes() { return Session().suspended_bytes(); }
  int Ctl(std::vector<std::string> args) {
    args.insert(args.begin(), {ProgramPath("gpumemctl"), "--runtime-dir", daemon_->runtime_dir(),
                               "--timeout", "60s"});
    return Child(args).Wait();
  }
  int Ctl(const std::string& command, const Child& child) {
    return Ctl({command, "--process", absl::StrCat(child.pid())});
  }
  // A process with private memory, a lease of this kind, and requests that it serves or not.
  Child Start(const std::string& kind, bool serves) {
    Child child = Child::Self({"--gtest_also_run_disabled_tests",
                               "--gtest_filter=DISABLED_WholeProcessOnGpuRole.DoesAsItIsTold"});
    Say(child.channel(),
        absl::StrCat(daemon_->runtime_dir(), ",", gpu_, ",", kind, ",", serves ? 1 : 0));
    EXPECT_EQ(Hear(child.channel()), "OK");
    return child;
  }
  // Has the process compare its memory, once it was resumed this often.
  static std::string Check(const Child& child, int resumptions) {
    Say(child.channel(), absl::StrCat(resumptions));
    return Hear(child.channel());
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::string gpu_;
};

TEST_F(WholeProcessOnGpu, ComesBackWithItsContentsAndAddresses) {
  const Child child = Start("vmm", /*serves=*/true);
  const std::string session = absl::StrCat(Session().session_id());
  // The daemon knows of the watch only once the session can be resumed.
  ASSERT_TRUE(Eventually([&] { return Ctl({"resume", session}) == 0; })) << daemon_->Log();
  for (int cycle = 1; cycle <= 2; ++cycle) {
    const uint64_t before = FreeBytes();
    ASSERT_EQ(Ctl("suspend", child), 0) << daemon_->Log();
    EXPECT_EQ(SuspendedBytes(), kLeased);
    // Less the copier's context, which the first suspension starts.
    const uint64_t copier = cycle == 1 ? kGiB : 0;
    EXPECT_GE(FreeBytes() + copier, before + kLeased + kOwn + kContext);
    EXPECT_EQ(Ctl("suspend", child), 1) << "it is suspended already";
    EXPECT_EQ(Ctl({"resume", "--process", absl::StrCat(child.pid()), "--dry-run"}), 0);
    ASSERT_EQ(Ctl("resume", child), 0) << daemon_->Log();
    EXPECT_EQ(SuspendedBytes(), 0u);
    EXPECT_EQ(Check(child, cycle), "OK");
  }
}

// With its import mapped, the driver would checkpoint the process and lose it at the restore.
TEST_F(WholeProcessOnGpu, IsRefusedWithOpenIpcMemoryAndGoesOn) {
  const Child child = Start("ipc", /*serves=*/true);
  EXPECT_EQ(Ctl("suspend", child), 1);
  EXPECT_EQ(Check(child, 0), "OK");
}

TEST_F(WholeProcessOnGpu, IsRefusedIfTheProgramDoesNotSuspendAndGoesOn) {
  const Child child = Start("vmm", /*serves=*/false);
  EXPECT_EQ(Ctl("suspend", child), 1);
  EXPECT_EQ(SuspendedBytes(), 0u);
  EXPECT_EQ(Check(child, 0), "OK");
}

TEST_F(WholeProcessOnGpu, NeverTheDaemon) {
  EXPECT_EQ(Ctl({"suspend", "--process", absl::StrCat(daemon_->pid())}), 1);
  EXPECT_OK(daemon_->Connect());
}

// --- The other process -----------------------------------------------------------------

class WholeProcessRole {
 public:
  absl::Status Begin(const std::string& runtime_dir, const std::string& gpu, Kind kind,
                     bool serves) {
    gpu_ = gpu;
    auto driver = CudaDriver::Get();
    if (!driver.ok()) return driver.status();
    auto device = (*driver)->FindDevice(gpu);
    if (!device.ok()) return device.status();
    auto context = CudaContext::Retain(**driver, *device);
    if (!context.ok()) return context.status();
    context_ = *std::move(context);
    absl::Status status =
        context_->Run("allocating", [&] { return context_->driver().cuMemAlloc_v2(&own_, kOwn); });
    if (status.ok()) status = testing::Fill(Own(), 1);
    if (!status.ok()) return status;
    auto client = Client::Connect({.runtime_dir = runtime_dir});
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    auto segment = client_->Acquire({.bytes = kLeased, .device = gpu, .kind = kind});
    if (!segment.ok()) return segment.status();
    segment_ = *std::move(segment);
    address_ = segment_->data();
    status = testing::Fill(MemoryOf(*segment_), 2);
    return status.ok() && serves ? Serve() : status;
  }

  // Blocks until that many resumptions, and compares all memory.
  absl::Status Check(int resumptions) {
    const auto back = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return resumptions_ >= resumptions;
    };
    mutex_.LockWhen(absl::Condition(&back));
    mutex_.Unlock();
    if (segment_->data() != address_) return absl::DataLossError("the address has changed");
    absl::Status status = testing::Check(Own(), 1);
    status.Update(testing::Check(MemoryOf(*segment_), 2));
    // New CUDA memory can be had and freed as before.
    CUdeviceptr more = 0;
    status.Update(context_->Run("allocating more", [&] {
      const CUresult made = context_->driver().cuMemAlloc_v2(&more, kOwn);
      return made == CUDA_SUCCESS ? context_->driver().cuMemFree_v2(more) : made;
    }));
    return status;
  }

 private:
  testing::Memory Own() const {
    return {.backend = Backend::kCuda,
            .device_uuid = gpu_,
            .data = reinterpret_cast<void*>(own_),
            .size = kOwn};
  }
  absl::Status Serve() {
    auto watch =
        client_->ServeSuspensions({.segments = [this] { return std::vector<Segment*>{&*segment_}; },
                                   .resumed =
                                       [this] {
                                         absl::MutexLock lock(&mutex_);
                                         ++resumptions_;
                                       }});
    if (!watch.ok()) return watch.status();
    watch_ = *std::move(watch);
    return absl::OkStatus();
  }

  std::string gpu_;
  std::shared_ptr<const CudaContext> context_;
  CUdeviceptr own_ = 0;
  std::unique_ptr<Client> client_;
  std::optional<Segment> segment_;
  void* address_ = nullptr;
  absl::Mutex mutex_;
  int resumptions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Watch> watch_;  // ends first
};

TEST(DISABLED_WholeProcessOnGpuRole, DoesAsItIsTold) {
  const std::vector<std::string> given = absl::StrSplit(Hear(kParentChannel), ',');
  ASSERT_EQ(given.size(), 4u);
  WholeProcessRole role;
  const Kind kind = given[2] == "ipc" ? Kind::kIpc : Kind::kVmm;
  Say(kParentChannel, role.Begin(given[0], given[1], kind, given[3] == "1").ToString());
  while (true) {
    auto order = ReceiveMessage(kParentChannel, absl::InfiniteFuture());
    int resumptions = 0;
    if (!order.ok() || !absl::SimpleAtoi(order->bytes, &resumptions)) return;
    Say(kParentChannel, role.Check(resumptions).ToString());
  }
}

}  // namespace whole_process_test
}  // namespace gpumem

#endif
