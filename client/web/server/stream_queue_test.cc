// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/stream_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace gpumem::web {
namespace {

constexpr size_t kLimit = 1000;

Message Bytes(size_t size) { return std::make_shared<const std::string>(size, 'x'); }
Message SnapshotOf(size_t size) {
  std::string text = "event: snapshot\ndata: ";
  text.resize(size, 'x');
  return std::make_shared<const std::string>(text);
}

TEST(StreamQueueTest, TheLimitPassesAndOneByteMoreDoesNot) {
  StreamQueue queue(kLimit);
  EXPECT_EQ(queue.Front(), nullptr);
  EXPECT_TRUE(queue.Push(Bytes(400)));
  EXPECT_TRUE(queue.Push(Bytes(600)));
  EXPECT_FALSE(queue.Push(Bytes(1)));
  queue.Pop();
  EXPECT_TRUE(queue.Push(Bytes(400)));
  EXPECT_FALSE(queue.Push(Bytes(1)));
  queue.Pop();
  queue.Pop();
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.Push(Bytes(kLimit + 1)));
}

TEST(StreamQueueTest, ALargeSnapshotPassesAndRaisesTheLimit) {
  StreamQueue queue(kLimit);
  EXPECT_TRUE(queue.Push(SnapshotOf(5000)));
  EXPECT_TRUE(queue.Push(Bytes(5000))) << "a change may be as large as the state";
  EXPECT_FALSE(queue.Push(Bytes(1)));
  EXPECT_FALSE(queue.Push(SnapshotOf(100))) << "the last one was not read";
  queue.Pop();
  EXPECT_TRUE(queue.Push(SnapshotOf(100)));
  queue.Pop();
  EXPECT_TRUE(queue.Push(Bytes(kLimit)));
  EXPECT_FALSE(queue.Push(Bytes(1)));
}

}  // namespace
}  // namespace gpumem::web
