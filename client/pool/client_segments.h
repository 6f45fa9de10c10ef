// Segments that a Client leases, as the pool's memory.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "client/pool/segment_source.h"
#include "gpumem/client.h"

namespace gpumem::internal {

// Client::AcquireMany; where there is a range, at options.address in it.
using AcquireIn = std::function<absl::StatusOr<std::vector<Segment>>(
    std::shared_ptr<const AddressRange> range, const AcquireOptions& options, int count,
    const Disturbance& disturbance)>;
// MoveHost or MoveCuda of what is behind the segments.
using MoveIn =
    std::function<absl::Status(absl::Span<Segment* const> segments,
                               const std::shared_ptr<const AddressRange>& range, void* address)>;

// What it has still at its end is released. Those of kind vmm come to lie in one range of
// addresses that is kept for them, if this process has so many.
std::unique_ptr<SegmentSource> MakeClientSegments(std::shared_ptr<Client> client, AcquireIn acquire,
                                                  MoveIn move, const DeviceInfo& device, Kind kind,
                                                  bool revocable);

}  // namespace gpumem::internal
