// SPDX-License-Identifier: Apache-2.0
// Raw handles: a process that knows no daemon opens a segment by its holder's handle.
#include <string>
#include <utility>

#include "tests/contract/contract.h"

namespace gpumem::contract {
namespace {

TEST_P(SharingWithOthers, ItsRawHandleOpensWithoutADaemon) {
  ASSERT_NO_FATAL_FAILURE(Make());
  auto handle = maker_->Raw("made");
  ASSERT_OK(handle);
  EXPECT_EQ(handle->fd.valid(), kind() != Kind::kIpc);
  EXPECT_EQ(handle->data.size(), place().context_bound() ? 64 : 0);
  const Backend backend = place().backend == "cuda" ? Backend::kCuda : Backend::kHost;
  Actor foreign(identity(), daemon().runtime_dir());  // connects to no daemon
  ASSERT_OK(foreign.OpenRaw("raw", kind(), backend, made_.device_uuid, made_.size, *handle));
  EXPECT_OK(foreign.Expect("raw", kSeed));
  EXPECT_OK(foreign.Write("raw", kSeed + 1));
  EXPECT_OK(maker_->Expect("made", kSeed + 1));
  foreign.Kill();
  EXPECT_OK(maker_->Expect("made", kSeed + 1));
  // Another that was opened through the daemon has the same to give.
  const auto opener = Opener();
  ASSERT_OK(opener->Open("opened", ticket_));
  auto again = opener->Raw("opened");
  ASSERT_OK(again);
  EXPECT_EQ(again->data, handle->data);
  Actor second(Identity::kSameUser, daemon().runtime_dir());
  ASSERT_OK(second.OpenRaw("raw", kind(), backend, made_.device_uuid, made_.size, *again));
  EXPECT_OK(second.Expect("raw", kSeed + 1));
}

TEST_P(KindContract, HandlesOfOtherKindsAreRefusedInWords) {
  const auto client = Connect();
  auto segment = client->Acquire({.bytes = bytes_, .kind = kind()});
  ASSERT_OK(segment);
  const auto expect_only = [](const auto& value, bool has) {
    if (has) {
      EXPECT_OK(value);
    } else {
      EXPECT_STATUS(value, kUnimplemented, "kind");
    }
  };
  expect_only(segment->ipc_handle(), kind() == Kind::kIpc);
  expect_only(segment->export_data(), kind() == Kind::kMempool);
  expect_only(segment->pool_fd(), kind() == Kind::kMempool);
  expect_only(segment->fd(), !GetParam().context_bound());
}

// CUDA's rule: a handle opens for as long as its memory exists.
TEST_P(NodeContract, AnIpcHandleOpensNothingOnceItsMemoryIsGone) {
  constexpr Kind kKind = Kind::kIpc;
  if (DeviceFor(kKind).device_uuid().empty()) GTEST_SKIP() << "no device here makes kind ipc";
  const auto maker = StartActor();
  const auto made = maker->Acquire("made", {.kind = kKind, .bytes = bytes_});
  ASSERT_OK(made);
  auto handle = maker->Raw("made");
  ASSERT_OK(handle);
  ASSERT_OK(maker->Release("made"));
  ASSERT_TRUE(EventuallyCharged(0));
  const Backend backend = GetParam() == "cuda" ? Backend::kCuda : Backend::kHost;
  Actor foreign(Identity::kSameUser, daemon().runtime_dir());
  EXPECT_STATUS(foreign.OpenRaw("raw", kKind, backend, made->device_uuid, made->size, *handle),
                kNotFound, "");
}

}  // namespace
}  // namespace gpumem::contract
