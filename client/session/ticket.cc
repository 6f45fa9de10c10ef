// SPDX-License-Identifier: Apache-2.0
#include "client/session/ticket.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gpumem::internal {
namespace {

constexpr absl::string_view kPrefix = "gmt_";

}  // namespace

std::string FormatTicket(absl::string_view bytes) {
  return absl::StrCat(kPrefix, absl::WebSafeBase64Escape(bytes));
}

absl::StatusOr<std::string> ParseTicket(absl::string_view text) {
  std::string bytes;
  absl::string_view body = text;
  // The decoder also accepts blanks, padding and stray last bits. Only the exact output of
  // FormatTicket is valid.
  if (!absl::ConsumePrefix(&body, kPrefix) || !absl::WebSafeBase64Unescape(body, &bytes) ||
      bytes.size() != kTicketBytes || FormatTicket(bytes) != text) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this is not a ticket: a ticket begins with \"", kPrefix,
        "\" and has 43 letters, digits, \"-\" and \"_\" after it; check that it is complete"));
  }
  return bytes;
}

}  // namespace gpumem::internal
