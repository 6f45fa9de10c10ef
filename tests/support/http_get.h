// SPDX-License-Identifier: Apache-2.0
// One request over HTTP, as a scraper makes it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::testing {

struct HttpAnswer {
  int code = 0;  // 200
  std::string headers;
  std::string body;
};

// Gets "http://127.0.0.1:9400/metrics", "unix:/run/gpumem/metrics.sock" (its
// /metrics), or "unix:/run/gpumem/web.sock:/": another page of a socket. The host is "localhost".
//   UNAVAILABLE       no server listens there, or no whole answer came within a minute
//   INVALID_ARGUMENT  this is no such place
absl::StatusOr<HttpAnswer> HttpGet(absl::string_view url);

// Returns the text in the encoding of URLs.
std::string UrlEncode(absl::string_view text);

}  // namespace gpumem::testing
