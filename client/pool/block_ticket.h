// Tickets of blocks, as people and programs pass them on: "gmb_OFFSET_BYTES" and the tickets of the
// segments that the block lies in, one after another, each with a '.' before it. Pure functions.
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
  std::vector<std::string> segments;  // their tickets, as text
};

std::string FormatBlockTicket(const BlockTicket& ticket);

//   INVALID_ARGUMENT  the text is no ticket of a block; the sentence does not repeat it. The
//                     segments' tickets are not looked at
absl::StatusOr<BlockTicket> ParseBlockTicket(absl::string_view text);

}  // namespace gpumem::internal
