// Segments that a Client leases, as the pool's memory.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "client/client.h"
#include "client/pool/segment_source.h"

namespace gpumem::internal {

// Client::Acquire of one segment; where there is a range, at options.address in it.
using AcquireIn = std::function<absl::StatusOr<std::vector<Segment>>(
    std::shared_ptr<const AddressRange> range, const AcquireOptions& options)>;

// What it has still at its end is released. Those of kind vmm come to lie in one range of
// addresses that is kept for them, if this process has so many.
std::unique_ptr<SegmentSource> MakeClientSegments(std::shared_ptr<Client> client, AcquireIn acquire,
                                                  const DeviceInfo& device, Kind kind);

}  // namespace gpumem::internal
