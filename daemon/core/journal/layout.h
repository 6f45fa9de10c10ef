// SPDX-License-Identifier: Apache-2.0
// The places of all fields in a journal's bytes (table.h), for the writer and the reader.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/journal/codec.h"
#include "daemon/core/journal/dialect.h"
#include "daemon/core/journal/table.h"
#include "xxhash.h"

namespace gpumemd::journal {

inline constexpr uint64_t kFileMagic = 0x6c6e726a6d757067;  // "gpumjrnl"
inline constexpr uint64_t kAreaMagic = 0x616572616d757067;  // "gpumarea"

// Returns a 32-bit number and its complement in one word. It is stored at once, and cannot be
// mistaken for zeros or for foreign bytes.
constexpr uint64_t Sealed(uint32_t value) {
  return uint64_t{static_cast<uint32_t>(~value)} << 32 | value;
}
constexpr std::optional<uint32_t> Unsealed(uint64_t word) {
  const auto value = static_cast<uint32_t>(word);
  if (Sealed(value) != word) return std::nullopt;
  return value;
}

// Names the writer for people who read the message: GPUMEM_VERSION, with zeros behind it.
using Writer = std::array<char, 24>;

// At byte 0.
struct FileHead {
  uint64_t magic = kFileMagic;
  uint32_t form = dialect.form;
  uint32_t record_bytes = kJournalRecordBytes;
  std::array<uint8_t, 16> boot_id{};
  uint64_t pid_namespace = 0;
  uint32_t number = 0;
  uint32_t zero = 0;
  Writer writer{};        // of the file's form
  uint64_t checksum = 0;  // of all above
  // Sealed words, each stored at once.
  uint64_t generation = 0;
  uint64_t area_page = 0;  // 0: not complete
};
static_assert(sizeof(FileHead) == 96 && offsetof(FileHead, form) == 8 &&
              offsetof(FileHead, boot_id) == 16 && offsetof(FileHead, pid_namespace) == 32 &&
              offsetof(FileHead, number) == 40 && offsetof(FileHead, writer) == 48 &&
              offsetof(FileHead, checksum) == 72 && offsetof(FileHead, generation) == 80 &&
              offsetof(FileHead, area_page) == 88);

// At an area's first byte; the stages begin at its next page.
struct AreaHead {
  uint64_t magic = kAreaMagic;
  uint32_t zero = 0;
  uint32_t stage_pages = 0;
  Writer writer{};        // of its first content
  uint64_t checksum = 0;  // of all above
  // Stored at once.
  uint64_t slot_pages = 0;  // sealed
  uint64_t batch = 0;       // sealed: the last batch's number, lower 32 bits
  uint64_t behind = 0;      // not 0: changes are missing
};
static_assert(sizeof(AreaHead) == 72 && offsetof(AreaHead, stage_pages) == 12 &&
              offsetof(AreaHead, writer) == 16 && offsetof(AreaHead, checksum) == 40 &&
              offsetof(AreaHead, slot_pages) == 48 && offsetof(AreaHead, batch) == 56 &&
              offsetof(AreaHead, behind) == 64);

// At a stage's first byte, followed by the Counters, as in a record, and the batch's records.
struct StageHead {
  uint64_t checksum = 0;  // of the head's other bytes and of the Counters
  uint64_t batch = 0;     // an even one is in stage 0
  uint32_t length = 0;    // of the batch, in records
  uint32_t objects = 0;   // in slots, once the batch is applied
  uint64_t sum = 0;       // of their records' checksums
};
static_assert(sizeof(StageHead) == 32 && offsetof(StageHead, batch) == 8 &&
              offsetof(StageHead, length) == 16 && offsetof(StageHead, objects) == 20 &&
              offsetof(StageHead, sum) == 24);

// At a record's first byte, in a stage as in a slot, followed by the payload. A slot without an
// object is all zeros.
struct RecordHead {
  uint64_t checksum = 0;  // of all the record's other bytes
  uint64_t batch = 0;     // that wrote the record here
  uint32_t slot = 0;      // that holds the record, or that the record is for
  uint8_t type = 0;
  uint8_t op = 0;       // always kPut in slots
  uint8_t version = 1;  // that a daemon must know to understand the record
  uint8_t flags = 0;    // kMayPass
  std::array<uint8_t, 8> zero{};
};
inline constexpr uint8_t kMayPass = 1;  // may be ignored by a daemon that does not know its version
static_assert(sizeof(RecordHead) == 32 && offsetof(RecordHead, batch) == 8 &&
              offsetof(RecordHead, slot) == 16 && offsetof(RecordHead, type) == 20 &&
              offsetof(RecordHead, op) == 21 && offsetof(RecordHead, version) == 22 &&
              offsetof(RecordHead, flags) == 23);
static_assert(sizeof(RecordHead) + kPayloadBytes == kJournalRecordBytes &&
              sizeof(StageHead) + kPayloadBytes == kJournalRecordBytes);
static_assert(std::is_trivially_copyable_v<FileHead> && std::is_trivially_copyable_v<AreaHead> &&
              std::is_trivially_copyable_v<StageHead> && std::is_trivially_copyable_v<RecordHead>);

template <typename Head>
Head Load(const uint8_t* at) {
  Head head;
  std::memcpy(&head, at, sizeof head);
  return head;
}

// The store that publishes. It is one instruction; all stores before it in the program come before
// it, and all later ones after it. Only the compiler could reorder them: a reader of a killed
// process's memory sees its stores in the order in which they were made.
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
// Covers a stage's head together with its Counters, too.
inline uint64_t ChecksumOfRecord(const uint8_t* record) {
  return ChecksumOf(record + sizeof(uint64_t), kJournalRecordBytes - sizeof(uint64_t));
}

// "the journal is damaged at byte 4352: …"
absl::Status Damaged(size_t byte, absl::string_view what);

}  // namespace gpumemd::journal
