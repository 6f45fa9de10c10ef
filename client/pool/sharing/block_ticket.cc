// SPDX-License-Identifier: Apache-2.0
#include "client/pool/sharing/block_ticket.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpumem::internal {
namespace {

constexpr absl::string_view kPrefix = "gmb_";

}  // namespace

std::string FormatBlockTicket(const BlockTicket& ticket) {
  return absl::StrCat(kPrefix, ticket.offset, "_", ticket.bytes, ".",
                      absl::StrJoin(ticket.segments, "."));
}

absl::StatusOr<BlockTicket> ParseBlockTicket(absl::string_view text) {
  absl::string_view body = text;
  std::vector<std::string> parts;
  std::vector<std::string> numbers;
  BlockTicket ticket;
  if (absl::ConsumePrefix(&body, kPrefix)) parts = absl::StrSplit(body, '.');
  if (parts.size() >= 2) numbers = absl::StrSplit(parts[0], '_');
  // Accepts only the exact output of FormatBlockTicket: no signs, blanks or leading zeros.
  if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &ticket.offset) ||
      !absl::SimpleAtoi(numbers[1], &ticket.bytes) ||
      absl::StrCat(ticket.offset, "_", ticket.bytes) != parts[0] ||
      ticket.offset > UINT64_MAX - ticket.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this is not a block ticket: a block ticket begins with \"", kPrefix,
        "\", an offset and a size; check that it is complete, and not the ticket of a segment"));
  }
  ticket.segments.assign(std::make_move_iterator(parts.begin() + 1),
                         std::make_move_iterator(parts.end()));
  return ticket;
}

}  // namespace gpumem::internal
