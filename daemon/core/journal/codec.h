// How a change lies in a record's payload: the key's fields, then, of a put, all others, in the
// order in which the type visits them (records.h), without gaps; then zeros to the end.
//
//   numbers       little-endian, as wide as they are declared
//   ids           8 bytes
//   bool          1 byte: 0 or 1
//   Kind          1 byte: 1 vmm, 2 mempool, 3 ipc, 4 pinned
//   Text<N>       1 byte for its length, N bytes with zeros behind it
//   array         its bytes
//   optional      1 byte: 0 or 1; the value, or zeros
//
// Every change has one form and no other is read, so that bytes which were never written by
// Encode are found out even where their checksum is right. No I/O, no state, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "daemon/core/journal/records.h"

namespace gpumemd::journal {

inline constexpr size_t kPayloadBytes = 224;

Type TypeOf(const Object& object);

// `payload` has kPayloadBytes; all of them are written.
void Encode(const Change& change, absl::Span<uint8_t> payload);

// Nothing where the bytes are not what Encode writes. `payload` has kPayloadBytes.
//   more  a newer daemon has written them: whatever is behind the last field is passed over
std::optional<Change> Decode(uint8_t type, uint8_t op, absl::Span<const uint8_t> payload,
                             bool more = false);
// An erasure of what the bytes put.
std::optional<Change> DecodeKey(uint8_t type, absl::Span<const uint8_t> payload);

}  // namespace gpumemd::journal
