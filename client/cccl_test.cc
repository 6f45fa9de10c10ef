// SPDX-License-Identifier: Apache-2.0
// The resources of gpumem/cccl.h: the concepts of the CUDA toolkit's CCCL, and what the functions
// do, on host memory.
#include "gpumem/cccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#if GPUMEM_HAS_CCCL

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "client/testing/fake_daemon.h"
#include "common/bytes.h"

namespace gpumem {
namespace {

using internal::FakeDaemon;
using ::testing::HasSubstr;

template <typename Resource>
constexpr bool IsAResource() {
#if CCCL_VERSION >= 3001000
  return cuda::mr::resource<Resource> && cuda::mr::synchronous_resource<Resource>;
#else
  return cuda::mr::async_resource<Resource> && cuda::mr::resource<Resource>;
#endif
}
static_assert(IsAResource<PoolResource>());
static_assert(IsAResource<PinnedPoolResource>());
static_assert(cuda::has_property<PoolResource, cuda::mr::device_accessible>);
static_assert(!cuda::has_property<PoolResource, cuda::mr::host_accessible>);
static_assert(cuda::has_property<PinnedPoolResource, cuda::mr::device_accessible>);
static_assert(cuda::has_property<PinnedPoolResource, cuda::mr::host_accessible>);
static_assert(std::is_nothrow_move_constructible_v<PoolResource>);
static_assert(std::is_copy_assignable_v<PoolResource>);

#if CCCL_VERSION >= 3001000
template <typename... Properties>
using ResourceRef = cuda::mr::resource_ref<Properties...>;
#else
template <typename... Properties>
using ResourceRef = cuda::mr::async_resource_ref<Properties...>;
#endif

// Returns a stream of the host backend, which knows it by name alone.
cuda::stream_ref StreamNamed(uintptr_t name) {
  return cuda::stream_ref(reinterpret_cast<cudaStream_t>(name));
}

class Cccl : public ::testing::Test {
 protected:
  std::shared_ptr<Pool> MakePool(const PoolOptions& options) {
    auto client =
        Client::Connect({.runtime_dir = daemon_.runtime_dir(), .timeout = absl::Seconds(20)});
    EXPECT_TRUE(client.ok()) << client.status();
    auto pool = Pool::Create(*std::move(client), options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }

  FakeDaemon daemon_;
};

// Returns the status with which it fails; OK if it does not.
template <typename Allocate>
absl::Status Failure(Allocate allocate) {
  try {
    allocate();
  } catch (const PoolBadAlloc& error) {
    EXPECT_THAT(error.what(), HasSubstr(std::string(error.status().message())));
    return error.status();
  }
  return absl::OkStatus();
}

TEST_F(Cccl, TheNamesSince31Allocate) {
  PoolResource resource(MakePool({}));
  const cuda::stream_ref stream = StreamNamed(0x1000);
  void* const ordered = resource.allocate(stream, kMiB, 256);
  void* const synchronous = resource.allocate_sync(kMiB, 256);
  ASSERT_NE(ordered, nullptr);
  ASSERT_NE(synchronous, nullptr);
  EXPECT_NE(ordered, synchronous);
  std::memset(ordered, 1, kMiB);
  std::memset(synchronous, 2, kMiB);
  EXPECT_EQ(static_cast<char*>(ordered)[kMiB - 1], 1);
  EXPECT_EQ(resource.pool().Stats().used_blocks, 2u);
  resource.deallocate(stream, ordered, kMiB, 256);
  resource.deallocate_sync(synchronous, kMiB, 256);
  EXPECT_EQ(resource.pool().Stats().used_blocks, 0u);
}

TEST_F(Cccl, TheNamesBefore31Allocate) {
  PoolResource resource(MakePool({}));
  const cuda::stream_ref stream = StreamNamed(0x1000);
  void* const ordered = resource.allocate_async(kMiB, 256, stream);
  void* const synchronous = resource.allocate(kMiB, 256);
  ASSERT_NE(ordered, nullptr);
  ASSERT_NE(synchronous, nullptr);
  std::memset(ordered, 1, kMiB);
  std::memset(synchronous, 2, kMiB);
  EXPECT_EQ(static_cast<char*>(ordered)[kMiB - 1], 1);
  resource.deallocate_async(ordered, kMiB, 256, stream);
  resource.deallocate(synchronous, kMiB, 256);
  EXPECT_EQ(resource.pool().Stats().used_blocks, 0u);
}

TEST_F(Cccl, TheStreamReachesThePool) {
  PoolResource resource(MakePool({.thread_caches = false}));
  std::vector<std::pair<PoolEvent::What, Stream>> seen;
  resource.pool().SetHook([&](const PoolEvent& event) {
    if (event.what == PoolEvent::What::kAllocate || event.what == PoolEvent::What::kFree) {
      seen.emplace_back(event.what, event.stream);
    }
  });
  void* const block = resource.allocate(StreamNamed(0x1000), kMiB, 256);
  resource.deallocate(StreamNamed(0x2000), block, kMiB, 256);
  resource.pool().SetHook(nullptr);
  EXPECT_THAT(seen,
              ::testing::ElementsAre(
                  std::make_pair(PoolEvent::What::kAllocate, reinterpret_cast<Stream>(0x1000)),
                  std::make_pair(PoolEvent::What::kFree, reinterpret_cast<Stream>(0x2000))));
}

TEST_F(Cccl, ZeroBytesAreNull) {
  PoolResource resource(MakePool({}));
  EXPECT_EQ(resource.allocate(StreamNamed(0x1000), 0, 256), nullptr);
  EXPECT_EQ(resource.allocate_sync(0, 256), nullptr);
  resource.deallocate(StreamNamed(0x1000), nullptr, 0, 256);
  resource.deallocate_sync(nullptr, 0, 256);
  EXPECT_EQ(resource.pool().Stats().frees, 0u);
}

TEST_F(Cccl, AlignmentsUpTo512AreMet) {
  PoolResource resource(MakePool({}));
  for (size_t alignment = 1; alignment <= 512; alignment *= 2) {
    void* const block = resource.allocate_sync(alignment, alignment);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % alignment, 0u);
    resource.deallocate_sync(block, alignment, alignment);
  }
  for (const size_t alignment : {size_t{0}, size_t{3}, size_t{384}, size_t{1024}}) {
    const absl::Status status =
        Failure([&] { (void)resource.allocate(StreamNamed(1), 64, alignment); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << alignment;
    EXPECT_THAT(std::string(status.message()), HasSubstr("power of two"));
  }
}

TEST_F(Cccl, AllocationsAboveTheLimitThrow) {
  PoolResource resource(MakePool({.limit_bytes = 8 * kMiB}));
  const auto asynchronous = [&] { (void)resource.allocate(StreamNamed(1), 64 * kMiB, 256); };
  EXPECT_EQ(Failure(asynchronous).code(), absl::StatusCode::kResourceExhausted);
  const auto synchronous = [&] { (void)resource.allocate_sync(64 * kMiB, 256); };
  EXPECT_EQ(Failure(synchronous).code(), absl::StatusCode::kResourceExhausted);
  // Code that knows no gpumem catches it, too.
  EXPECT_THROW(asynchronous(), std::bad_alloc);
  EXPECT_EQ(resource.pool().Stats().used_blocks, 0u);
}

TEST_F(Cccl, WhatIsFreedTwiceIsReported) {
  PoolResource resource(MakePool({}));
  void* const block = resource.allocate_sync(kMiB, 256);
  resource.deallocate_sync(block, kMiB, 256);
  ::testing::internal::CaptureStderr();
  resource.deallocate_sync(block, kMiB, 256);
  resource.deallocate(StreamNamed(1), block, kMiB, 256);
  const std::string reported = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(reported, HasSubstr("was not freed: INVALID_ARGUMENT"));
  EXPECT_EQ(resource.pool().Stats().frees, 1u);
}

TEST_F(Cccl, CopiesAreEqualAndShareThePool) {
  std::weak_ptr<Pool> watched;
  {
    const std::shared_ptr<Pool> pool = MakePool({});
    watched = pool;
    PoolResource first(pool);
    PoolResource other(MakePool({}));
    auto copy = std::make_unique<PoolResource>(first);
    EXPECT_TRUE(first == *copy);
    EXPECT_FALSE(first != *copy);
    EXPECT_TRUE(first != other);
    EXPECT_EQ(&first.pool(), &copy->pool());
    void* const block = first.allocate_sync(kMiB, 256);
    first = other;  // the copy has the pool still
    EXPECT_TRUE(first == other);
    copy->deallocate_sync(block, kMiB, 256);
    EXPECT_EQ(copy->pool().Stats().used_blocks, 0u);
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(Cccl, References) {
  PoolResource resource(MakePool({}));
  ResourceRef<cuda::mr::device_accessible> ref(resource);
#if CCCL_VERSION >= 3001000
  void* const block = ref.allocate(StreamNamed(1), kMiB, 256);
  EXPECT_TRUE(resource.pool().Find(block).ok());
  ref.deallocate(StreamNamed(1), block, kMiB, 256);
#else
  void* const block = ref.allocate_async(kMiB, 256, StreamNamed(1));
  EXPECT_TRUE(resource.pool().Find(block).ok());
  ref.deallocate_async(block, kMiB, 256, StreamNamed(1));
#endif
  EXPECT_EQ(resource.pool().Stats().used_blocks, 0u);
  PoolResource copy = resource;
  PoolResource other(MakePool({}));
  EXPECT_TRUE(ref == ResourceRef<cuda::mr::device_accessible>(copy));
  EXPECT_FALSE(ref == ResourceRef<cuda::mr::device_accessible>(other));
}

TEST_F(Cccl, PinnedPoolsAreForTheCpuToo) {
  PinnedPoolResource resource(
      MakePool({.device = FakeDaemon::kPinnedDevice, .kind = Kind::kPinned}));
  void* const block = resource.allocate_sync(kMiB, 64);
  std::memset(block, 1, kMiB);
  ResourceRef<cuda::mr::host_accessible> of_host(resource);
  ResourceRef<cuda::mr::device_accessible> of_device(resource);
  ResourceRef<cuda::mr::host_accessible, cuda::mr::device_accessible> of_both(resource);
  resource.deallocate_sync(block, kMiB, 64);
}

TEST_F(Cccl, NeedsAPool) {
  EXPECT_THROW(PoolResource(nullptr), std::invalid_argument);
  EXPECT_THROW(PinnedPoolResource(nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace gpumem

#else

TEST(Cccl, IsBuilt) { GTEST_SKIP() << "built without the CUDA toolkit, which has CCCL"; }

#endif
