// SPDX-License-Identifier: Apache-2.0
// Publications: a list of segments under a name, with a few bytes of description. Other processes
// attach to it by name, and it can outlive its publisher.
//
//   std::vector<gpumem::Segment> weights = …;            // filled; no GPU work is pending
//   client->Publish("weights", weights, {.metadata = layout});
//
//   auto attached = client->Attach("weights");           // in another process, any time later
//   use(attached->data(), attached->metadata());
//
// Versions are atomic: publishing under an existing name creates its next version. Existing
// attachments keep the old version whole; new attachments get the new version whole. A name's
// versions always grow, even if the name is removed or the daemon restarts in between: by one,
// unless the daemon has forgotten the name. Memory is charged to the publisher's tenant, once, as
// long as any session holds it.
//
// Load once: several processes need the same contents, and one of them is to load them.
//
//   auto weights = client->AttachOrClaim("weights", digest, {});
//   if (weights->claim.valid()) {
//     std::vector<gpumem::Segment> loaded = Load();
//     client->Publish("weights", loaded, {.content_id = digest});  // the others attach
//   }
//
// Attachments are read-only by default. That guards against mistakes and is no security boundary:
// the process that maps memory chooses. Publish memory only to tenants that may be trusted not to
// spoil it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gpumem/client.h"

namespace gpumem {

enum class PublicationAccess {
  kTenant,  // sessions of the publisher's tenant attach to it
  kAny,     // sessions of every tenant do
};

struct PublishOptions {
  // Names what the memory contains, for AttachOrClaim: at most 64 bytes of any value; empty: none.
  // Ends this Client's claim on it under the name.
  std::string content_id;
  // At most 1 MiB, of any content; every attachment receives it.
  std::string metadata;
  PublicationAccess access = PublicationAccess::kTenant;
  // True if it ends with this Client's session. False: it stays until it is unpublished or expires,
  // even if this process ends.
  bool ephemeral = false;
  // It ends after that long without an attachment. At least a millisecond.
  absl::Duration expire_after = absl::InfiniteDuration();
  std::optional<absl::Duration> timeout;
};

struct AttachOptions {
  // Waits until this version or a later one exists, also if the name does not exist yet. 0: returns
  // the newest existing version at once.
  uint64_t wait_for_version = 0;
  // How long to wait for that version; InfiniteDuration: as long as the session lives. A wait that
  // expires returns DEADLINE_EXCEEDED. The Client's other calls proceed meanwhile.
  // Also how long to wait for memory that others hold, if the publication is suspended. Such a wait
  // that expires returns RESOURCE_EXHAUSTED. InfiniteDuration without a version: no such wait.
  absl::Duration wait = absl::InfiniteDuration();
  // Cancels the wait (CANCELLED). Nothing is held afterwards.
  std::optional<CancelToken> cancel;
  // See above. False: other attachments see the writes.
  bool read_only = true;
  // These as in OpenOptions.
  std::vector<DeviceName> map_devices;
  void* address = nullptr;
  bool revocable = false;
  // For the daemon's answer, counted from the end of the wait.
  std::optional<absl::Duration> timeout;
};

// One version of a publication, mapped into this process. Move-only. The destructor unmaps the
// memory and releases it in one call, without a wait for the daemon as Segment's; the caller
// ensures that no GPU work uses it by then.
class Attachment {
 public:
  Attachment();
  Attachment(Attachment&&) noexcept;
  Attachment& operator=(Attachment&&) noexcept;
  ~Attachment();

  // False after Release(), after a move, and if default-constructed.
  bool valid() const { return state_ != nullptr; }

  // Null and empty if not valid.
  uint64_t version() const;
  const std::string& tenant() const;  // the publisher's
  const std::string& metadata() const;
  const std::string& content_id() const;
  // In the publisher's order. The Attachment owns them: releasing one ends that one alone.
  absl::Span<Segment> segments();
  absl::Span<const Segment> segments() const;
  // The address of the first segment if all lie in order without gaps, as they do if they are of
  // one device and one kind. Else null: each segment has a separate address.
  void* data() const;
  uint64_t size() const;  // of all segments

  // Unmaps and releases like the destructor, and returns the status. The memory is unmapped in any
  // case.
  //   FAILED_PRECONDITION  not valid
  absl::Status Release();

 private:
  friend class Client;
  struct State;
  explicit Attachment(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The right to load contents and publish them, as the only session of the tenant
// (Client::AttachOrClaim). The other sessions that ask for the same contents wait meanwhile. It
// ends when this Client publishes them:
//
//   client->Publish(claim.name(), segments, {.content_id = claim.content_id()});
//
// It also ends with Release(), the Claim, and the session; then the next session that waits gets
// it. It stays over a restart of the daemon. Move-only; use one Claim from one thread at a time.
class Claim {
 public:
  Claim();
  Claim(Claim&&) noexcept;
  Claim& operator=(Claim&&) noexcept;
  ~Claim();  // as Release(), and reports no error

  // False after Release(), after a move, and if default-constructed. A publication does not change
  // it.
  bool valid() const { return state_ != nullptr; }

  // Empty if not valid.
  const std::string& name() const;  // without a tenant
  const std::string& content_id() const;

  // Releases the claim. Has no effect if the contents were published. Without an answer of the
  // daemon it is retried later.
  //   FAILED_PRECONDITION  not valid
  absl::Status Release();

 private:
  friend class Client;
  struct State;
  explicit Claim(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Exactly one is valid.
struct AttachedOrClaimed {
  Attachment attachment;
  Claim claim;
};

// The newest version of a name, as the daemon lists it.
struct PublicationInfo {
  std::string tenant;
  std::string name;
  std::string content_id;  // empty: none
  uint64_t version = 0;
  uint32_t segments = 0;
  uint64_t bytes = 0;
  // Of these, in the host tier. Above zero: it is suspended, and Attach brings it back first.
  uint64_t suspended_bytes = 0;
  uint64_t metadata_bytes = 0;
  PublicationAccess access = PublicationAccess::kTenant;
  bool ephemeral = false;
  uint32_t attached_sessions = 0;  // to this version
  absl::Duration age;
  absl::Duration expire_after = absl::InfiniteDuration();
  absl::Duration expires_in = absl::InfiniteDuration();  // if no attachment changes that
  // For the Client's tenant only:
  uint64_t publisher_session_id = 0;
  int32_t publisher_pid = 0;  // in the daemon's PID namespace
  std::string publisher_name;
  bool publisher_alive = false;
};

}  // namespace gpumem
