// SPDX-License-Identifier: Apache-2.0
// Identifiers of the ledger's objects. Numbers are never used twice in one daemon's life.
#pragma once

#include <array>
#include <cstdint>

namespace gpumemd {

enum class SessionId : uint64_t {};
enum class SegmentId : uint64_t {};
enum class LeaseId : uint64_t {};
enum class OperationId : uint64_t {};
enum class WaiterId : uint64_t {};
enum class IpcEventId : uint64_t {};
enum class PublicationId : uint64_t {};  // of one version
enum class MadeTenantId : uint64_t {};   // of one making of a tenant at run time

// Which sessions may open a lease by its ticket: those of the segment's tenant, or any that has the
// ticket.
enum class TicketScope { kTenant, kAny };

template <typename Id>
constexpr uint64_t ToInt(Id id) {
  return static_cast<uint64_t>(id);
}

// 256 unguessable bits: a session's token, or a ticket.
using Secret = std::array<uint8_t, 32>;

}  // namespace gpumemd
