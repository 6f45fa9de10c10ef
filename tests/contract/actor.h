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

// Who a process is, beside the one that has made the memory.
enum class Identity {
  kSameProcess,    // the maker itself
  kSameUser,       // another process
  kOtherUser,      // another process, of another uid and gid
  kOwnNamespaces,  // another process with its own PID, network, IPC and mount namespaces
};
std::string IdentityName(Identity identity);
// Why this machine does not let a process be that; empty where it does.
std::string WhyNot(Identity identity);

// What an actor says of memory that it has got.
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
  std::string user;  // the GPU that is to use it; empty: its own
};

// What opens memory without the daemon; which of them is there depends on the kind.
struct RawHandle {
  UniqueFd fd;       // the segment's, or its pool's
  std::string data;  // 64 bytes, or empty
};

// Blocking, one call at a time. A call to one that is gone answers UNAVAILABLE.
class Actor {
 public:
  // Aborts where there cannot be one: ask WhyNot first.
  Actor(Identity identity, std::string runtime_dir);

  // SIGKILL, and waits until it is reaped.
  void Kill() { child_ = testing::Child(); }

  // From now on it sees these GPUs alone (CUDA_VISIBLE_DEVICES). Before anything else.
  absl::Status See(const std::string& device_uuids);

  // These do what Client and Segment do, under the name that the memory is to have.
  absl::Status Connect(const std::string& tenant);
  absl::StatusOr<Held> Acquire(const std::string& name, const Wish& wish);
  absl::StatusOr<Held> Open(const std::string& name, const std::string& ticket,
                            const Wish& wish = {});
  absl::StatusOr<std::string> Share(const std::string& name,
                                    TicketScope scope = TicketScope::kTenant);
  absl::Status Release(const std::string& name);
  // What was acquired or opened under the name; and the first segment of what is attached to.
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
  // Whether it can be written to, without a fault where it cannot:
  //   PERMISSION_DENIED  it is mapped read-only
  absl::Status TryWrite(const std::string& name);

  // Maps memory by what common/mapping/mapping.h takes; needs no session, and makes none.
  absl::Status OpenRaw(const std::string& name, Kind kind, Backend backend,
                       const std::string& device_uuid, uint64_t bytes, const RawHandle& handle);

 private:
  // `words` go there separated by blanks; what comes back are those of the answer.
  absl::StatusOr<std::vector<std::string>> Ask(const std::vector<std::string>& words, int fd = -1,
                                               UniqueFd* answered_fd = nullptr);
  absl::StatusOr<Held> AskForMemory(const std::vector<std::string>& words);

  testing::Child child_;
};

// The other end: the exit code where this program was started as an actor.
std::optional<int> RunAsActor(int argc, char** argv);

}  // namespace gpumem::contract
