// SPDX-License-Identifier: Apache-2.0
// The text form of tickets for blocks: "gmb_OFFSET_BYTES", then the tickets of the block's segments
// in order, each after a '.'. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::internal {

struct BlockTicket {
  uint64_t offset = 0;  // of the block, from the beginning of the first segment
  uint64_t bytes = 0;
  std::vector<std::string> segments;  // the segments' tickets, as text
};

std::string FormatBlockTicket(const BlockTicket& ticket);

//   INVALID_ARGUMENT  the text is no ticket of a block; the message does not repeat it. The
//                     segments' tickets are not checked
absl::StatusOr<BlockTicket> ParseBlockTicket(absl::string_view text);

}  // namespace gpumem::internal
