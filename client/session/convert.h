// SPDX-License-Identifier: Apache-2.0
// Converts the protocol's messages to and from the public types of client.h. Pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::internal {

v1::Kind ToProto(Kind kind);
v1::TicketScope ToProto(TicketScope scope);

// UNIMPLEMENTED: this library does not know the kind.
absl::StatusOr<Kind> FromProto(v1::Kind kind);

// Returns AcquireRequest.wait_ms, rounded up. An infinite wait is the maximum of an int64.
uint64_t ToWaitMs(absl::Duration wait);

DeviceInfo FromProto(const v1::Device& device);  // omits kinds not known here
Usage FromProto(const v1::Usage& usage);
Quota FromProto(const v1::Quota& quota);
Denial FromProto(const v1::Denial& denial);

}  // namespace gpumem::internal
