// SPDX-License-Identifier: Apache-2.0
// The last message of a daemon to a gRPC connection that it refuses: HTTP/2's GOAWAY (RFC 9113,
// 6.8) with the reason as its debug data. A gRPC library shows it as the end of the connection;
// gpumemctl reads it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gpumem {

// Returns the bytes of such a GOAWAY, at most 600. Every code of `why` but RESOURCE_EXHAUSTED is
// sent as PERMISSION_DENIED. Characters that are not printable ASCII become '?'.
std::string Http2Refusal(const absl::Status& why);

// Returns the refusal in a connection's first bytes. Nothing if they begin a served connection.
std::optional<absl::Status> ParseHttp2Refusal(absl::string_view bytes);

}  // namespace gpumem
