// From a grant to memory in this process.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/pools.h"
#include "client/session/session.h"
#include "common/mapping/mapping.h"
#include "gpumem/client.h"

namespace gpumem::internal {

struct MappedLease {
  v1::Lease lease;
  Kind kind;
  Backend backend;
  std::shared_ptr<const Pool> pool;  // of kind mempool: what it comes from
  std::unique_ptr<Mapping> mapping;
};

// Maps all leases of a grant, or none, for the devices in `options`, or each for its own
// where those are none. Leases of kinds vmm and pinned on one device come to lie one after
// another in one range of addresses.
//   INVALID_ARGUMENT     an address for what does not go in one range
//   UNIMPLEMENTED        this library or this machine's driver cannot map such memory, or not
//                        so; or a device has no peer access to it
//   NOT_FOUND            this process does not see the device
//   FAILED_PRECONDITION  the wished address is taken, or the memory is lost: its owner is gone
//   RESOURCE_EXHAUSTED   out of addresses, memory or file descriptors
//   INTERNAL             the daemon sent what cannot be, or the driver failed
absl::StatusOr<std::vector<MappedLease>> MapGrant(const Grant& grant, Session& session,
                                                  const MapOptions& options);

}  // namespace gpumem::internal
