// SPDX-License-Identifier: Apache-2.0
// Unbrokered memory, as the driver counts it. Memory that a process allocates by itself is detected
// and attributed to that process; its mappings of the broker's memory are not counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "common/cuda/context.h"
#include "common/cuda/device_copy.h"
#include "common/cuda/driver.h"
#include "common/unix_channel.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_denial.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

#if GPUMEM_WITH_CUDA

namespace gpumem {
namespace unbrokered_test {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;
using testing::Hear;
using testing::kParentChannel;
using testing::Say;

constexpr uint64_t kTolerance = 64 * kMiB;
constexpr absl::Duration kInterval = absl::Milliseconds(100);

std::string Config(const std::string& reaction, const std::string& allowance) {
  return absl::StrCat("[unbrokered]\nreaction = \"", reaction, "\"\ncontext_allowance = \"",
                      allowance, "\"\ntolerance = \"64MiB\"\ninterval = \"100ms\"\n", R"(
[[tenant]]
name = "team"
[[tenant]]
name = "other"
[[rule]]
tenant = "team"
default = true
[[rule]]
tenant = "other"
default = true
)");
}

class UnbrokeredOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({.backend = "cuda", .config = Config("report", "0B")});
    if (!daemon.ok()) GTEST_SKIP() << daemon.status();
    daemon_ = *std::move(daemon);
    admin_ = v1::Admin::NewStub(testing::ChannelTo(daemon_->Socket("admin.sock")));
    gpu_ = Status().devices(0).device_uuid();
  }
  void TearDown() override {
    if (HasFailure() && daemon_ != nullptr) {
      std::cerr << Status().DebugString() << Sessions().DebugString() << daemon_->Log();
    }
  }

  // A process with a CUDA context and, where a tenant is named, a session.
  Child Start(const std::string& tenant) {
    Child child = Child::Self({"--gtest_also_run_disabled_tests",
                               "--gtest_filter=DISABLED_UnbrokeredOnGpuRole.DoesAsItIsTold"});
    Say(child.channel(), absl::StrCat(daemon_->runtime_dir(), ",", gpu_, ",", tenant));
    EXPECT_EQ(Hear(child.channel()), "OK");
    return child;
  }
  // Returns the child's answer: a status.
  static std::string Tell(const Child& child, const std::string& what) {
    Say(child.channel(), what);
    return Hear(child.channel());
  }

  v1::GetStatusResponse Status() {
    v1::GetStatusResponse status;
    EXPECT_TRUE(admin_->GetStatus(testing::ContextWith().get(), {}, &status).ok());
    return status;
  }
  v1::ListSessionsResponse Sessions() {
    v1::ListSessionsResponse sessions;
    EXPECT_TRUE(admin_->ListSessions(testing::ContextWith().get(), {}, &sessions).ok());
    return sessions;
  }
  uint64_t UnbrokeredOf(const Child& child) {
    const v1::ListSessionsResponse sessions = Sessions();
    for (const v1::SessionInfo& session : sessions.sessions()) {
      if (session.pid() == child.pid()) return session.unbrokered_bytes();
    }
    return 0;
  }
  uint64_t UnbrokeredOf(const std::string& tenant) {
    v1::GetQuotaRequest request;
    request.set_tenant(tenant);
    v1::GetQuotaResponse response;
    admin_->GetQuota(testing::ContextWith().get(), request, &response);
    uint64_t bytes = 0;
    for (const v1::DeviceUsage& device : response.usage().devices()) {
      bytes += device.unbrokered_bytes();
    }
    return bytes;
  }
  uint64_t ForeignBytesOf(const Child& child) {
    const v1::GetStatusResponse status = Status();
    for (const v1::ForeignProcess& process : status.foreign_processes()) {
      if (process.pid() == child.pid()) return process.bytes();
    }
    return 0;
  }
  // The value once the daemon has had several looks that all found the same.
  uint64_t Settled(const Child& child) {
    uint64_t value = UnbrokeredOf(child);
    absl::Time since = absl::Now();
    EXPECT_TRUE(Eventually([&] {
      const uint64_t now = UnbrokeredOf(child);
      if (now != value) since = absl::Now();
      value = now;
      return absl::Now() - since > 10 * kInterval;
    }));
    return value;
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::string gpu_;
};

TEST_F(UnbrokeredOnGpu, WhatAProcessTakesIsSeenAndWhatItMapsIsNot) {
  const Child child = Start("team");
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf(child) > 0; }));
  const uint64_t context = Settled(child);
  std::cerr << "a bare context takes " << FormatBytes(context) << "\n";
  EXPECT_LT(context, kGiB) << "the default of context_allowance is to cover it";

  // Brokered memory of every kind, mapped and written.
  for (const char* kind : {"vmm", "ipc", "mempool"}) {
    ASSERT_EQ(Tell(child, absl::StrCat("acquire,1024,", kind)), "OK") << kind;
    const uint64_t with = Settled(child);
    std::cerr << "with 1 GiB of kind " << kind << " mapped: " << FormatBytes(with) << "\n";
    EXPECT_LE(with, context + kTolerance) << kind;
  }
  const uint64_t before = Settled(child);

  ASSERT_EQ(Tell(child, "take,1024"), "OK");
  const absl::Time taken = absl::Now();
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf(child) >= before + kGiB - kTolerance; }));
  std::cerr << "seen after " << absl::Now() - taken << "\n";
  EXPECT_LE(Settled(child), before + kGiB + kTolerance);
  EXPECT_EQ(UnbrokeredOf("team"), UnbrokeredOf(child));
  EXPECT_EQ(UnbrokeredOf("other"), 0u);
  EXPECT_EQ(ForeignBytesOf(child), 0u);

  ASSERT_EQ(Tell(child, "free"), "OK");
  EXPECT_TRUE(Eventually([&] { return UnbrokeredOf(child) <= before + kTolerance; }));

  // The daemon has a context process by now, which is not foreign to it.
  const v1::GetStatusResponse status = Status();
  EXPECT_NE(status.devices(0).context_pid(), 0);
  for (const v1::ForeignProcess& process : status.foreign_processes()) {
    EXPECT_NE(process.pid(), status.devices(0).context_pid());
  }
}

