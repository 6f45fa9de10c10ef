// SPDX-License-Identifier: Apache-2.0
// The checksum of a published array or file. Chunks of it are hashed independently, by any number
// of threads:
//
//   at most kChunkBytes:  the XXH128 of the bytes, as `xxh128sum` prints it
//   more:                 the XXH128 of the chunks' XXH128s in order, 16 bytes each, as in the
//                         canonical form of XXH3 (high 64 bits first, big-endian)
//
// XXH128 is XXH3 of 128 bits (https://xxhash.com). It finds damage, and no intent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "xxhash.h"

namespace gpumem::internal {

inline constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

// Hashes one chunk, in pieces. Movable; used by one thread at a time.
class ChunkHash {
 public:
  ChunkHash() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }
  void Update(const void* bytes, uint64_t size) { XXH3_128bits_update(state_.get(), bytes, size); }
  // Returns the hash, and begins the next chunk.
  XXH128_hash_t Finish() {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    XXH3_128bits_reset(state_.get());
    return hash;
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

// Returns the checksum of an array from its chunks' hashes, of which there is at least one: 32
// hexadecimal digits.
std::string TreeHash(absl::Span<const XXH128_hash_t> chunks);

}  // namespace gpumem::internal
