// Data that can be made again from a seed, so that another process can check every byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/client.h"

namespace gpumem::demo {

// Pseudo-random words; the consumer answers each with its complement.
enum class Writing { kProducers, kConsumers };

// Each of these goes through all of the segment's bytes, on whichever device they are.

// DATA_LOSS where a byte is not zero.
absl::Status CheckZero(const Segment& segment);
absl::Status Fill(const Segment& segment, uint64_t seed, Writing writing);
// DATA_LOSS, with the first offset at which it differs.
absl::Status Check(const Segment& segment, uint64_t seed, Writing writing);

}  // namespace gpumem::demo
