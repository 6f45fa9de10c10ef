// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/journal/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/core/journal/testing/chance.h"

namespace gpumemd::journal {
namespace {

using Payload = std::array<uint8_t, kPayloadBytes>;

Payload Encoded(const Change& change) {
  Payload payload;
  payload.fill(0xff);
  Encode(change, absl::MakeSpan(payload));
  return payload;
}

std::optional<Change> DecodedAs(const Change& change, const Payload& payload) {
  return Decode(static_cast<uint8_t>(TypeOf(change.object)), static_cast<uint8_t>(change.op),
                payload);
}

template <size_t kSize>
std::array<uint8_t, kSize> Filled(uint8_t value) {
  std::array<uint8_t, kSize> bytes;
  bytes.fill(value);
  return bytes;
}

// Returns hexadecimal digits, without the zeros at the end.
std::string Digits(const Payload& payload) {
  size_t size = payload.size();
  while (size > 0 && payload[size - 1] == 0) --size;
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(payload.data()), size));
}

std::string Times(int count, absl::string_view digits) {
  std::string text;
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, digits);
  return text;
}

// Returns "ab" as a Text<most>, in digits.
std::string Ab(int most) { return absl::StrCat("026162", Times(most - 2, "00")); }

// The bytes on disk. If this fails, daemons cannot read each other's journals.
TEST(JournalCodec, FormOnDisk) {
  struct Case {
    Change change;
    int type;
    std::string payload;
  };
  const Secret token = Filled<32>(0xee);
  const std::string tokens = Times(32, "ee");
  const Case cases[] = {
      {Put(Counters{1, 2, 3, 4, 5, 6, 7}), 1,
       "01000000000000000200000000000000030000000000000004000000000000000500000000000000"
       "06000000000000000700000000000000"},
      {Put(Session{.id = SessionId{0x0102030405060708},
                   .token = token,
                   .pid = 0x11,
                   .start_time = 0x12,
                   .uid = 0x13,
                   .gid = 0x14,
                   .opened_ns = 0x15,
                   .certain = false,
                   .ended = true,
                   .revocable = true,
                   .tenant = "ab",
                   .client_name = "ab",
                   .command = "ab",
                   .connect_id = 0x16}),
       2,
       absl::StrCat("0807060504030201", tokens, "11000000", "1200000000000000", "13000000",
                    "14000000", "1500000000000000", "000101", Ab(63), Ab(64), Ab(16), "16")},
      {Put(Segment{.id = SegmentId{1},
                   .bytes = 2,
                   .created_ns = 3,
                   .kind = Kind::kPinned,
                   .made = true,
                   .lost = false,
                   .shared_out = true,
                   .revocable = true,
                   .tenant = "ab",
                   .device_uuid = "ab"}),
       3,
       absl::StrCat("0100000000000000", "0200000000000000", "0300000000000000", "04", "01000101",
                    Ab(63), "026162")},
      {Put(Lease{.id = LeaseId{1},
                 .session = SessionId{2},
                 .segment = SegmentId{3},
                 .publication = PublicationId{4},
                 .request_id = 5,
                 .tickets = {std::nullopt, token}}),
       4,
       absl::StrCat("0100000000000000", "0200000000000000", "0300000000000000", "0400000000000000",
                    "0500000000000000", "00", Times(32, "00"), "01", tokens)},
      // With the fields of later versions.
      {Put(Segment{.id = SegmentId{1}, .kind = Kind::kTier, .home_uuid = "ab", .scratch = true}), 3,
       absl::StrCat("0100000000000000", Times(16, "00"), "05", "00000000", Times(64, "00"),
                    Times(64, "00"), Ab(63), "01")},
      {Put(Lease{.id = LeaseId{1}, .suspended = true, .tag = "ab"}), 4,
       absl::StrCat("0100000000000000", Times(32, "00"), Times(33, "00"), Times(33, "00"), "01",
                    "026162")},
      {Put(Exposure{SessionId{1}, SegmentId{2}, 3}), 5,
       absl::StrCat("0100000000000000", "0200000000000000", "03")},
      {Put(PoolImport{SessionId{1}, "ab", 3}), 6, absl::StrCat("0100000000000000", Ab(63), "03")},
      {Put(Publication{.id = PublicationId{1},
                       .version = 2,
                       .persistent = true,
                       .any_tenant = false,
                       .expire_after_ns = 3,
                       .publisher = SessionId{4},
                       .created_ns = 5,
                       .idle_since_ns = 6,
                       .metadata_bytes = 7,
                       .tenant = "ab",
                       .name = "ab"}),
       7,
       absl::StrCat("0100000000000000", "0200000000000000", "0100", "0300000000000000",
                    "0400000000000000", "0500000000000000", "0600000000000000", "07000000", Ab(63),
                    "026162")},
      {Put(PublicationItem{PublicationId{1}, 2, SegmentId{3}}), 8,
       absl::StrCat("0100000000000000", "02000000", "03")},
      {Put(IpcEvent{.id = IpcEventId{1},
                    .session = SessionId{2},
                    .lease = LeaseId{3},
                    .handed_out = true,
                    .name = "ab",
                    .device_uuid = "ab",
                    .handle = Filled<64>(0xdd)}),
       9,
       absl::StrCat("0100000000000000", "0200000000000000", "0300000000000000", "01", Ab(64),
                    Ab(63), Times(64, "dd"))},
      {Put(Answer{SessionId{1}, 2, 3}), 10,
       absl::StrCat("0100000000000000", "0200000000000000", "03")},
      {Put(PublicationContent{PublicationId{1}, "ab"}), 12,
       absl::StrCat("0100000000000000", "026162")},
      {Put(journal::Claim{SessionId{1}, 2, "ab", "ab"}), 13,
       absl::StrCat("0100000000000000", "0200000000000000", Ab(64), "026162")},
      {Put(journal::MadeTenant{.id = MadeTenantId{1},
                               .created_ns = 2,
                               .session = SessionId{3},
                               .uid_known = true,
                               .uid = 4,
                               .ending = true,
                               .name = "ab",
                               .parent = "ab",
                               .owner = "ab",
                               .user = 5}),
       14,
       absl::StrCat("0100000000000000", "0200000000000000", "0300000000000000", "01", "04000000",
                    "01", Ab(63), Ab(63), Ab(32), "00", "01", "05")},
      {Put(journal::MadeTenantQuota{.id = MadeTenantId{1},
                                    .set = 2,
                                    .clear = 3,
                                    .limit_bytes = 4,
                                    .total_limit_bytes = 5,
                                    .pinned_limit_bytes = 6,
                                    .tier_limit_bytes = 7,
                                    .max_retained_bytes = 8,
                                    .guarantee_bytes = 9,
                                    .max_segments = 10,
                                    .max_sessions = 11,
                                    .max_in_flight = 12,
                                    .max_waiting = 13,
                                    .max_publications = 14,
                                    .priority = -1,
                                    .min_residence_ns = 15,
                                    .idle_suspend_ns = 16,
                                    .kind = 1,
                                    .scrub = true,
                                    .revocable = false,
                                    .swappable = true,
                                    .on_exit = true,
                                    .preload = 1}),
       15,
       absl::StrCat("0100000000000000", "0200000000000000", "0300000000000000", "0400000000000000",
                    "0500000000000000", "0600000000000000", "0700000000000000", "0800000000000000",
                    "0900000000000000", "0a000000", "0b000000", "0c000000", "0d000000", "0e000000",
                    "ffffffff", "0f00000000000000", "1000000000000000", "01", "0100010101")},
      {Put(journal::MadeTenantDevice{
           .tenant = MadeTenantId{1}, .index = 2, .guarantee_bytes = 3, .device_uuid = "ab"}),
       16,
       absl::StrCat("0100000000000000", "02000000", Times(9, "00"), "01", "0300000000000000",
                    "026162")},
      {Put(journal::MadeTenantUse{.tenant = MadeTenantId{1},
                                  .device_uuid = "ab",
                                  .byte_seconds = 2,
                                  .byte_ns = 3,
                                  .at_ns = 4,
                                  .charged_bytes = 5,
                                  .peak_bytes = 6}),
       17,
       absl::StrCat("0100000000000000", Ab(63), "0200000000000000", "03000000", "0400000000000000",
                    "0500000000000000", "06")},
      {Erase<Exposure>({SessionId{1}, SegmentId{2}}), 5, absl::StrCat("0100000000000000", "02")},
      {Erase<PoolImport>({SessionId{1}, "ab"}), 6, absl::StrCat("0100000000000000", "026162")},
      {Erase<Session>(SessionId{1}), 2, "01"},
  };
  for (const Case& expected : cases) {
    EXPECT_EQ(static_cast<int>(TypeOf(expected.change.object)), expected.type);
    const Payload payload = Encoded(expected.change);
    absl::string_view wanted = expected.payload;
    while (absl::ConsumeSuffix(&wanted, "00")) {
    }
    EXPECT_EQ(Digits(payload), wanted) << "type " << expected.type;
    const std::optional<Change> decoded = DecodedAs(expected.change, payload);
    ASSERT_TRUE(decoded.has_value()) << "type " << expected.type;
    if (expected.change.op == Op::kPut) {
      EXPECT_TRUE(decoded->object == expected.change.object) << "type " << expected.type;
    }
  }
}

