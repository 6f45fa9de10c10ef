// SPDX-License-Identifier: Apache-2.0
// Interprocess events: one process records, another waits. They end with their session.
#include <string>

#include "tests/contract/contract.h"

namespace gpumem::contract {
namespace {

using testing::Eventually;

// Expects that after the wait, the other sees the maker's writes from before the record.
void ExpectOrder(Actor& maker, Actor& other, const std::string& event) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    EXPECT_OK(maker.Write("made", seed));
    EXPECT_OK(maker.Record(event));
    EXPECT_OK(other.AwaitEvent(event));
    EXPECT_OK(other.Expect("opened", seed));
  }
}

TEST_P(NodeContract, OneRecordsAndAnotherWaitsByItsName) {
  for (const Identity identity :
       {Identity::kSameUser, Identity::kOtherUser, Identity::kOwnNamespaces}) {
    SCOPED_TRACE(IdentityName(identity));
    if (const std::string why = WhyNot(identity); !why.empty()) {
      RecordProperty("skipped_" + IdentityName(identity), why);
      continue;
    }
    const auto maker = StartActor(), other = StartActor(identity);
    ASSERT_OK(maker->Acquire("made", {.bytes = bytes_}));
    ASSERT_OK(other->Open("opened", maker->Share("made").value()));
    EXPECT_STATUS(other->OpenEvent("batch"), kNotFound, "event");
    ASSERT_OK(maker->CreateEvent("batch"));
    if (backend() == "cuda" && identity == Identity::kOtherUser) {
      EXPECT_STATUS(other->OpenEvent("batch"), kPermissionDenied, "one user");
      continue;
    }
    ASSERT_OK(other->OpenEvent("batch"));
    ExpectOrder(*maker, *other, "batch");
  }
}

TEST_P(NodeContract, BesideASegmentItIsForThoseWhoLeaseIt) {
  const auto maker = StartActor(), other = StartActor(Identity::kSameUser, kOther);
  const auto stranger = StartActor(Identity::kSameUser, kOther);
  ASSERT_OK(maker->Acquire("made", {.bytes = bytes_}));
  ASSERT_OK(other->Open("opened", maker->Share("made", TicketScope::kAny).value()));
  EXPECT_STATUS(other->OpenEventBeside("done", "opened"), kNotFound, "event");
  ASSERT_OK(maker->CreateEventBeside("done", "made"));
  ASSERT_OK(other->OpenEventBeside("done", "opened")) << "of another tenant, but it leases it";
  ExpectOrder(*maker, *other, "done");
  // A session without a lease has no way to ask.
  ASSERT_OK(stranger->Acquire("own", {.bytes = bytes_}));
  EXPECT_STATUS(stranger->OpenEventBeside("done", "own"), kNotFound, "event");
}

TEST_P(NodeContract, ANameIsTheTenantsAndThereIsOnlyOneOfIt) {
  const auto maker = StartActor(), same = StartActor();
  const auto stranger = StartActor(Identity::kSameUser, kOther);
  ASSERT_OK(maker->CreateEvent("batch"));
  EXPECT_STATUS(maker->CreateEvent("batch"), kAlreadyExists, "batch");
  EXPECT_STATUS(same->CreateEvent("batch"), kAlreadyExists, "batch");
  EXPECT_STATUS(stranger->OpenEvent("batch"), kNotFound, "event");
  EXPECT_OK(stranger->CreateEvent("batch")) << "the same name in another tenant is another event";
  EXPECT_OK(same->OpenEvent("batch"));
  const std::string long_name(65, 'x');
  EXPECT_STATUS(maker->CreateEvent(long_name), kInvalidArgument, "");
}

TEST_P(NodeContract, ItEndsWithItsMaker) {
  const auto other = StartActor();
  for (const bool killed : {false, true}) {
    const auto maker = StartActor();
    ASSERT_OK(maker->CreateEvent("batch"));
    ASSERT_OK(other->OpenEvent("batch"));
    if (killed) {
      maker->Kill();
    } else {
      ASSERT_OK(maker->DropEvent("batch"));
    }
    EXPECT_TRUE(Eventually(
        [&] { return other->OpenEvent("batch").code() == absl::StatusCode::kNotFound; }));
    EXPECT_OK(other->CreateEvent("batch")) << "its name is free again";
    ASSERT_OK(other->DropEvent("batch"));
  }
}

}  // namespace
}  // namespace gpumem::contract