TEST_F(UnbrokeredOnGpu, MemoryStillImportedAfterItsReleaseIsUnbrokered) {
  const Child child = Start("team");
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf(child) > 0; }));
  const uint64_t context = Settled(child);
  ASSERT_EQ(Tell(child, "keep,1024"), "OK");
  v1::TrimResponse trimmed;
  ASSERT_TRUE(admin_->Trim(testing::ContextWith().get(), {}, &trimmed).ok());
  const uint64_t kept = Settled(child);
  std::cerr << "released, trimmed, and 1 GiB of it still imported: " << FormatBytes(kept)
            << ", a context " << FormatBytes(context) << "\n";
  EXPECT_GE(kept, context + kGiB - kTolerance);
}

TEST_F(UnbrokeredOnGpu, AProcessWithoutASessionIsForeign) {
  const Child stranger = Start("");
  ASSERT_EQ(Tell(stranger, "take,512"), "OK");
  EXPECT_TRUE(Eventually([&] { return ForeignBytesOf(stranger) >= 512 * kMiB; }));
  EXPECT_EQ(UnbrokeredOf("team"), 0u);
}

TEST_F(UnbrokeredOnGpu, ItsTenantIsDeniedWhatIsNewUntilItIsGone) {
  daemon_->Reconfigure(Config("deny-new", "1GiB"));
  const Child child = Start("team");
  auto colleague = daemon_->Connect("team"), other = daemon_->Connect("other");
  ASSERT_OK(colleague);
  ASSERT_OK(other);
  EXPECT_OK((*colleague)->Acquire({.bytes = 2 * kMiB}));
  ASSERT_EQ(Tell(child, "take,2048"), "OK");
  ASSERT_TRUE(Eventually([&] { return !(*colleague)->Acquire({.bytes = 2 * kMiB}).ok(); }));
  EXPECT_DENIED((*colleague)->Acquire({.bytes = 2 * kMiB}), kUnbrokered);
  EXPECT_OK((*other)->Acquire({.bytes = 2 * kMiB}));
  ASSERT_EQ(Tell(child, "free"), "OK");
  EXPECT_TRUE(Eventually([&] { return (*colleague)->Acquire({.bytes = 2 * kMiB}).ok(); }));
}