TEST(JournalCodec, ARecordNamesTheVersionThatItNeeds) {
  EXPECT_EQ(VersionOf(Segment{.kind = Kind::kVmm}), 1);
  EXPECT_EQ(VersionOf(Segment{.kind = Kind::kTier}), 2);
  EXPECT_EQ(VersionOf(Segment{.kind = Kind::kVmm, .scratch = true}), 3);
  EXPECT_EQ(VersionOf(Segment{.kind = Kind::kTier, .scratch = true}), 3);
  EXPECT_EQ(VersionOf(Segment{.kind = Kind::kHost}), 4);
  EXPECT_EQ(VersionOf(Segment{.kind = Kind::kDriver}), 6);
  EXPECT_EQ(VersionOf(PublicationContent{}), 5);
  EXPECT_EQ(VersionOf(journal::Claim{}), 5);
  EXPECT_EQ(VersionOf(journal::MadeTenant{}), 6);
  EXPECT_EQ(VersionOf(journal::MadeTenantQuota{}), 6);
  EXPECT_EQ(VersionOf(journal::MadeTenantDevice{}), 6);
  EXPECT_EQ(VersionOf(journal::MadeTenant{.lasting = true}), 7);
  EXPECT_EQ(VersionOf(journal::MadeTenant{.user = 0}), 8);
  EXPECT_EQ(VersionOf(journal::MadeTenantUse{}), 8);
  EXPECT_EQ(VersionOf(Publication{}), 1);
  EXPECT_EQ(VersionOf(Lease{}), 1);
  EXPECT_EQ(VersionOf(Lease{.suspended = true}), 2);
  EXPECT_EQ(VersionOf(Lease{.tag = "kv"}), 3);
}

