// Publications: a list of segments under a name, with a few bytes of description, that others
// attach to by that name and that can outlive who made it.
//
//   std::vector<gpumem::Segment> weights = …;            // filled, and no GPU work on them any
//   more client->Publish("weights", weights, {.metadata = layout});
//
//   auto attached = client->Attach("weights");           // in another process, any time later
//   use(attached->data(), attached->metadata());
//
// Versions are atomic: to publish under a name that is there makes the next version of it. Who has
// an older one attached keeps that, whole; who attaches from now on gets the new one, whole. The
// versions of a name grow, whatever becomes of the name and of the daemon in between: by one,
// unless the daemon has forgotten the name meanwhile. Memory is charged to the publisher's tenant,
// once, for as long as anybody holds it.
//
// Attachments are read-only unless they ask for more. That guards against mistakes and is no
// security boundary: the process that maps memory chooses how. Publish what others may spoil only
// to those whom you trust not to.
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
  kAny,     // those of every tenant
};

struct PublishOptions {
  // At most 1 MiB, of any content; whoever attaches is given it.
  std::string metadata;
  PublicationAccess access = PublicationAccess::kTenant;
  // It ends with this Client's session. Else it stays, whatever becomes of this process, until it
  // is unpublished or expires.
  bool ephemeral = false;
  // It ends once nobody has been attached for so long. A millisecond at least.
  absl::Duration expire_after = absl::InfiniteDuration();
  std::optional<absl::Duration> timeout;
};

struct AttachOptions {
  // Waits until this version or a later one is there, also where there is no such name yet; 0: the
  // newest that is there now, at once.
  uint64_t wait_for_version = 0;
  // How long to wait for it at most; InfiniteDuration: for as long as the session lives. A wait
  // that is over is DEADLINE_EXCEEDED. Meanwhile the Client's other calls go on beside it.
  absl::Duration wait = absl::InfiniteDuration();
  // Ends the wait (CANCELLED). Nothing is held then, nor later.
  std::optional<CancelToken> cancel;
  // See above; false: others who are attached see what is written.
  bool read_only = true;
  // These as in OpenOptions.
  std::vector<DeviceName> map_devices;
  void* address = nullptr;
  bool revocable = false;
  // For the answer, from when the wait is over.
  std::optional<absl::Duration> timeout;
};

// One version of a publication, mapped into this process. Move-only; its end unmaps the memory and
// releases it, all in one call. The caller makes sure that no GPU work uses it by then.
class Attachment {
 public:
  Attachment();
  Attachment(Attachment&&) noexcept;
  Attachment& operator=(Attachment&&) noexcept;
  ~Attachment();

  // False after Release(), after a move, and when default-made.
  bool valid() const { return state_ != nullptr; }

  // Null and empty where it is not valid.
  uint64_t version() const;
  const std::string& tenant() const;  // whose publication it is
  const std::string& metadata() const;
  // In the publisher's order. The Attachment's: releasing one of them ends that one alone.
  absl::Span<Segment> segments();
  absl::Span<const Segment> segments() const;
  // Where the segments lie one after another, in order and without a gap: the first. So they do
  // where all are of one device and one kind; else null, and each has an address of its own.
  void* data() const;
  uint64_t size() const;  // of all segments

  // What the destructor does, with its status. The memory is unmapped in any case.
  //   FAILED_PRECONDITION  not valid
  absl::Status Release();

 private:
  friend class Client;
  struct State;
  explicit Attachment(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The newest version under a name, as the daemon lists it.
struct PublicationInfo {
  std::string tenant;
  std::string name;
  uint64_t version = 0;
  uint32_t segments = 0;
  uint64_t bytes = 0;
  uint64_t metadata_bytes = 0;
  PublicationAccess access = PublicationAccess::kTenant;
  bool ephemeral = false;
  uint32_t attached_sessions = 0;  // to this version
  absl::Duration age;
  absl::Duration expire_after = absl::InfiniteDuration();
  absl::Duration expires_in = absl::InfiniteDuration();  // as things stand
  // Of one's own tenant alone:
  uint64_t publisher_session_id = 0;
  int32_t publisher_pid = 0;  // in the daemon's PID namespace
  std::string publisher_name;
  bool publisher_alive = false;
};

}  // namespace gpumem
