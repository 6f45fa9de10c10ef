// What the daemon tells a process about whom it takes it for.
#pragma once

#include "daemon/core/identity/rules.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumemd {

// All but the tenants above the tenant. Of other rules than the one that decided it says which
// kind of condition did not hold, and nothing that the configuration says.
gpumem::v1::WhoAmIResponse ToProto(const PeerIdentity& peer, const TenantMatch& match);

}  // namespace gpumemd
