// SPDX-License-Identifier: Apache-2.0
// Waits, revocations and denials through gpumem.h, against a scripted daemon.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "common/denial.h"
#include "common/grpc_status.h"
#include "gmock/gmock.h"
#include "gpumem/gpumem.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace {

using ::testing::ElementsAre;

gpumem_client* ConnectTo(const FakeDaemon& daemon) {
  gpumem_connect_options options = {};
  options.struct_size = sizeof(options);
  options.runtime_dir = daemon.runtime_dir().c_str();
  gpumem_client* client = nullptr;
  EXPECT_EQ(gpumem_client_connect(&options, &client), GPUMEM_OK) << gpumem_last_error();
  return client;
}

gpumem_acquire_options Acquire() {
  gpumem_acquire_options options = {};
  options.struct_size = sizeof(options);
  options.bytes = 4096;
  return options;
}

TEST(CApiWaitingTest, AWaitCanBeCancelled) {
  absl::Notification asked;
  uint64_t wait_ms = 0;
  bool without_pressure = false;
  FakeDaemon daemon(
      {.acquire_waiting = [&](const std::function<bool()>& is_cancelled, uint64_t,
                              const v1::AcquireRequest& request, v1::AcquireResponse*) {
        wait_ms = request.wait_ms();
        without_pressure = request.without_pressure();
        asked.Notify();
        while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
        return grpc::Status::CANCELLED;
      }});
  gpumem_client* const client = ConnectTo(daemon);
  gpumem_cancel_token* token = nullptr;
  ASSERT_EQ(gpumem_cancel_token_create(&token), GPUMEM_OK);
  gpumem_acquire_options options = Acquire();
  options.wait_ms = GPUMEM_UNLIMITED;
  options.cancel = token;
  options.without_pressure = 1;
  std::thread other([&] {
    asked.WaitForNotification();
    EXPECT_EQ(gpumem_cancel_token_cancel(token), GPUMEM_OK);
  });
  gpumem_segment* segment = nullptr;
  EXPECT_EQ(gpumem_client_acquire(client, &options, &segment), GPUMEM_CANCELLED);
  other.join();
  EXPECT_EQ(segment, nullptr);
  EXPECT_EQ(wait_ms, static_cast<uint64_t>(INT64_MAX));
  EXPECT_TRUE(without_pressure);
  EXPECT_EQ(gpumem_cancel_token_destroy(token), GPUMEM_OK);
  EXPECT_EQ(gpumem_client_destroy(client), GPUMEM_OK);
}

TEST(CApiWaitingTest, ADenialNamesWhoseLimitItIsAndWhoHoldsWhatIsUsed) {
  FakeDaemon daemon({.acquire = [](uint64_t, const v1::AcquireRequest&, v1::AcquireResponse*) {
    v1::Denial denial;
    denial.set_cause(v1::Denial::CAUSE_GUARANTEES);
    denial.set_tenant("a");
    denial.set_limited_tenant("ml");
    for (int i = 0; i < 20; ++i) {
      denial.add_holders()->set_tenant("holder " + std::to_string(i));
      denial.mutable_holders()->rbegin()->set_used(static_cast<uint64_t>(100 - i));
    }
    return ToGrpcStatus(DenialError(denial));
  }});
  gpumem_client* const client = ConnectTo(daemon);
  const gpumem_acquire_options options = Acquire();
  gpumem_segment* segment = nullptr;
  EXPECT_EQ(gpumem_client_acquire(client, &options, &segment), GPUMEM_RESOURCE_EXHAUSTED);
  gpumem_denial denial = {};
  denial.struct_size = sizeof(denial);
  ASSERT_EQ(gpumem_last_denial(&denial), GPUMEM_OK);
  EXPECT_EQ(denial.cause, GPUMEM_CAUSE_GUARANTEES);
  EXPECT_STREQ(denial.limited_tenant, "ml");
  ASSERT_EQ(denial.holder_count, 8u);  // a few
  EXPECT_STREQ(denial.holders[0].tenant, "holder 0");
  EXPECT_EQ(denial.holders[0].used, 100u);
  EXPECT_STREQ(denial.holders[7].tenant, "holder 7");
  EXPECT_EQ(gpumem_client_destroy(client), GPUMEM_OK);
}

// The events of the handlers, in one thread.
struct Told {
  std::vector<uint64_t> leases;
  uint64_t until_end_ms = 0;
  uint64_t pressed = 0, deadline_ms = 0;
  int64_t max_waiting = 0, max_segments = 0;
  uint64_t limit_bytes = 0, total_limit_bytes = 0;
  std::string parent;
  absl::Notification all;
};

