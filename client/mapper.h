// From a grant to memory in this process.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/session.h"
#include "common/mapping.h"

namespace gpumem::internal {

struct MappedLease {
  v1::Lease lease;
  Kind kind;
  Backend backend;
  std::unique_ptr<Mapping> mapping;
};

// Maps all leases of a grant, or none. Those of one device come to lie one after
// another in one range of addresses.
//   UNIMPLEMENTED       this library or this machine's driver cannot map such memory
//   NOT_FOUND           this process does not see the device
//   RESOURCE_EXHAUSTED  out of addresses or memory
//   INTERNAL            the daemon sent what cannot be, or the driver failed
absl::StatusOr<std::vector<MappedLease>> MapGrant(const Grant& grant, const v1::Welcome& welcome,
                                                  bool read_only);

}  // namespace gpumem::internal