TEST_F(UnbrokeredOnGpu, TheProcessIsEndedAndNobodyElse) {
  daemon_->Reconfigure(Config("terminate", "1GiB"));
  Child child = Start("team");
  const Child innocent = Start("team"), stranger = Start("");
  ASSERT_EQ(Tell(innocent, "acquire,2048,vmm"), "OK");
  ASSERT_EQ(Tell(stranger, "take,2048"), "OK");
  ASSERT_EQ(Tell(child, "take,2048"), "OK");
  EXPECT_EQ(child.Wait(), 128 + SIGTERM);
  EXPECT_EQ(Tell(innocent, "acquire,2,vmm"), "OK");
  EXPECT_EQ(Tell(stranger, "free"), "OK");
}

// --- The other processes ---------------------------------------------------------------

// In a process that takes memory, maps memory, and says how that went.
class Role {
 public:
  Role(const std::string& runtime_dir, const std::string& gpu, const std::string& tenant)
      : runtime_dir_(runtime_dir), gpu_(gpu), tenant_(tenant) {}

  absl::Status Begin() {
    auto driver = CudaDriver::Get();
    if (!driver.ok()) return driver.status();
    auto device = (*driver)->FindDevice(gpu_);
    if (!device.ok()) return device.status();
    auto context = CudaContext::Retain(**driver, *device);
    if (!context.ok()) return context.status();
    context_ = *std::move(context);
    if (tenant_.empty()) return absl::OkStatus();
    auto client = Client::Connect({.runtime_dir = runtime_dir_, .tenant = tenant_});
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    return absl::OkStatus();
  }

  absl::Status Do(const std::vector<std::string>& order) {
    uint64_t mib = 0;
    if (order.size() > 1 && !absl::SimpleAtoi(order[1], &mib)) {
      return absl::InvalidArgumentError(order[1]);
    }
    if (order[0] == "take") return Take(mib * kMiB);
    if (order[0] == "free") return Free();
    if (order[0] == "keep") return Keep(mib * kMiB);
    for (const Kind kind : {Kind::kVmm, Kind::kIpc, Kind::kMempool}) {
      if (order[0] == "acquire" && order.at(2) == KindName(kind)) return Acquire(mib * kMiB, kind);
    }
    return absl::InvalidArgumentError(order[0]);
  }

 private:
  absl::Status Take(uint64_t bytes) {
    return context_->Run("allocating",
                         [&] { return context_->driver().cuMemAlloc_v2(&taken_, bytes); });
  }
  absl::Status Free() {
    return context_->Run("freeing", [&] { return context_->driver().cuMemFree_v2(taken_); });
  }
  absl::Status Acquire(uint64_t bytes, Kind kind) {
    auto segment = client_->Acquire({.bytes = bytes, .device = gpu_, .kind = kind});
    if (!segment.ok()) return segment.status();
    segments_.push_back(*std::move(segment));
    auto copier = DeviceCopier::ForCuda(gpu_);
    if (!copier.ok()) return copier.status();
    return (*copier)->Fill(segments_.back().data(), 1, bytes);
  }
  // Makes a second import of the descriptor, which outlives the lease, as a lying client does.
  absl::Status Keep(uint64_t bytes) {
    auto segment = client_->Acquire({.bytes = bytes, .device = gpu_, .kind = Kind::kVmm});
    if (!segment.ok()) return segment.status();
    const absl::StatusOr<int> fd = segment->fd();
    if (!fd.ok()) return fd.status();
    const CudaDriver& driver = context_->driver();
    CUmemGenericAllocationHandle handle = 0;
    absl::Status imported = context_->Run("importing", [&] {
      return driver.cuMemImportFromShareableHandle(
          &handle, reinterpret_cast<void*>(static_cast<intptr_t>(*fd)),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    });
    if (!imported.ok()) return imported;
    return segment->Release();
  }

  const std::string runtime_dir_, gpu_, tenant_;
  std::shared_ptr<const CudaContext> context_;
  std::unique_ptr<Client> client_;
  std::vector<Segment> segments_;
  CUdeviceptr taken_ = 0;
};

TEST(DISABLED_UnbrokeredOnGpuRole, DoesAsItIsTold) {
  const std::vector<std::string> given = absl::StrSplit(Hear(kParentChannel), ',');
  ASSERT_EQ(given.size(), 3u);
  Role role(given[0], given[1], given[2]);
  Say(kParentChannel, role.Begin().ToString());
  while (true) {
    auto order = ReceiveMessage(kParentChannel, absl::InfiniteFuture());
    if (!order.ok()) return;
    Say(kParentChannel, role.Do(absl::StrSplit(order->bytes, ',')).ToString());
  }
}

}  // namespace unbrokered_test
}  // namespace gpumem

#endif
