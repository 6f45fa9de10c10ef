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

// From "http://127.0.0.1:9400/metrics", or "unix:/run/gpumem/metrics.sock" (of which it gets
// /metrics).
//   UNAVAILABLE       nobody listens there, or no whole answer came within a minute
//   INVALID_ARGUMENT  this is no such place
absl::StatusOr<HttpAnswer> HttpGet(absl::string_view url);

// What may stand in a URL for this text.
std::string UrlEncode(absl::string_view text);

}  // namespace gpumem::testing
