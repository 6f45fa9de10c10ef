// SPDX-License-Identifier: Apache-2.0
// Denials as messages of the protocol.
#pragma once

#include "daemon/core/denial.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumemd {

gpumem::v1::Denial::Cause ToProto(Denial::Cause cause);
gpumem::v1::Denial ToProto(const Denial& denial);

}  // namespace gpumemd
