// SPDX-License-Identifier: Apache-2.0
// Client programs of the contract suite: this very program, run again, driven over its
// channel. Each has one session with the daemon, or none, and holds memory under names.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpumem/client.h"
#include "tests/support/child.h"

namespace gpumem::contract {

// The identity of a process, relative to the one that has made the memory.
enum class Identity {
  kSameProcess,    // the maker itself
  kSameUser,       // another process
  kOtherUser,      // another process, of another uid and gid
  kOwnNamespaces,  // another process with separate PID, network, IPC and mount namespaces
};
std::string IdentityName(Identity identity);
// Returns why this machine does not allow the identity; empty if it does.
std::string WhyNot(Identity identity);

// An actor's report of memory that it has acquired or opened.
struct Held {
  uint64_t lease_id = 0;
  uint64_t size = 0;
  uint64_t address = 0;
  bool reused = false;
  std::string device_uuid;
};

struct Wish {
  Kind kind = Kind::kDefault;
  uint64_t bytes = 0;
  bool read_only = false;
  uint64_t address = 0;
  std::string user;  // the GPU that is to use it; empty: the segment's
};

// The means to open memory without the daemon; the kind decides which is present.
struct RawHandle {
  UniqueFd fd;       // the segment's, or its pool's
  std::string data;  // 64 bytes, or empty
};

// Blocking, one call at a time. A call to one that is gone answers UNAVAILABLE.
class Actor {
 public:
  // Aborts if the identity is not possible: call WhyNot first.
  Actor(Identity identity, std::string runtime_dir);

  // SIGKILL, and waits until it is reaped.
  void Kill() { child_ = testing::Child(); }

  // Limits it to these GPUs (CUDA_VISIBLE_DEVICES). Call it before anything else.
  absl::Status See(const std::string& device_uuids);

  // These do the work of Client and Segment; `name` is the memory's name in later calls.
  absl::Status Connect(const std::string& tenant);
  absl::StatusOr<Held> Acquire(const std::string& name, const Wish& wish);
  absl::StatusOr<Held> Open(const std::string& name, const std::string& ticket,
                            const Wish& wish = {});
  absl::StatusOr<std::string> Share(const std::string& name,
                                    TicketScope scope = TicketScope::kTenant);
  absl::Status Release(const std::string& name);
  // Publish() takes the name of an acquired or opened segment. Attach() gives the name to the first
  // segment of the publication.
  absl::StatusOr<uint64_t> Publish(const std::string& name, const std::string& publication);
  absl::StatusOr<uint64_t> Attach(const std::string& name, const std::string& publication,
                                  bool read_only = true);
  absl::Status Unpublish(const std::string& publication);
  absl::StatusOr<RawHandle> Raw(const std::string& name);
  absl::Status CreateEvent(const std::string& event);
  absl::Status CreateEventBeside(const std::string& event, const std::string& name);
  absl::Status OpenEvent(const std::string& event);
  absl::Status OpenEventBeside(const std::string& event, const std::string& name);
  absl::Status Record(const std::string& event);
  absl::Status AwaitEvent(const std::string& event);  // Wait() on the stream, then Synchronize()
  absl::Status DropEvent(const std::string& event);
  // Begins to listen for lost segments; AwaitLost waits for the next word, and answers the
  // leases that it names.
  absl::Status Watch();
  absl::StatusOr<std::vector<uint64_t>> AwaitLost();

  // The memory's content (tests/support/pattern.h).
  absl::Status Write(const std::string& name, uint64_t seed);
  absl::Status Expect(const std::string& name, uint64_t seed);
  absl::Status ExpectZero(const std::string& name);
  // Tries to write, without a fault on failure:
  //   PERMISSION_DENIED  it is mapped read-only
  absl::Status TryWrite(const std::string& name);

  // Maps memory by the arguments of common/mapping/mapping.h; needs no session, and makes none.
  absl::Status OpenRaw(const std::string& name, Kind kind, Backend backend,
                       const std::string& device_uuid, uint64_t bytes, const RawHandle& handle);

 private:
  // Sends `words` separated by blanks; returns the words of the answer.
  absl::StatusOr<std::vector<std::string>> Ask(const std::vector<std::string>& words, int fd = -1,
                                               UniqueFd* answered_fd = nullptr);
  absl::StatusOr<Held> AskForMemory(const std::vector<std::string>& words);

  testing::Child child_;
};

// The other end: the exit code where this program was started as an actor.
std::optional<int> RunAsActor(int argc, char** argv);

}  // namespace gpumem::contract
