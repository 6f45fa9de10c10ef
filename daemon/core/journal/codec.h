// SPDX-License-Identifier: Apache-2.0
// The layout of a change in a record's payload. The key's fields come first. A put adds all other
// fields, in the order in which the type visits them (records.h), without gaps. The rest is zeros.
//
//   numbers       little-endian, as wide as they are declared
//   ids           8 bytes
//   bool          1 byte: 0 or 1
//   Kind          1 byte: its number (common/kind.h)
//   Text<N>       1 byte for its length, N bytes with zeros behind it
//   array         its bytes
//   optional      1 byte: 0 or 1; the value, or zeros
//
// Every change has exactly one form, and no other is read. So bytes that Encode never wrote are
// detected even if their checksum is right. No I/O, no state, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "daemon/core/journal/records.h"

namespace gpumemd::journal {

inline constexpr size_t kPayloadBytes = 224;

Type TypeOf(const Object& object);
// Returns the lowest version that a daemon must know to understand the object.
uint8_t VersionOf(const Object& object);
// True if a daemon that does not know that version may ignore what it adds (kMayPass, table.h).
bool MayPass(const Object& object);

// Writes all kPayloadBytes of `payload`, which has kPayloadBytes.
void Encode(const Change& change, absl::Span<uint8_t> payload);

// Returns nullopt if the bytes are not what Encode writes. `payload` has kPayloadBytes.
//   more  a newer daemon has written them: bytes behind the last field are ignored
std::optional<Change> Decode(uint8_t type, uint8_t op, absl::Span<const uint8_t> payload,
                             bool more = false);
// Returns an erasure of the object that the bytes put.
std::optional<Change> DecodeKey(uint8_t type, absl::Span<const uint8_t> payload);

}  // namespace gpumemd::journal
