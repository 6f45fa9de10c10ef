// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/journal/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "daemon/core/journal/testing/chance.h"

namespace gpumemd {
namespace {

using journal::Erase;
using journal::Put;
using ::testing::HasSubstr;

// Returns one object of each type, and all that they refer to.
std::vector<journal::Change> WholeState() {
  return {
      Put(journal::Session{.id = SessionId{1}, .tenant = "alice"}),
      Put(journal::Segment{.id = SegmentId{2}, .bytes = 4096, .tenant = "alice"}),
      Put(journal::Lease{
          .id = LeaseId{3}, .session = SessionId{1}, .segment = SegmentId{2}, .request_id = 9}),
      Put(journal::Exposure{SessionId{1}, SegmentId{2}, 1}),
      Put(journal::PoolImport{SessionId{1}, "GPU-1", 2}),
      Put(journal::Publication{
          .id = PublicationId{4}, .publisher = SessionId{1}, .tenant = "alice", .name = "weights"}),
      Put(journal::PublicationItem{PublicationId{4}, 0, SegmentId{2}}),
      Put(journal::PublicationItem{PublicationId{4}, 1, SegmentId{2}}),
      Put(journal::IpcEvent{.id = IpcEventId{5}, .session = SessionId{1}, .lease = LeaseId{3}}),
      Put(journal::Answer{SessionId{1}, 9, 4}),
      Put(journal::TierExtent{SegmentId{2}, 0, 0, 4096}),
      Put(journal::PublicationContent{PublicationId{4}, "id"}),
      Put(journal::Claim{SessionId{1}, 9, "weights", "id"}),
      Put(journal::MadeTenant{.id = MadeTenantId{6}, .name = "job"}),
      Put(journal::MadeTenantQuota{.id = MadeTenantId{6}}),
      Put(journal::MadeTenantDevice{.tenant = MadeTenantId{6}, .device_uuid = "GPU-1"}),
      Put(journal::MadeTenantUse{
          .tenant = MadeTenantId{6}, .device_uuid = "GPU-1", .byte_seconds = 7}),
  };
}

JournalImage ImageOf(const std::vector<journal::Change>& changes) {
  JournalImage image;
  for (const journal::Change& change : changes) image.Apply(change);
  return image;
}

TEST(JournalText, KeepsTextThatFits) {
  EXPECT_EQ(journal::Command("0123456789abcdef").view(), "0123456789abcdef");
  EXPECT_EQ(journal::Command::Cut("0123456789abcdefg").view(), "0123456789abcdef");
  EXPECT_EQ(journal::Name(std::string("a\0b", 3)).view(), absl::string_view("a\0b", 3));
  EXPECT_TRUE(journal::Name().empty());
  EXPECT_LT(journal::Name("a"), journal::Name("b"));
  EXPECT_LT(journal::Name("a"), journal::Name("aa"));
  EXPECT_DEATH(journal::Command("0123456789abcdefg"), "");
}

TEST(JournalImage, PutReplacesAndEraseEnds) {
  JournalImage image = ImageOf(WholeState());
  EXPECT_EQ(image.size(), 18u);
  image.Apply(Put(journal::Exposure{SessionId{1}, SegmentId{2}, 7}));
  EXPECT_EQ(image.exposures.size(), 1u);
  EXPECT_EQ((image.exposures.at({SessionId{1}, SegmentId{2}}).count), 7u);
  image.Apply(Erase<journal::Exposure>({SessionId{1}, SegmentId{3}}));  // there is none
  EXPECT_EQ(image.exposures.size(), 1u);
  image.Apply(Erase<journal::Exposure>({SessionId{1}, SegmentId{2}}));
  image.Apply(Erase<journal::Lease>(LeaseId{3}));
  EXPECT_TRUE(image.exposures.empty());
  EXPECT_TRUE(image.leases.empty());
  EXPECT_EQ(image.size(), 16u);
}

TEST(JournalImage, NoNumberIsForgotten) {
  JournalImage image = ImageOf(WholeState());
  EXPECT_EQ(image.counters, (journal::Counters{1, 2, 3, 4, 5, 0, 6}));
  image.Apply(Erase<journal::Lease>(LeaseId{3}));
  image.Apply(Erase<journal::Lease>(LeaseId{33}));  // never put
  EXPECT_EQ(image.counters.lease, 3u);
  image.Apply(Put(journal::Counters{.session = 8, .lease = 2}));
  EXPECT_EQ(image.counters, (journal::Counters{8, 2, 3, 4, 5, 0, 6}));
}

TEST(JournalImage, OnlyObjectsWithNumbersOfTheirOwnAreCounted) {
  journal::Counters counters;
  EXPECT_EQ(counters.Of(journal::Type::kLease), &counters.lease);
  EXPECT_EQ(counters.Of(journal::Type::kExposure), nullptr);
  EXPECT_EQ(counters.Of(journal::Type::kTierExtent), nullptr);
}

TEST(JournalImage, ForEachMakesTheSameAgain) {
  JournalChance chance(1);
  JournalImage image;
  for (int i = 0; i < 2000; ++i) image.Apply(chance.Change());
  JournalImage again;
  size_t objects = 0;
  image.ForEach([&](const journal::Object& object) {
    again.Apply({journal::Op::kPut, object});
    ++objects;
  });
  EXPECT_TRUE(again == image);
  EXPECT_EQ(objects, image.size());
  again.Apply(Erase<journal::Session>(image.sessions.begin()->first));
  EXPECT_FALSE(again == image);
}

TEST(JournalImage, ReferencesThatHold) {
  EXPECT_EQ(ImageOf({}).CheckReferences().ToString(), "OK");
  JournalImage image = ImageOf(WholeState());
  EXPECT_EQ(image.CheckReferences().ToString(), "OK");
  // Objects that refer to nothing on purpose.
  image.Apply(Put(journal::Publication{.id = PublicationId{4}, .name = "weights"}));
  image.Apply(Put(journal::IpcEvent{.id = IpcEventId{5}, .session = SessionId{1}}));
  image.Apply(Put(journal::Lease{.id = LeaseId{3},
                                 .session = SessionId{1},
                                 .segment = SegmentId{2},
                                 .publication = PublicationId{77}}));
  EXPECT_EQ(image.CheckReferences().ToString(), "OK");
}

TEST(JournalImage, ReferencesThatDangle) {
  struct Case {
    journal::Change change;
    std::string words;
  };
  const std::vector<Case> cases = {
      {Put(journal::Lease{.id = LeaseId{3}, .session = SessionId{9}, .segment = SegmentId{2}}),
       "lease 3 refers to session 9, which is not in it"},
      {Put(journal::Lease{.id = LeaseId{3}, .session = SessionId{1}, .segment = SegmentId{9}}),
       "lease 3 refers to segment 9"},
      {Put(journal::Exposure{SessionId{9}, SegmentId{2}, 1}),
       "the exposure of session 9 to segment 2 refers to session 9"},
      {Put(journal::Exposure{SessionId{1}, SegmentId{9}, 1}), "refers to segment 9"},
      {Put(journal::PoolImport{SessionId{9}, "GPU-1", 2}),
       "the pool on device GPU-1 that session 9 has open refers to session 9"},
      {Put(journal::Publication{.id = PublicationId{4}, .publisher = SessionId{9}}),
       "publication 4 refers to session 9"},
      {Put(journal::PublicationItem{PublicationId{9}, 0, SegmentId{2}}),
       "item 0 of publication 9 refers to publication 9"},
      {Put(journal::PublicationItem{PublicationId{4}, 1, SegmentId{9}}),
       "item 1 of publication 4 refers to segment 9"},
      {Put(journal::PublicationItem{PublicationId{4}, 3, SegmentId{2}}),
       "item 3 of publication 4 is in it without item 2"},
      {Erase<journal::PublicationItem>({PublicationId{4}, 0}),
       "item 1 of publication 4 is in it without item 0"},
      {Put(journal::IpcEvent{.id = IpcEventId{5}, .session = SessionId{9}}),
       "event 5 refers to session 9"},
      {Put(journal::IpcEvent{.id = IpcEventId{5}, .session = SessionId{1}, .lease = LeaseId{9}}),
       "event 5 refers to lease 9"},
      {Put(journal::Answer{SessionId{9}, 9, 4}), "the answer to request 9 refers to session 9"},
      {Put(journal::TierExtent{SegmentId{9}, 1, 0, 4096}),
       "extent 1 of segment 9 refers to segment 9"},
      {Put(journal::PublicationContent{PublicationId{9}, "id"}),
       "the content id of publication 9 refers to publication 9"},
      {Put(journal::Claim{SessionId{9}, 9, "weights", "id"}),
       "the claim by request 9 refers to session 9"},
      {Put(journal::MadeTenantQuota{.id = MadeTenantId{9}}),
       "the quota of made tenant 9 refers to made tenant 9"},
      {Put(journal::MadeTenantDevice{.tenant = MadeTenantId{9}, .index = 1}),
       "device 1 of made tenant 9 refers to made tenant 9"},
      {Put(journal::MadeTenantUse{.tenant = MadeTenantId{9}, .device_uuid = "GPU-1"}),
       "the use of device GPU-1 by made tenant 9 refers to made tenant 9"},
      {Erase<journal::Segment>(SegmentId{2}), "lease 3 refers to segment 2"},
  };
  for (const Case& wrong : cases) {
    JournalImage image = ImageOf(WholeState());
    image.Apply(wrong.change);
    const absl::Status status = image.CheckReferences();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.words));
  }
}

}  // namespace
}  // namespace gpumemd
