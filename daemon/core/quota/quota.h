// A tenant's limits, in the units that the ledger counts in.
//
// The configuration also knows percentages of a device ("50%"). Those are resolved to
// bytes against the devices that the daemon found (daemon/config/config.h) before they come
// here, into device_limits and device_max_retained.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "daemon/device/device.h"

namespace gpumemd {

enum class ReleasePolicy {
  kTrust,   // a client that releases a lease is believed to have unmapped the memory
  kOnExit,  // the memory stays charged (lingering) until the client's process is gone
};

// Whom a denial names to a worker as holders of what it asked for. Operators see all.
enum class HoldersShown {
  kAll,
  kOwn,  // the worker's tenant, and those with it under the same topmost tenant
  kNone,
};

// What is absent is not limited by the tenant: bytes are then bounded by the device's
// capacity, counts by the daemon's own bounds.
struct Quota {
  std::optional<uint64_t> limit_bytes;            // on any one device
  std::map<std::string, uint64_t> device_limits;  // by UUID; goes before limit_bytes
  std::optional<uint64_t> total_limit_bytes;      // over all devices
  std::optional<uint64_t> pinned_limit_bytes;  // of pinned host memory, which no other limit counts
  std::optional<uint32_t> max_segments;
  std::optional<uint32_t> max_sessions;
  std::optional<uint32_t> max_in_flight;  // calls being answered at one time
  std::optional<uint32_t> max_waiting;    // requests that wait for memory at one time
  std::optional<uint32_t> max_publications;
  std::optional<uint64_t> max_retained_bytes;           // on any one device
  std::map<std::string, uint64_t> device_max_retained;  // by UUID; goes before the above
  std::optional<uint64_t> guarantee_bytes;              // on any one GPU, always to be had
  std::map<std::string, uint64_t> device_guarantees;    // by UUID; goes before guarantee_bytes
  int32_t priority = 0;                                 // among who waits: the higher first
  std::optional<Kind> kind;  // of requests that name none; absent: the device's default
  bool scrub = false;        // no memory is reused with what was in it before
  bool revocable = false;    // all leases may be taken back
  ReleasePolicy release = ReleasePolicy::kTrust;
  // The tenant under whose quota this one's charges count, too; empty: none.
  std::string parent;

  bool operator==(const Quota&) const = default;
};

}  // namespace gpumemd
