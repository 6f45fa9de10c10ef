// SPDX-License-Identifier: Apache-2.0
// Requests that a browser sends for another site's page are refused. Has no I/O.
//
// The Host check defeats DNS rebinding: a page whose name resolves to this host sends that name.
// The others defeat pages that send requests here without a trick. There is no CORS header that
// could allow them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumem::web {

// The fields of a request that say for whom it was sent; nullopt: it does not have them. A field
// that occurs more than once is joined with ", ", which is never valid.
struct SenderFields {
  std::optional<std::string> host, origin, fetch_site, fetch_mode, fetch_dest;
};

enum class Sender {
  kAdmitted,
  kWrongHost,  // 421
  kOtherSite,  // 403
};

// Checks a request's sender. `hosts` are names of this server beside localhost, 127.0.0.1 and
// [::1], in lower case; each with any port. `page`: the request is for the page, which has no data:
// another site may link to it.
Sender CheckSender(const SenderFields& fields, const std::vector<std::string>& hosts, bool page);

// True if it is a name or an address, without a port, as a Host field may have it.
bool IsHostName(absl::string_view name);

}  // namespace gpumem::web
