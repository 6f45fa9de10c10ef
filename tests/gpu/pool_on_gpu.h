// SPDX-License-Identifier: Apache-2.0
// The base of the pool's tests with real streams: a daemon, a GPU, and pools of it.
#pragma once

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/pool.h"
#include "tests/gpu/gpu_work.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"

namespace gpumem::testing {

inline constexpr uint64_t kBlock = 4 * kMiB;

inline constexpr ReusePolicy kSameStreamOnly = {.follow_event_dependencies = false,
                                                .allow_opportunistic = false,
                                                .allow_internal_dependencies = false};

class PoolOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({.backend = "cuda"});
    if (!daemon.ok()) GTEST_SKIP() << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = daemon_->Connect();
    ASSERT_OK(client);
    client_ = *std::move(client);
    const auto devices = client_->Devices();
    ASSERT_OK(devices);
    for (const DeviceInfo& device : *devices) {
      if (device.backend == Backend::kCuda && uuid_.empty()) uuid_ = device.uuid;
    }
    ASSERT_FALSE(uuid_.empty());
    gpu_ = std::make_unique<GpuWork>(uuid_);
  }

  // Makes a pool of at most `blocks` blocks, each of which is a segment.
  std::unique_ptr<Pool> MakePool(uint64_t blocks, const ReusePolicy& reuse,
                                 bool per_thread_default_stream = false) {
    auto pool = Pool::Create(client_, {.device = uuid_,
                                       .kind = Kind::kVmm,
                                       .reuse = reuse,
                                       .per_thread_default_stream = per_thread_default_stream,
                                       .limit_bytes = blocks * kBlock,
                                       .grow_bytes = kBlock});
    EXPECT_OK(pool);
    return pool.ok() ? *std::move(pool) : nullptr;
  }

  // Allocates a block, writes to it and frees it, all in the stream's order. Returns its address;
  // null if the allocation failed.
  void* Cycle(Pool& pool, Stream stream, uint32_t value, uint64_t bytes = kBlock) {
    const auto block = pool.Allocate(bytes, stream);
    EXPECT_OK(block);
    if (!block.ok()) return nullptr;
    gpu_->Set(block->data, value, bytes, stream);
    EXPECT_OK(pool.Free(*block, stream));
    return block->data;
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::shared_ptr<Client> client_;
  std::string uuid_;
  std::unique_ptr<GpuWork> gpu_;
};

}  // namespace gpumem::testing

#endif
