// SPDX-License-Identifier: Apache-2.0
#include "client/files/tree_hash.h"

#include "absl/strings/str_format.h"

namespace gpumem::internal {

std::string TreeHash(absl::Span<const XXH128_hash_t> chunks) {
  XXH128_hash_t root = chunks.front();
  if (chunks.size() > 1) {
    std::vector<XXH128_canonical_t> canonical(chunks.size());
    for (size_t i = 0; i < chunks.size(); ++i) {
      XXH128_canonicalFromHash(&canonical[i], chunks[i]);
    }
    root = XXH3_128bits(canonical.data(), canonical.size() * sizeof(canonical[0]));
  }
  return absl::StrFormat("%016x%016x", root.high64, root.low64);
}

}  // namespace gpumem::internal