TEST(JournalCodec, AnOlderDaemonMayIgnoreFiguresAndNothingElse) {
  EXPECT_TRUE(MayPass(journal::MadeTenantUse{}));
  EXPECT_TRUE(MayPass(journal::MadeTenant{.user = 0}));
  EXPECT_FALSE(MayPass(journal::MadeTenant{.lasting = true, .user = 0}));
  EXPECT_FALSE(MayPass(journal::MadeTenant{}));
  EXPECT_FALSE(MayPass(journal::MadeTenantQuota{}));
  EXPECT_FALSE(MayPass(Segment{}));
}

TEST(JournalCodec, EveryChangeComesBack) {
  JournalChance chance(2);
  std::map<size_t, int> seen;
  for (int i = 0; i < 20000; ++i) {
    const Change change = chance.Change();
    const std::optional<Change> decoded = DecodedAs(change, Encoded(change));
    ASSERT_TRUE(decoded.has_value());
    ASSERT_EQ(decoded->op, change.op);
    ++seen[change.object.index()];
    if (change.op == Op::kPut) {
      ASSERT_TRUE(decoded->object == change.object);
    } else {
      std::visit(
          [&]<typename T>(const T& object) {
            const T* erased = std::get_if<T>(&decoded->object);
            ASSERT_NE(erased, nullptr);
            ASSERT_TRUE(erased->key() == object.key());
            if constexpr (!std::is_same_v<T, Counters>) {
              ASSERT_TRUE(*erased == T::OfKey(object.key()));
            }
          },
          change.object);
    }
  }
  EXPECT_EQ(seen.size(), 16u);
}

