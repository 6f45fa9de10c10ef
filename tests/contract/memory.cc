// SPDX-License-Identifier: Apache-2.0
// The content of memory when it is acquired, and how it may be mapped.
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gpumem/publication.h"
#include "tests/contract/contract.h"
#include "tests/support/pattern.h"

namespace gpumem::contract {
namespace {

using testing::Check;
using testing::CheckZero;
using testing::Fill;
using testing::MemoryOf;

TEST_P(KindContract, AnotherTenantNeverSeesWhatWasThere) {
  const auto first = Connect(kKeeper), second = Connect(kOther);
  for (int round = 0; round < 5; ++round) {
    // Retained, then taken back for the other: the shortest way between two tenants.
    auto old = first->Acquire({.bytes = bytes_, .kind = kind()});
    ASSERT_OK(old);
    ASSERT_OK(Fill(MemoryOf(*old), 1 + round));
    ASSERT_OK(old->Release());
    Trim(kKeeper);
    auto fresh = second->Acquire({.bytes = bytes_, .kind = kind()});
    ASSERT_OK(fresh);
    EXPECT_EQ(fresh->reused(), kept_by_pool() && round > 0);
    if (fresh->reused()) {
      EXPECT_OK(Check(MemoryOf(*fresh), 100 + round - 1)) << "its own, of the last round";
    } else {
      EXPECT_OK(CheckZero(MemoryOf(*fresh)));
    }
    ASSERT_OK(Fill(MemoryOf(*fresh), 100 + round));
  }
}

TEST_P(KindContract, NewMemoryOfTheSameTenantIsZeroUnlessItSaysThatItIsReused) {
  const auto client = Connect(kOwner);  // keeps nothing, except memory that a pool keeps
  for (int round = 0; round < 5; ++round) {
    auto segment = client->Acquire({.bytes = bytes_, .kind = kind()});
    ASSERT_OK(segment);
    EXPECT_EQ(segment->reused(), kept_by_pool() && round > 0);
    if (!segment->reused()) {
      EXPECT_OK(CheckZero(MemoryOf(*segment)));
    }
    ASSERT_OK(Fill(MemoryOf(*segment), 1));
  }
  const auto keeper = Connect(kKeeper);
  auto first = keeper->Acquire({.bytes = bytes_, .kind = kind()});
  ASSERT_OK(first);
  EXPECT_FALSE(first->reused());
  ASSERT_OK(Fill(MemoryOf(*first), 7));
  const uint64_t id = first->segment_id();
  ASSERT_OK(first->Release());
  auto again = keeper->Acquire({.bytes = bytes_, .kind = kind()});
  ASSERT_OK(again);
  EXPECT_TRUE(again->reused());
  EXPECT_EQ(again->segment_id(), id);
  EXPECT_OK(Check(MemoryOf(*again), 7)) << "within a tenant reuse does not clear";
}

TEST_P(KindContract, SizesAreRoundedUpToTheGranularityOfTheDevice) {
  const auto client = Connect();
  const uint64_t granule = granule_;
  uint64_t kept = 0;
  for (const uint64_t bytes : {uint64_t{1}, granule, granule + 1}) {
    auto segment = client->Acquire({.bytes = bytes, .kind = kind()});
    ASSERT_OK(segment);
    EXPECT_EQ(segment->size(), (bytes + granule - 1) / granule * granule);
    EXPECT_EQ(segment->kind(), kind());
    EXPECT_OK(CheckZero(MemoryOf(*segment)));  // all of it is there
    EXPECT_EQ(segment->reused(), kept_by_pool() && bytes == granule);
    if (!segment->reused()) kept = segment->size() + (kept_by_pool() ? kept : 0);
    EXPECT_TRUE(EventuallyCharged(kept)) << Charged();
  }
  EXPECT_STATUS(client->Acquire({.bytes = 0, .kind = kind()}), kInvalidArgument, "");
}

TEST_P(KindContract, TagsAreShortNamesAndScratchIsForMemoryThatCanBeSuspended) {
  const auto client = Connect();
  const std::string longest(32, 'x');
  for (const std::string& right : {std::string(), longest, std::string("KV_cache.0-a")}) {
    const auto segment = client->Acquire({.bytes = bytes_, .kind = kind(), .tag = right});
    ASSERT_OK(segment);
    EXPECT_EQ(segment->tag(), right);
    EXPECT_FALSE(segment->scratch());
  }
  for (const std::string& wrong :
       {longest + "x", std::string("a b"), std::string("a\0b", 3), std::string("\n"),
        std::string("\xc3\xa4"), std::string(100'000, 'x')}) {
    EXPECT_STATUS(client->Acquire({.bytes = bytes_, .kind = kind(), .tag = wrong}),
                  kInvalidArgument, "a tag has");
  }
  auto scratch = client->Acquire({.bytes = bytes_, .kind = kind(), .scratch = true});
  if (kind() != Kind::kVmm) {
    EXPECT_STATUS(scratch, kInvalidArgument, "cannot be suspended");
    return;
  }
  ASSERT_OK(scratch);
  EXPECT_TRUE(scratch->scratch());
  EXPECT_STATUS(client->Publish("scratch", {&*scratch}, {}), kFailedPrecondition, "is scratch");
}

TEST_P(KindContract, ManySegmentsInOneCall) {
  const auto client = Connect();
  auto segments = client->AcquireMany({.bytes = bytes_, .kind = kind()}, 5);
  ASSERT_OK(segments);
  std::vector<std::string> tickets;
  for (size_t i = 0; i < segments->size(); ++i) {
    ASSERT_OK(Fill(MemoryOf((*segments)[i]), i));
    auto ticket = (*segments)[i].Share();
    ASSERT_OK(ticket);
    tickets.push_back(ticket->value);
    if (GetParam().has_map_options()) {
      EXPECT_EQ((*segments)[i].data(), static_cast<char*>((*segments)[0].data()) + i * bytes_)
          << "one after another in one range";
    }
  }
  const auto reader = StartActor();
  for (size_t i = tickets.size(); i-- > 0;) {
    ASSERT_OK(reader->Open(absl::StrCat("s", i), tickets[i]));
    EXPECT_OK(reader->Expect(absl::StrCat("s", i), i)) << "no two are mixed up";
  }
  EXPECT_EQ(Charged(), 5 * bytes_);
}

// In another process: where the guard fails, a GPU's context may go with it.
TEST_P(KindContract, ReadOnlyMemoryCannotBeWrittenOrIsRefused) {
  const auto maker = StartActor();
  ASSERT_OK(maker->Acquire("made", {.kind = kind(), .bytes = bytes_}));
  ASSERT_OK(maker->Write("made", 3));
  const auto ticket = maker->Share("made");
  ASSERT_OK(ticket);
  const auto reader = StartActor();
  const auto opened = reader->Open("opened", *ticket, {.read_only = true});
  if (!GetParam().has_map_options()) {
    EXPECT_STATUS(opened, kUnimplemented, "vmm");
    // It holds nothing by that, and may open it as it is.
    EXPECT_OK(reader->Open("opened", *ticket));
    EXPECT_OK(maker->Release("made"));
    EXPECT_OK(reader->Release("opened"));
    if (kept_by_pool()) {
      maker->Kill();
      EXPECT_EQ(Charged(), bytes_) << "the reader lives, and has the pool open";
      reader->Kill();
    }
    EXPECT_TRUE(EventuallyCharged(0)) << Charged();
    return;
  }
  ASSERT_OK(opened);
  EXPECT_OK(reader->Expect("opened", 3));
  EXPECT_STATUS(reader->TryWrite("opened"), kPermissionDenied, "");
  EXPECT_OK(maker->Expect("made", 3)) << "it was written to all the same";
  EXPECT_OK(maker->TryWrite("made"));
}

// Repeats a call that wishes for an address that was free a moment ago: any thread of the process
// may have mapped something there meanwhile.
template <typename Call>
auto UntilNotTaken(Call call) {
  constexpr int kAttempts = 20;
  auto answer = call();
  for (int i = 1; i < kAttempts && absl::IsFailedPrecondition(answer.status()); ++i) {
    answer = call();
  }
  return answer;
}

TEST_P(KindContract, AWishedAddressIsKeptOrRefused) {
  const auto client = Connect();
  void* address = nullptr;
  auto wished = UntilNotTaken([&]() -> absl::StatusOr<Segment> {
    // One that was free a moment ago, on the next 2 MiB: with so much more it is free as a whole.
    constexpr uintptr_t kStep = 2 * kMiB;
    const uint64_t more = GetParam().has_map_options() ? kStep : 0;
    auto somewhere = client->Acquire({.bytes = bytes_ + more, .kind = kind()});
    if (!somewhere.ok()) return somewhere;
    address = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(somewhere->data()) + kStep - 1) /
                                      kStep * kStep);
    if (absl::Status released = somewhere->Release(); !released.ok()) return released;
    return client->Acquire({.bytes = bytes_, .kind = kind(), .address = address});
  });
  if (!GetParam().has_map_options()) {
    EXPECT_STATUS(wished, kUnimplemented, "vmm");
    EXPECT_TRUE(EventuallyCharged(kept_by_pool() ? bytes_ : 0))
        << "nothing is kept of what was refused";
    return;
  }
  ASSERT_OK(wished);
  EXPECT_EQ(wished->data(), address);
  ASSERT_OK(Fill(MemoryOf(*wished), 9));
  EXPECT_STATUS(client->Acquire({.bytes = bytes_, .kind = kind(), .address = address}),
                kFailedPrecondition, "address");
  EXPECT_OK(Check(MemoryOf(*wished), 9)) << "what was there suffers nothing from it";
  EXPECT_TRUE(EventuallyCharged(bytes_)) << "nothing is kept of what was refused";
  // Others may have it there, too, and the same when they open it.
  const auto ticket = wished->Share();
  ASSERT_OK(ticket);
  const auto other = StartActor();
  uint64_t its_address = 0;
  const auto second = UntilNotTaken([&]() -> absl::StatusOr<Held> {
    auto first = other->Open("first", ticket->value);
    if (!first.ok()) return first;
    its_address = first->address;
    if (absl::Status released = other->Release("first"); !released.ok()) return released;
    return other->Open("second", ticket->value, {.address = its_address});
  });
  ASSERT_OK(second);
  EXPECT_EQ(second->address, its_address);
  EXPECT_OK(other->Expect("second", 9));
}

}  // namespace
}  // namespace gpumem::contract
