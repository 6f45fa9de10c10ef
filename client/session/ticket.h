// SPDX-License-Identifier: Apache-2.0
// The text form of tickets: "gmt_" and the 32 bytes that the daemon minted, in base64url without
// padding. Pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::internal {

inline constexpr size_t kTicketBytes = 32;

// Returns the text of a ticket's bytes.
std::string FormatTicket(absl::string_view bytes);

// Returns the bytes of a ticket's text. Every ticket has exactly one text.
//   INVALID_ARGUMENT  the text is no ticket; the message does not repeat it, since it may be a
//                     secret
absl::StatusOr<std::string> ParseTicket(absl::string_view text);

}  // namespace gpumem::internal
