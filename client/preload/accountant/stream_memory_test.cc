// SPDX-License-Identifier: Apache-2.0
// Against a scripted daemon with host memory.
#include "client/preload/accountant/stream_memory.h"

#include <thread>
#include <vector>

#include "client/testing/fake_daemon.h"
#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class StreamMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    gpumem_connect_options options = {.struct_size = sizeof(options)};
    options.runtime_dir = daemon_.runtime_dir().c_str();
    ASSERT_EQ(gpumem_client_connect(&options, &client_), GPUMEM_OK) << gpumem_last_error();
  }
  void TearDown() override {
    EXPECT_EQ(gpumem_pool_destroy(memory_.Take()), GPUMEM_OK);
    EXPECT_EQ(gpumem_client_destroy(client_), GPUMEM_OK);
  }

  gpumem_pool* Make() {
    ++made_;
    gpumem_pool* pool = nullptr;
    EXPECT_EQ(gpumem_pool_create(client_, nullptr, &pool), GPUMEM_OK) << gpumem_last_error();
    return pool;
  }
  void* Allocate(uint64_t bytes, uintptr_t stream) {
    void* data = nullptr;
    gpumem_pool* const pool = memory_.PoolOf([this] { return Make(); });
    EXPECT_EQ(memory_.Allocate(pool, bytes, reinterpret_cast<void*>(stream), &data), GPUMEM_OK);
    return data;
  }
  void Free(void* data, uint64_t bytes, uintptr_t stream) {
    memory_.CountFree(bytes);
    EXPECT_EQ(gpumem_pool_free_pointer(memory_.pool(), data, reinterpret_cast<void*>(stream)),
              GPUMEM_OK);
  }

  internal::FakeDaemon daemon_;
  gpumem_client* client_ = nullptr;
  StreamMemory memory_;
  int made_ = 0;
};

TEST_F(StreamMemoryTest, CountsBlocksAsCudaDoes) {
  EXPECT_EQ(memory_.Figures().reserved, 0u);
  EXPECT_EQ(memory_.pool(), nullptr);
  void* const small = Allocate(1000, 16);
  void* const large = Allocate(3 * kMiB + 1, 32);
  GpumemPoolFigures figures = memory_.Figures();
  EXPECT_EQ(figures.used, 1024 + 3 * kMiB + 512);
  EXPECT_EQ(figures.used_high, figures.used);
  EXPECT_GE(figures.reserved, figures.used);
  EXPECT_EQ(figures.reserved_high, figures.reserved);
  Free(large, 3 * kMiB + 1, 32);
  figures = memory_.Figures();
  EXPECT_EQ(figures.used, 1024u);
  EXPECT_EQ(figures.used_high, 1024 + 3 * kMiB + 512);
  memory_.ResetHigh(/*of_used=*/true);
  EXPECT_EQ(memory_.Figures().used_high, 1024u);
  Free(small, 1000, 16);
  EXPECT_EQ(memory_.Figures().used, 0u);
  EXPECT_EQ(made_, 1);
}

TEST_F(StreamMemoryTest, ATrimKeepsTheLeastThatIsAsked) {
  void* const kept = Allocate(8 * kMiB, 16);
  void* const freed = Allocate(32 * kMiB, 16);
  Free(freed, 32 * kMiB, 16);
  const uint64_t most = memory_.Figures().reserved;
  memory_.Trim(16 * kMiB);
  const uint64_t left = memory_.Figures().reserved;
  EXPECT_GE(left, 16 * kMiB);
  EXPECT_LT(left, most);
  EXPECT_EQ(memory_.Figures().reserved_high, most);
  memory_.ResetHigh(/*of_used=*/false);
  EXPECT_EQ(memory_.Figures().reserved_high, left);
  memory_.Trim(0);
  EXPECT_GE(memory_.Figures().reserved, 8 * kMiB) << "it is used";
  Free(kept, 8 * kMiB, 16);
  memory_.Trim(0);
  EXPECT_EQ(memory_.Figures().reserved, 0u);
}

TEST_F(StreamMemoryTest, BeginsAnewAfterItsContext) {
  Allocate(kMiB, 16);
  EXPECT_EQ(gpumem_pool_destroy(memory_.Take()), GPUMEM_OK);
  EXPECT_EQ(memory_.Figures().used, 0u);
  EXPECT_EQ(memory_.Figures().reserved, 0u);
  memory_.Trim(0);
  void* const again = Allocate(kMiB, 16);
  EXPECT_EQ(memory_.Figures().used, kMiB);
  Free(again, kMiB, 16);
  EXPECT_EQ(made_, 2);
}

TEST_F(StreamMemoryTest, AFailureToMakeAPoolIsTold) {
  EXPECT_EQ(memory_.PoolOf([]() -> gpumem_pool* { return nullptr; }), nullptr);
  EXPECT_EQ(memory_.Figures().used, 0u);
}

TEST_F(StreamMemoryTest, ThreadsMakeOnePoolAndCountTogether) {
  std::vector<std::thread> threads;
  for (uintptr_t i = 1; i <= 4; ++i) {
    threads.emplace_back([this, i] {
      for (int round = 0; round < 500; ++round) Free(Allocate(4096, 16 * i), 4096, 16 * i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made_, 1);
  EXPECT_EQ(memory_.Figures().used, 0u);
  EXPECT_GE(memory_.Figures().used_high, 4096u);
  EXPECT_LE(memory_.Figures().used_high, 4 * 4096u);
}

}  // namespace
}  // namespace gpumem::preload