TEST(CApiWaitingTest, AWatchTellsOfRevocationsDeadlinesAndQuotas) {
  FakeDaemon daemon;
  v1::Event pressure, revocation, quota;
  pressure.mutable_pressure()->set_bytes(5);
  pressure.mutable_pressure()->set_deadline_ms(700);
  revocation.mutable_revocation()->add_lease_ids(7);
  revocation.mutable_revocation()->add_lease_ids(8);
  revocation.mutable_revocation()->set_deadline_ms(900);
  quota.mutable_quota_changed()->mutable_quota()->set_limit_bytes(11);
  quota.mutable_quota_changed()->mutable_quota()->set_max_waiting(3);
  quota.mutable_quota_changed()->mutable_quota()->set_parent("ml");
  for (const v1::Event& event : {pressure, revocation, quota}) daemon.Tell(event);
  gpumem_client* const client = ConnectTo(daemon);
  Told told;
  gpumem_watch_handlers handlers = {};
  handlers.struct_size = sizeof(handlers);
  handlers.context = &told;
  handlers.pressure = [](void*, const char*, uint64_t) { ADD_FAILURE() << "told twice"; };
  handlers.pressure_until = [](void* context, const char* device, uint64_t bytes,
                               uint64_t deadline_ms) {
    EXPECT_STREQ(device, "");
    static_cast<Told*>(context)->pressed = bytes;
    static_cast<Told*>(context)->deadline_ms = deadline_ms;
  };
  handlers.revocation = [](void* context, const uint64_t* ids, size_t count, uint64_t end_ms) {
    static_cast<Told*>(context)->leases.assign(ids, ids + count);
    static_cast<Told*>(context)->until_end_ms = end_ms;
  };
  handlers.quota_changed = [](void* context, const gpumem_quota* changed) {
    Told& to = *static_cast<Told*>(context);
    to.limit_bytes = changed->limit_bytes;
    to.total_limit_bytes = changed->total_limit_bytes;
    to.max_waiting = changed->max_waiting;
    to.max_segments = changed->max_segments;
    to.parent = changed->parent;
    to.all.Notify();
  };
  gpumem_watch* watch = nullptr;
  ASSERT_EQ(gpumem_client_start_watch(client, &handlers, &watch), GPUMEM_OK);
  ASSERT_TRUE(told.all.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(told.pressed, 5u);
  EXPECT_EQ(told.deadline_ms, 700u);
  EXPECT_THAT(told.leases, ElementsAre(7, 8));
  EXPECT_EQ(told.until_end_ms, 900u);
  EXPECT_EQ(told.limit_bytes, 11u);
  EXPECT_EQ(told.total_limit_bytes, GPUMEM_UNLIMITED);
  EXPECT_EQ(told.max_waiting, 3);
  EXPECT_EQ(told.max_segments, -1);
  EXPECT_EQ(told.parent, "ml");
  EXPECT_EQ(gpumem_watch_destroy(watch), GPUMEM_OK);
  EXPECT_EQ(gpumem_client_destroy(client), GPUMEM_OK);
}

TEST(CApiWaitingTest, RevocablePoolsAndSegments) {
  FakeDaemon daemon;
  gpumem_client* const client = ConnectTo(daemon);
  gpumem_acquire_options options = Acquire();
  options.revocable = 1;
  gpumem_segment *segment = nullptr, *opened = nullptr;
  ASSERT_EQ(gpumem_client_acquire(client, &options, &segment), GPUMEM_OK);
  gpumem_segment_info info = {};
  info.struct_size = sizeof(info);
  ASSERT_EQ(gpumem_segment_get_info(segment, &info), GPUMEM_OK);
  EXPECT_EQ(info.revocable, 1);
  const char* ticket = nullptr;
  ASSERT_EQ(gpumem_segment_share(segment, GPUMEM_SCOPE_TENANT, &ticket), GPUMEM_OK);
  gpumem_open_options open = {};
  open.struct_size = sizeof(open);
  EXPECT_EQ(gpumem_client_open(client, ticket, &open, &opened), GPUMEM_FAILED_PRECONDITION);
  open.revocable = 1;
  EXPECT_EQ(gpumem_client_open(client, ticket, &open, &opened), GPUMEM_OK);
  EXPECT_EQ(gpumem_segment_release(opened), GPUMEM_OK);
  EXPECT_EQ(gpumem_segment_release(segment), GPUMEM_OK);

  struct Seen {
    std::vector<uint64_t> leases;
    absl::Notification told;
  } seen;
  gpumem_pool_options pool_options = {};
  pool_options.struct_size = sizeof(pool_options);
  pool_options.revocable = 1;
  pool_options.revocation_context = &seen;
  pool_options.on_revocation = [](void* context, const uint64_t* ids, size_t count, uint64_t) {
    static_cast<Seen*>(context)->leases.assign(ids, ids + count);
    static_cast<Seen*>(context)->told.Notify();
  };
  gpumem_pool* pool = nullptr;
  ASSERT_EQ(gpumem_pool_create(client, &pool_options, &pool), GPUMEM_OK) << gpumem_last_error();
  gpumem_block block = {};
  ASSERT_EQ(gpumem_pool_allocate(pool, 4096, nullptr, &block), GPUMEM_OK);
  v1::Event revocation;
  for (uint64_t id = 1; id < 9; ++id) revocation.mutable_revocation()->add_lease_ids(id);
  revocation.mutable_revocation()->set_deadline_ms(60000);
  daemon.Tell(revocation);
  ASSERT_TRUE(seen.told.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(seen.leases.size(), 8u);
  EXPECT_EQ(gpumem_pool_free(pool, &block, nullptr), GPUMEM_OK);
  EXPECT_EQ(gpumem_pool_destroy(pool), GPUMEM_OK);
  EXPECT_EQ(daemon.live_leases(/*awaited=*/0), 0u);
  EXPECT_EQ(gpumem_client_destroy(client), GPUMEM_OK);
}

}  // namespace
}  // namespace gpumem::internal