// Each change has one form: a change that was read is written again as the same bytes.
TEST(JournalCodec, OnlyWhatIsWrittenIsRead) {
  JournalChance chance(3);
  int read = 0, refused = 0;
  for (int i = 0; i < 200000; ++i) {
    Payload payload = Encoded(chance.Change());
    // Only zeros behind a type's end are likely to be read as another type's.
    for (uint64_t changes = chance.Below(3); changes > 0; --changes) {
      payload[chance.Below(payload.size())] = static_cast<uint8_t>(chance.Below(256));
    }
    const auto type = static_cast<uint8_t>(chance.Below(12));
    const auto op = static_cast<uint8_t>(chance.Below(4));
    const std::optional<Change> change = Decode(type, op, payload);
    if (!change) {
      ++refused;
      continue;
    }
    ++read;
    ASSERT_EQ(static_cast<uint8_t>(TypeOf(change->object)), type);
    ASSERT_EQ(static_cast<uint8_t>(change->op), op);
    ASSERT_EQ(Encoded(*change), payload);
  }
  EXPECT_GT(read, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(JournalCodec, RefusesEachWrongByte) {
  const Change segment = Put(Segment{.id = SegmentId{1}, .tenant = "ab"});
  const auto refused = [](const Change& change, size_t at, uint8_t value) {
    Payload payload = Encoded(change);
    payload[at] = value;
    return !DecodedAs(change, payload).has_value();
  };
  EXPECT_FALSE(refused(segment, 0, 7));    // another id
  EXPECT_TRUE(refused(segment, 24, 0));    // no kind
  EXPECT_FALSE(refused(segment, 24, 4));   // pinned
  EXPECT_FALSE(refused(segment, 24, 5));   // tier
  EXPECT_FALSE(refused(segment, 24, 7));   // driver
  EXPECT_TRUE(refused(segment, 24, 8));    // no kind
  EXPECT_FALSE(refused(segment, 25, 1));   // made
  EXPECT_TRUE(refused(segment, 25, 2));    // neither true nor false
  EXPECT_TRUE(refused(segment, 29, 64));   // longer than the maximum
  EXPECT_TRUE(refused(segment, 29, 255));  // the same
  EXPECT_TRUE(refused(segment, 29, 1));    // a byte behind the text
  EXPECT_TRUE(refused(segment, 32, 'x'));  // the same
  EXPECT_TRUE(refused(segment, 222, 1));   // behind the object
  EXPECT_TRUE(refused(segment, kPayloadBytes - 1, 1));
  const Change lease = Put(Lease{.id = LeaseId{1}});
  EXPECT_TRUE(refused(lease, 40, 2));                        // neither present nor absent
  EXPECT_TRUE(refused(lease, 41, 1));                        // a ticket that is absent
  EXPECT_FALSE(refused(lease, 40, 1));                       // a ticket of zeros
  EXPECT_TRUE(refused(Erase<Segment>(SegmentId{1}), 8, 1));  // more than the key
  const Payload zeros{};
  EXPECT_TRUE(Decode(1, 1, zeros).has_value());
  EXPECT_FALSE(Decode(1, 2, zeros).has_value());  // Counters cannot be erased
  EXPECT_FALSE(Decode(0, 1, zeros).has_value());
  EXPECT_FALSE(Decode(kLastType + 1, 1, zeros).has_value());
  EXPECT_FALSE(Decode(2, 0, zeros).has_value());
  EXPECT_FALSE(Decode(2, 3, zeros).has_value());
  EXPECT_FALSE(Decode(1, 1, absl::Span<const uint8_t>(zeros).subspan(1)).has_value());
}

// Bytes that a newer daemon has put behind the last field are ignored if the caller asks for it.
TEST(JournalCodec, KeysAndKnownFieldsAreReadAlone) {
  JournalChance chance(4);
  for (int i = 0; i < 1000; ++i) {
    const Change change = Put(chance.Object());
    Payload payload = Encoded(change);
    if (const auto key = DecodeKey(static_cast<uint8_t>(TypeOf(change.object)), payload)) {
      EXPECT_EQ(key->op, Op::kErase);
      EXPECT_TRUE(TypeOf(key->object) == TypeOf(change.object));
      Payload again = Encoded(*key);
      EXPECT_TRUE(std::equal(again.begin(), again.begin() + 8, payload.begin()));
    } else {
      EXPECT_EQ(TypeOf(change.object), Type::kCounters);
    }
    payload.back() = 1;
    EXPECT_FALSE(DecodedAs(change, payload).has_value());
    const std::optional<Change> known =
        Decode(static_cast<uint8_t>(TypeOf(change.object)), static_cast<uint8_t>(Op::kPut), payload,
               /*more=*/true);
    ASSERT_TRUE(known.has_value());
    EXPECT_TRUE(known->object == change.object);
  }
  EXPECT_FALSE(DecodeKey(0, Payload{}).has_value());
  EXPECT_FALSE(DecodeKey(kLastType + 1, Payload{}).has_value());
}

}  // namespace
}  // namespace gpumemd::journal
