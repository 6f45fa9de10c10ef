// SPDX-License-Identifier: Apache-2.0
// Upper bounds for the daemon and its tenants, and how much is done in one go.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumemd {

// Leases ended in one go when thousands end. That many hold the Broker's mutex for a millisecond.
inline constexpr size_t kLeasesAtOnce = 512;

// The daemon's bounds, over all tenants.
struct Bounds {
  uint32_t max_sessions = 4096;
  // max_sessions_per_uid: of one user's processes. reserved_sessions: the part of max_sessions kept
  // for users without a session, one for each.
  uint32_t max_sessions_per_uid = UINT32_MAX;
  uint32_t reserved_sessions = 0;
  uint32_t max_segments = 100000;
  // Opening a segment once more costs a tenant no bytes, and the daemon some.
  uint32_t max_leases_per_session = 65536;
  uint32_t max_leases_per_tenant = 262144;
  uint32_t max_leases = 1048576;
  uint32_t max_watches_per_session = 64;
  uint32_t max_watches_per_tenant = 1024;
  // Of a session also those that it waits for: each may come to it.
  uint32_t max_claims_per_session = 64;
  uint32_t max_claims_per_tenant = 1024;
  uint32_t max_waiting = 4096;
  uint32_t max_events = 65536;
  uint32_t max_events_per_tenant = 16384;
  uint32_t max_events_per_session = 4000;  // a process makes 4095 (CUDA)
  uint32_t max_events_per_segment = 64;
  uint32_t max_publications = 4096;
  uint64_t max_metadata_bytes = uint64_t{256} << 20;  // of all publications
  uint64_t max_metadata_bytes_per_tenant = uint64_t{64} << 20;
  // Tenants made at run time: all, those that sessions have made, and those of one user's sessions.
  uint32_t max_made_tenants = 4096;
  uint32_t max_made_by_sessions = 2048;
  uint32_t max_made_per_uid = 64;
  // Of these, lasting ones: all, those of one user, and those under one tenant that no session has
  // made. No process need live for them, so they leave room for those that end with a session.
  uint32_t max_lasting = 1024;
  uint32_t max_lasting_per_uid = 32;
  uint32_t max_lasting_per_tenant = 256;
  size_t leases_at_once = kLeasesAtOnce;  // a simulation has fewer
};

// Segments that one operation may touch: as many as one SCM_RIGHTS message carries.
inline constexpr uint32_t kMaxSegmentsPerCall = 253;

// Leases that one Suspend, or one Resume, may name.
inline constexpr size_t kMaxSuspendedAtOnce = 1024;

// Leases that move with their segment. The mutex is held meanwhile: a segment with more stays on
// its device.
inline constexpr uint32_t kMaxLeasesMoved = 1024;

// Segments without room in the tier that are tried again when a segment leaves it.
inline constexpr size_t kMovesRetried = 16;

// Tenants above one another, itself included, as in the configuration.
inline constexpr size_t kMaxTenantLevels = 8;
inline constexpr size_t kMaxOwnerTag = 32;  // bytes

// Bounds of one publication.
inline constexpr size_t kMaxPublicationSegments = 4096;
inline constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 20;
inline constexpr size_t kMaxContentId = 64;  // bytes

}  // namespace gpumemd
