// SPDX-License-Identifier: Apache-2.0
// Segments leased by a Client, as the pool's memory.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "client/pool/segment_source.h"
#include "gpumem/client.h"

namespace gpumem::internal {

// Client::AcquireMany; with a range, at options.address in it.
using AcquireIn = std::function<absl::StatusOr<std::vector<Segment>>(
    std::shared_ptr<const AddressRange> range, const AcquireOptions& options, int count,
    const Disturbance& disturbance)>;
// Moves the memory of segments with MoveHost or MoveCuda.
using MoveIn =
    std::function<absl::Status(absl::Span<Segment* const> segments,
                               const std::shared_ptr<const AddressRange>& range, void* address)>;

// Its destructor releases the remaining segments. Segments of kind vmm lie in one reserved range of
// addresses, if this process has that many.
std::unique_ptr<SegmentSource> MakeClientSegments(std::shared_ptr<Client> client, AcquireIn acquire,
                                                  MoveIn move, const DeviceInfo& device, Kind kind,
                                                  bool revocable,
                                                  std::vector<DeviceName> map_devices);

}  // namespace gpumem::internal
