// SPDX-License-Identifier: Apache-2.0
// An engine over fake segments on the host backend; each test ends with a check of its invariants.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "client/pool/engine.h"
#include "client/pool/testing/fake_segments.h"
#include "gtest/gtest.h"

namespace gpumem::internal {

class EngineFixture : public ::testing::Test {
 protected:
  void Make(const PoolOptions& options = {}, FakeSegments::Options segments = {}) {
    auto source = std::make_unique<FakeSegments>(std::move(segments));
    source_ = source.get();
    engine_ = std::make_unique<Engine>(std::move(source), MakeHostStreamApi(), options);
  }
  void TearDown() override {
    if (engine_ != nullptr) ExpectInvariants();
  }
  void ExpectInvariants() {
    const absl::Status right = engine_->CheckInvariants();
    EXPECT_TRUE(right.ok()) << right;
  }
  Block Allocate(uint64_t bytes) {
    auto block = engine_->Allocate(bytes, nullptr);
    EXPECT_TRUE(block.ok()) << block.status();
    return block.value_or(Block{});
  }
  void Free(const Block& block) {
    const absl::Status freed = engine_->Free(block.data, nullptr);
    EXPECT_TRUE(freed.ok()) << freed;
  }

  FakeSegments* source_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

}  // namespace gpumem::internal
