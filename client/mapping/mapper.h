// SPDX-License-Identifier: Apache-2.0
// Maps a grant into this process.
#pragma once

#include <memory>
#include <optional>
#include <utility>
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
  std::shared_ptr<const Pool> pool;  // of kind mempool: the pool of the memory
  std::unique_ptr<Mapping> mapping;
};

// Maps all leases of a grant, or none, for the devices in `options`; if it names none, each lease
// for the lease's device. Leases of a contiguous kind on one device lie one after another in one
// range of addresses.
//   INVALID_ARGUMENT     an address for leases that do not fit in one range
//   UNIMPLEMENTED        this library or this machine's driver cannot map such memory, or not with
//                        these options; or a device has no peer access to it
//   NOT_FOUND            this process does not see the device
//   FAILED_PRECONDITION  the requested address is taken, or the memory is lost: its owner is gone
//   RESOURCE_EXHAUSTED   out of addresses, memory or file descriptors
//   INTERNAL             the daemon sent an impossible grant, or the driver failed
absl::StatusOr<std::vector<MappedLease>> MapGrant(const Grant& grant, Session& session,
                                                  const MapOptions& options);

// Maps a grant when it arrives.
class ArrivalMapper final : public Recipient {
 public:
  // All outlive this.
  ArrivalMapper(Session& session, const MapOptions& options)
      : session_(session), options_(options) {}

  void Arrived(const Grant& grant) override {
    mapped_.emplace(MapGrant(grant, session_, options_));
  }
  void Withdrawn() override { mapped_.reset(); }

  // Returns the result of MapGrant, which it calls now if the grant was not announced. Call it
  // once.
  absl::StatusOr<std::vector<MappedLease>> Take(const Grant& grant) {
    if (!mapped_) Arrived(grant);
    return *std::move(mapped_);
  }

 private:
  Session& session_;
  const MapOptions& options_;
  std::optional<absl::StatusOr<std::vector<MappedLease>>> mapped_;
};

}  // namespace gpumem::internal
