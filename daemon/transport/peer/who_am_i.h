// SPDX-License-Identifier: Apache-2.0
// What the daemon tells a process about its recognized identity.
#pragma once

#include "daemon/core/identity/rules.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumemd {

// Converts all but the parents of the tenant. For rules passed over it gives only the kind of
// condition that did not hold, and nothing else of the configuration.
gpumem::v1::WhoAmIResponse ToProto(const PeerIdentity& peer, const TenantMatch& match);
gpumem::v1::PodFacts ToProto(const PodFacts& pod);

}  // namespace gpumemd
