// SPDX-License-Identifier: Apache-2.0
// Changes by chance, for tests of the journal: the same from the same seed on every machine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/kind.h"
#include "daemon/core/journal/records.h"

namespace gpumemd {

class JournalChance {
 public:
  explicit JournalChance(uint64_t seed) : numbers_(seed) {}

  uint64_t Below(uint64_t end) { return numbers_() % end; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  // Few keys, so that objects are put again and erased; all fields.
  journal::Object Object() {
    using namespace journal;
    switch (Below(12)) {
      case 0:
        return Counters{Wide(), Wide(), Wide(), Wide(), Wide(), Wide(), Wide()};
      case 1:
        return Session{.id = Id<SessionId>(),
                       .token = Bytes<32>(),
                       .pid = static_cast<pid_t>(Below(1 << 22)),
                       .start_time = numbers_(),
                       .uid = static_cast<uid_t>(numbers_()),
                       .gid = static_cast<gid_t>(numbers_()),
                       .opened_ns = static_cast<int64_t>(numbers_()),
                       .certain = OneIn(2),
                       .ended = OneIn(2),
                       .revocable = OneIn(2),
                       .tenant = Word(63),
                       .client_name = Word(64),
                       .command = Word(16),
                       .connect_id = static_cast<uint32_t>(numbers_())};
      case 2:
        return Segment{.id = Id<SegmentId>(),
                       .bytes = numbers_(),
                       .created_ns = static_cast<int64_t>(numbers_()),
                       .kind = gpumem::kKindTable[Below(4)].kind,
                       .made = OneIn(2),
                       .lost = OneIn(2),
                       .shared_out = OneIn(2),
                       .revocable = OneIn(2),
                       .tenant = Word(63),
                       .device_uuid = Word(63),
                       .scratch = OneIn(2)};
      case 3: {
        Lease lease{.id = Id<LeaseId>(),
                    .session = Id<SessionId>(),
                    .segment = Id<SegmentId>(),
                    .publication = Id<PublicationId>(),
                    .request_id = numbers_(),
                    .suspended = OneIn(2),
                    .tag = Word(32)};
        for (auto& ticket : lease.tickets) {
          if (OneIn(2)) ticket = Bytes<32>();
        }
        return lease;
      }
      case 4:
        return Exposure{Id<SessionId>(), Id<SegmentId>(), static_cast<uint32_t>(numbers_())};
      case 5:
        return PoolImport{Id<SessionId>(), Word(2), static_cast<uint32_t>(numbers_())};
      case 6:
        return Publication{.id = Id<PublicationId>(),
                           .version = numbers_(),
                           .persistent = OneIn(2),
                           .any_tenant = OneIn(2),
                           .expire_after_ns = static_cast<int64_t>(numbers_()),
                           .publisher = Id<SessionId>(),
                           .created_ns = static_cast<int64_t>(numbers_()),
                           .idle_since_ns = static_cast<int64_t>(numbers_()),
                           .metadata_bytes = static_cast<uint32_t>(numbers_()),
                           .tenant = Word(63),
                           .name = Word(64)};
      case 7:
        return PublicationItem{Id<PublicationId>(), static_cast<uint32_t>(Below(8)),
                               Id<SegmentId>()};
      case 8:
        return OneIn(2) ? journal::Object(PublicationContent{Id<PublicationId>(), Word(64)})
                        : journal::Claim{Id<SessionId>(), Below(8), Word(64), Word(64)};
      case 9:
        return Answer{Id<SessionId>(), Below(8), numbers_()};
      case 10:
        return MadeTenantObject();
      default:
        return IpcEvent{.id = Id<IpcEventId>(),
                        .session = Id<SessionId>(),
                        .lease = Id<LeaseId>(),
                        .handed_out = OneIn(2),
                        .name = Word(64),
                        .device_uuid = Word(63),
                        .handle = Bytes<64>()};
    }
  }

  journal::Object MadeTenantObject() {
    using namespace journal;
    switch (Below(4)) {
      case 3:
        return MadeTenantUse{.tenant = Id<MadeTenantId>(),
                             .device_uuid = Word(2),
                             .byte_seconds = numbers_(),
                             .byte_ns = static_cast<uint32_t>(Below(1'000'000'000)),
                             .at_ns = static_cast<int64_t>(numbers_()),
                             .charged_bytes = numbers_(),
                             .peak_bytes = numbers_()};
      case 0:
        return MadeTenant{.id = Id<MadeTenantId>(),
                          .created_ns = static_cast<int64_t>(numbers_()),
                          .session = Id<SessionId>(),
                          .uid_known = OneIn(2),
                          .uid = static_cast<uid_t>(numbers_()),
                          .ending = OneIn(2),
                          .name = Word(63),
                          .parent = Word(63),
                          .owner = Word(32),
                          .user = OneIn(2) ? std::optional<uint32_t>(Below(100000)) : std::nullopt};
      case 1:
        return MadeTenantQuota{.id = Id<MadeTenantId>(),
                               .set = numbers_(),
                               .clear = numbers_(),
                               .limit_bytes = numbers_(),
                               .guarantee_bytes = numbers_(),
                               .max_publications = static_cast<uint32_t>(numbers_()),
                               .priority = static_cast<int32_t>(numbers_()),
                               .kind = static_cast<uint8_t>(Below(4)),
                               .on_exit = OneIn(2),
                               .preload = static_cast<uint8_t>(OneIn(2))};
      default: {
        MadeTenantDevice device{.tenant = Id<MadeTenantId>(),
                                .index = static_cast<uint32_t>(Below(4)),
                                .device_uuid = Word(63)};
        if (OneIn(2)) device.limit_bytes = numbers_();
        return device;
      }
    }
  }

  journal::Change Change() {
    const journal::Object object = Object();
    if (std::holds_alternative<journal::Counters>(object) || !OneIn(3)) {
      return {journal::Op::kPut, object};
    }
    return {journal::Op::kErase, object};
  }

  std::vector<journal::Change> Batch(size_t most) {
    std::vector<journal::Change> batch(Below(most + 1));
    for (journal::Change& change : batch) change = Change();
    return batch;
  }

 private:
  template <typename IdType>
  IdType Id() {
    return IdType{1 + Below(12)};
  }
  uint64_t Wide() { return Below(uint64_t{1} << 40); }
  template <size_t kSize>
  std::array<uint8_t, kSize> Bytes() {
    std::array<uint8_t, kSize> bytes;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(numbers_());
    return bytes;
  }
  // Of any bytes.
  std::string Word(size_t most) {
    std::string word(Below(most + 1), '\0');
    for (char& c : word) c = static_cast<char>(most <= 2 ? 'a' + Below(2) : numbers_());
    return word;
  }

  std::mt19937_64 numbers_;
};

}  // namespace gpumemd
