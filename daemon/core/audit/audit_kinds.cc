// SPDX-License-Identifier: Apache-2.0
// All events. docs/reference/audit.md describes them for people, and a test compares the two.
#include <syslog.h>

#include "daemon/core/audit/audit.h"

namespace gpumemd {

absl::Span<const AuditKind> AuditKinds() {
  using Fields = std::vector<absl::string_view>;
  static const auto* const kinds = [] {
    // A session's process, and the given fields.
    const auto session = [](const Fields& more) {
      Fields fields = {"tenant", "session", "pid", "uid", "client?", "command?"};
      fields.insert(fields.end(), more.begin(), more.end());
      return fields;
    };
    // An operator's act. The operator is absent if the request came from no process.
    const auto by = [](Fields fields) {
      fields.insert(fields.end(), {"by_uid?", "by_pid?"});
      return fields;
    };
    const Fields memory = {"device", "kind", "bytes", "count", "segment"};
    const auto with_memory = [&](Fields fields, const Fields& more) {
      fields.insert(fields.end(), memory.begin(), memory.end());
      fields.insert(fields.end(), more.begin(), more.end());
      return fields;
    };
    return new std::vector<AuditKind>{
        {AuditEvent::kStarted,
         "started",
         LOG_NOTICE,
         "f6db7e4afaf6406b9f0ed4b2664117c9",
         "The daemon is about to serve.",
         {"daemon_version", "backend", "config?", "generation?"}},
        {AuditEvent::kRestored,
         "restored",
         LOG_NOTICE,
         "b5c4996b0b8b4de1968dd423cb0d0904",
         "The daemon restored the state of the previous daemon, which was killed or restarted.",
         {"generation", "sessions", "gone", "count", "publications"}},
        {AuditEvent::kStopped, "stopped", LOG_NOTICE, "606c897af4b148ed9e281092b73fca85",
         "The daemon stopped normally.", by({"why?"})},
        {AuditEvent::kReloaded, "reloaded", LOG_NOTICE, "3199ec1fcd38473b836cbd2b6ea55638",
         "The configuration was reloaded.", by({"config", "change?"})},
        {AuditEvent::kReloadRefused, "reload-refused", LOG_WARNING,
         "cddf9df21c2440cd8a58228b17022ae1",
         "A reload found a mistake in the configuration: nothing was changed.", by({"why"})},
        {AuditEvent::kQuotaSet, "quota-set", LOG_NOTICE, "275e4312efee4041bc6fc712645f7a9f",
         "An operator changed a tenant's quota.", by({"tenant", "change?"})},
        {AuditEvent::kQuotaUnset, "quota-unset", LOG_NOTICE, "94ee9f73c85745629cc9fe635273921d",
         "An operator reset a tenant's quota to the configuration.", by({"tenant", "change?"})},
        {AuditEvent::kDraining, "draining", LOG_NOTICE, "dbbe48763af1410f8dbbf35262f5bd65",
         "An operator made the daemon refuse new requests.", by({})},
        {AuditEvent::kAdmitting, "admitting", LOG_NOTICE, "44b3c0342d8d4e78a8394431c5c2e3c0",
         "An operator made the daemon admit requests again.", by({})},
        {AuditEvent::kTrimmed, "trimmed", LOG_NOTICE, "15d9a6d633b1458baf9d257d5ff6cff9",
         "An operator returned retained memory to the driver.",
         by({"tenant?", "device?", "bytes", "count"})},
        {AuditEvent::kPoolSet, "pool-set", LOG_NOTICE, "b9bb9d94cdd14dcda9dd5f827bec07d0",
         "An operator changed the memory pool of a tenant.", by({"tenant", "device", "change?"})},
        {AuditEvent::kPoolTrimmed, "pool-trimmed", LOG_NOTICE, "d21289a4a88c4059ab810fa8669cb97d",
         "An operator returned unused memory of a tenant's memory pool to the driver.",
         by({"tenant", "device"})},
        {AuditEvent::kLeasesSuspended, "leases-suspended", LOG_NOTICE,
         "376add6c758c40d68df411d2e06eb624",
         "A session suspended its leases because an operator asked it to.",
         by({"tenant", "session", "bytes", "count"})},
        {AuditEvent::kLeasesResumed, "leases-resumed", LOG_NOTICE,
         "64274925715c40d3af92a5cb75bf4c16",
         "A session resumed its leases because an operator asked it to.",
         by({"tenant", "session", "bytes", "count"})},
        {AuditEvent::kLeasesDemoted, "leases-demoted", LOG_NOTICE,
         "5e07d1c49ab84b6e8f2a7c6130d95be8",
         "A session demoted its leases because an operator asked it to.",
         by({"tenant", "session", "bytes", "count"})},
        {AuditEvent::kLeasesPromoted, "leases-promoted", LOG_NOTICE,
         "a3c86f2e17d944c0b1520e9f84d6b73a",
         "A session promoted its leases because an operator asked it to.",
         by({"tenant", "session", "bytes", "count"})},
        {AuditEvent::kPublicationSuspended, "publication-suspended", LOG_NOTICE,
         "8f1d7c52a9e64b3b9c04d6e1f27a5380",
         "An operator suspended a publication: bytes and count are what moved into the host tier.",
         by({"tenant", "publication", "version", "bytes", "count"})},
        {AuditEvent::kTenantMade, "tenant-made", LOG_INFO, "3d9c1f0a7b5e4862a4d80e6f1c27b953",
         "A tenant was made: by an operator, or by a session under the session's own (owner).",
         by({"tenant", "session?", "pid?", "uid?", "client?", "command?", "owner?", "change?"})},
        {AuditEvent::kTenantChanged, "tenant-changed", LOG_INFO, "c70b6e2d94f1485fb3a52d8e07f16c4a",
         "The quota of a tenant that was made at run time was changed by its maker, or by an "
         "operator.",
         by({"tenant", "session?", "pid?", "uid?", "client?", "command?", "owner?", "change?"})},
        {AuditEvent::kTenantEnded, "tenant-ended", LOG_INFO, "5e81b4d7f0a2496c8d3f6a1c90e74b28",
         "A tenant that was made at run time has ended: it gets nothing new.",
         by({"tenant", "session?", "pid?", "uid?", "client?", "command?", "owner?", "why"})},
        {AuditEvent::kSuspensionAsked, "suspension-asked", LOG_INFO,
         "0f4d2c3be1a94f0c8f3a6d1b7e25c9a4",
         "The daemon asked a session to suspend its leases: another request needs the memory, or "
         "the session was idle.",
         session({"bytes", "why"})},
        {AuditEvent::kSuspensionEnded, "suspension-ended", LOG_INFO,
         "b86a1f5e0d7c4c27a5e94f2d3c18b60e",
         "Such a request has ended: bytes are those that the session still maps.",
         session({"bytes", "why"})},
        {AuditEvent::kRefused,
         "refused",
         LOG_WARNING,
         "b904770818ed467da2f90ea36bd384ac",
         "No rule admits a connection, or a ticket is for another tenant.",
         {"pid", "uid", "command?", "tenant?", "session?", "client?", "call", "why"}},
        {AuditEvent::kSessionOpened, "session-opened", LOG_INFO, "7297f4d14d324573be19f2f0ec9b6590",
         "A process has connected.", session({"rule"})},
        {AuditEvent::kSessionResumed, "session-resumed", LOG_INFO,
         "7a19ab3dda32496aa0dc191295a89ece",
         "A process resumed a session that began with a previous daemon.", session({})},
        {AuditEvent::kSessionEnded, "session-ended", LOG_INFO, "cea326f1215045b49d652e127e386ea8",
         "A session has ended with all its leases: bytes and count are those that it held.",
         session({"bytes", "count", "why"})},
        {AuditEvent::kGranted, "granted", LOG_INFO, "2ba0899c7b8e460093126ed562b601ca",
         "Memory was leased: made or used again (acquire), opened by a ticket (open), or attached "
         "to (attach).",
         with_memory(session({}), {"lease", "call", "owner?", "publication?", "version?"})},
        {AuditEvent::kReleased, "released", LOG_INFO, "32d7bd4334a8472daf602f70b17b6d6c",
         "A session released leases.", with_memory(session({}), {"lease", "owner?", "why?"})},
        {AuditEvent::kSuspended, "suspended", LOG_INFO, "5d6f0f7b3b0c4a41a1d35b8d3c9e7f12",
         "A session suspended leases: bytes and count are what moved from the device into the host "
         "tier.",
         session({"device?", "bytes", "count", "resident", "segment?", "lease", "why?"})},
        {AuditEvent::kResumed, "resumed", LOG_INFO, "c1b8f2a46e3d4c7f9a05d2e17b64830a",
         "A session resumed leases: bytes and count are what moved from the host tier to the "
         "device.",
         session({"device", "bytes", "count", "resident", "segment?", "lease"})},
        {AuditEvent::kMoved,
         "moved",
         LOG_INFO,
         "4be09a7d61c84f12a7d5f3908c2e6b41",
         "The daemon moved suspended memory into the host tier, since its last user has let go of "
         "it. Bytes and count are 0 if it could not.",
         {"tenant", "device", "bytes", "count", "segment?", "why?"}},
        {AuditEvent::kDemoted, "demoted", LOG_INFO, "6a0c9e57f3d24b0fb1a3c85d20e4967b",
         "A session demoted leases: bytes and count are what host memory contains now.",
         session({"device", "bytes", "count", "segment?", "lease"})},
        {AuditEvent::kPromoted, "promoted", LOG_INFO, "93d1b7205e8a4c66a94f07c3be18d52f",
         "A session promoted leases: bytes and count are what is back on the device.",
         session({"device", "bytes", "count", "segment?", "lease"})},
        {AuditEvent::kPublicationResumed, "publication-resumed", LOG_INFO,
         "d27c4f80b5314ea8907e1b6ca4f3d952",
         "A suspended publication is back on a device, for a session that attaches to it or for an "
         "operator.",
         by({"tenant", "session?", "pid?", "uid?", "client?", "command?", "owner?", "publication",
             "version", "bytes", "count"})},
        {AuditEvent::kDenied,
         "denied",
         LOG_WARNING,
         "0d4aa9de3df543d187417a3dcbcc2c3c",
         "A request was denied memory, or one more of something that is counted.",
         {"tenant", "session?", "pid", "uid", "client?", "command?", "call", "cause", "asked",
          "used", "limit", "device?", "limited?", "why"}},
        {AuditEvent::kPublished, "published", LOG_INFO, "9672927ac76746e3983059265119c543",
         "Segments were published: they stay without a lease.",
         session({"publication", "version", "bytes", "count"})},
        {AuditEvent::kPublicationEnded, "publication-ended", LOG_INFO,
         "13a3156949a04461abd0157cf54e79ea", "A publication has ended.",
         by({"tenant", "publication", "version", "bytes", "count", "why"})},
        {AuditEvent::kClaimed, "claimed", LOG_INFO, "5e0b7c1d9a4f4b62a8d3f1c60e7729b4",
         "A session got the claim on contents: it is to load and publish them, and others of its "
         "tenant wait.",
         session({"publication", "content", "why?"})},
        {AuditEvent::kClaimEnded, "claim-ended", LOG_INFO, "c41f86a2d07e4c3bb95a2e8d7f10636a",
         "A claim has ended. If others wait and the contents are not published, the first of them "
         "has it.",
         session({"publication", "content", "why"})},
        {AuditEvent::kLost,
         "lost",
         LOG_ERR,
         "3e95865ad5cc4254a0a7a4113624675d",
         "Memory, or a publication, cannot be opened any more.",
         {"tenant", "device?", "kind?", "bytes?", "count?", "segment?", "holder?", "publication?",
          "version?", "why"}},
        {AuditEvent::kRevoking, "revoking", LOG_NOTICE, "9c7cd1d8919145fbbd81cba9aa65d299",
         "Revocable memory is being taken back: its holders are told.",
         with_memory({"tenant"}, {"holder?", "why"})},
        {AuditEvent::kSignalled,
         "signalled",
         LOG_WARNING,
         "7ed08808d9884684999b2a500a1dd5c0",
         "A process was asked to end (SIGTERM) or was ended (SIGKILL) for memory that it did not "
         "release, or allocated past the broker.",
         {"tenant?", "session", "pid?", "uid?", "command?", "device?", "bytes?", "signal", "why"}},
        {AuditEvent::kRevoked, "revoked", LOG_NOTICE, "894fc9f0e93f413594f6e4dff9a9669a",
         "Revocable memory was taken back.", with_memory({"tenant"}, {"why"})},
        {AuditEvent::kRevocationEnded, "revocation-ended", LOG_NOTICE,
         "c7e056c3d5f14cb4899395856215c75b",
         "A revocation has ended: the memory stays with its holders.",
         with_memory({"tenant"}, {"why"})},
        {AuditEvent::kReclaimed, "reclaimed", LOG_NOTICE, "bdd9a9bf04ef48ba8874f42946f494de",
         "The process of a session has ended: its memory, which no other process maps, is free.",
         with_memory(session({}), {"owner?"})},
        {AuditEvent::kSuppressed,
         "suppressed",
         LOG_NOTICE,
         "d35865ef5e0e415bbab0a4e6e72f755a",
         "Records of this event and tenant above the limit of a second were left out.",
         {"tenant?", "uid?", "of", "count", "bytes?"}},
        {AuditEvent::kMissed,
         "missed",
         LOG_ERR,
         "041bc5df60d44194858f88eaf346603a",
         "Records came faster than they could be written, and were lost.",
         {"count"}},
    };
  }();
  return *kinds;
}

}  // namespace gpumemd
