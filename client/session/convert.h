// The protocol's messages as the public types of client.h. Pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::internal {

v1::Kind ToProto(Kind kind);
v1::TicketScope ToProto(TicketScope scope);

// UNIMPLEMENTED: a kind that this library does not know.
absl::StatusOr<Kind> FromProto(v1::Kind kind);

// For AcquireRequest.wait_ms: rounded up, and what is for ever is the most that an int64 holds.
uint64_t ToWaitMs(absl::Duration wait);

DeviceInfo FromProto(const v1::Device& device);  // kinds not known here are left out
Usage FromProto(const v1::Usage& usage);
Quota FromProto(const v1::Quota& quota);
Denial FromProto(const v1::Denial& denial);

}  // namespace gpumem::internal
