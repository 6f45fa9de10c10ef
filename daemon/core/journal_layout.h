// Where everything is in a journal's bytes (journal_log.h), for what writes and what reads them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/journal_codec.h"
#include "daemon/core/journal_log.h"
#include "xxhash.h"

namespace gpumemd::journal {

inline constexpr uint64_t kFileMagic = 0x6c6e726a6d757067;  // "gpumjrnl"
inline constexpr uint64_t kAreaMagic = 0x616572616d757067;  // "gpumarea"

// A number of 32 bits and its opposite, in one word: stored at once, and never mistaken for zeros
// or for what somebody else wrote.
constexpr uint64_t Sealed(uint32_t value) {
  return uint64_t{static_cast<uint32_t>(~value)} << 32 | value;
}
constexpr std::optional<uint32_t> Unsealed(uint64_t word) {
  const auto value = static_cast<uint32_t>(word);
  if (Sealed(value) != word) return std::nullopt;
  return value;
}

// At byte 0.
struct FileHead {
  uint64_t magic = kFileMagic;
  uint32_t version = kJournalVersion;
  uint32_t record_bytes = kJournalRecordBytes;
  std::array<uint8_t, 16> boot_id{};
  uint64_t pid_namespace = 0;
  uint32_t number = 0;
  uint32_t zero = 0;
  uint64_t checksum = 0;  // of all above
  // Sealed words, each stored at once.
  uint64_t generation = 0;
  uint64_t area_page = 0;  // 0: not complete
};
static_assert(sizeof(FileHead) == 72 && offsetof(FileHead, version) == 8 &&
              offsetof(FileHead, boot_id) == 16 && offsetof(FileHead, pid_namespace) == 32 &&
              offsetof(FileHead, number) == 40 && offsetof(FileHead, checksum) == 48 &&
              offsetof(FileHead, generation) == 56 && offsetof(FileHead, area_page) == 64);

// At an area's first byte; the first record is kJournalRecordBytes behind it.
struct AreaHead {
  uint64_t magic = kAreaMagic;
  uint32_t version = kJournalVersion;
  uint32_t number = 0;
  uint32_t pages = 0;
  uint32_t zero = 0;
  uint64_t checksum = 0;  // of all above
  // Stored at once.
  uint64_t used = 0;    // sealed: records that count
  uint64_t behind = 0;  // not 0: changes are missing
};
static_assert(sizeof(AreaHead) == 48 && offsetof(AreaHead, version) == 8 &&
              offsetof(AreaHead, number) == 12 && offsetof(AreaHead, pages) == 16 &&
              offsetof(AreaHead, checksum) == 24 && offsetof(AreaHead, used) == 32 &&
              offsetof(AreaHead, behind) == 40);

// At a record's first byte; the payload is behind it.
struct RecordHead {
  uint64_t checksum = 0;  // of all the record's other bytes
  uint64_t batch = 0;     // one more than the batch before
  uint32_t index = 0;     // in the batch
  uint32_t length = 0;    // of the batch
  uint8_t type = 0;
  uint8_t op = 0;
  std::array<uint8_t, 6> zero{};
};
static_assert(sizeof(RecordHead) == 32 && offsetof(RecordHead, batch) == 8 &&
              offsetof(RecordHead, index) == 16 && offsetof(RecordHead, length) == 20 &&
              offsetof(RecordHead, type) == 24 && offsetof(RecordHead, op) == 25);
static_assert(sizeof(RecordHead) + kPayloadBytes == kJournalRecordBytes);
static_assert(std::is_trivially_copyable_v<FileHead> && std::is_trivially_copyable_v<AreaHead> &&
              std::is_trivially_copyable_v<RecordHead>);

template <typename Head>
Head Load(const uint8_t* at) {
  Head head;
  std::memcpy(&head, at, sizeof head);
  return head;
}

// The store that publishes: one instruction, behind all stores that come before it in the program,
// and before all that come after it. Only the compiler could order them otherwise: whoever looks at
// a killed process's memory sees its stores as they were made.
inline void Publish(uint8_t* at, uint64_t word) {
  static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at))
      .store(word, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

inline uint64_t ChecksumOf(const void* bytes, size_t size) { return XXH3_64bits(bytes, size); }
inline uint64_t ChecksumOf(const FileHead& head) {
  return ChecksumOf(&head, offsetof(FileHead, checksum));
}
inline uint64_t ChecksumOf(const AreaHead& head) {
  return ChecksumOf(&head, offsetof(AreaHead, checksum));
}
inline uint64_t ChecksumOfRecord(const uint8_t* record) {
  return ChecksumOf(record + sizeof(uint64_t), kJournalRecordBytes - sizeof(uint64_t));
}

// Visits the first `used` records of an area, in order, after having checked each and that they
// make whole batches; `begin` is the area's first byte in the file. Answers the last batch.
//   DATA_LOSS  what is wrong, and where; also where `visit` answers false: not what Encode writes
absl::StatusOr<uint64_t> ScanRecords(
    absl::Span<const uint8_t> file, size_t begin, size_t used,
    absl::FunctionRef<bool(uint32_t number, const RecordHead& head, const uint8_t* payload)> visit);

// "the journal is damaged at byte 4352: …"
absl::Status Damaged(size_t byte, absl::string_view what);

}  // namespace gpumemd::journal
