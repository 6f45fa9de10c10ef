// Another process, for tests that share device memory between processes.
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
#include "absl/types/span.h"
#include "common/export_data.h"
#include "common/unique_fd.h"
#include "daemon/device/device.h"

namespace gpumemd {

class PeerServer;

// Who a peer is.
enum class PeerIdentity {
  kThisProcess,    // nobody else: the test itself does what a peer would
  kSameUser,       // another process
  kOtherUser,      // another process of another uid
  kOwnNamespaces,  // another process in its own PID, network, IPC and mount namespace
};

// "ThisProcess" and so on.
absl::string_view PeerIdentityName(PeerIdentity identity);

// What a client is told of memory that it may open.
struct SharedMemory {
  Kind kind = Kind::kVmm;
  std::string device_uuid;
  std::string runtime_dir;  // of the host backend
  uint64_t bytes = 0;       // of each allocation
  std::vector<int> fds;     // of each allocation; of kind mempool, the pool's
  uint64_t pool_id = 0;
  std::optional<ExportData> data;
};

// Runs this program again and tells it what to do with memory that it is told of, as a
// client would be. A new program and not a fork: CUDA does not survive that.
//
// Each call waits for the peer's answer and gives its status; UNAVAILABLE where the peer
// has died. Its end ends the peer.
class ContractPeer {
 public:
  //   FAILED_PRECONDITION  nobody here may make a process of that identity; says why
  static absl::StatusOr<std::unique_ptr<ContractPeer>> Start(PeerIdentity identity);
  ContractPeer(const ContractPeer&) = delete;
  ContractPeer& operator=(const ContractPeer&) = delete;
  ~ContractPeer();

  // Maps memory, several descriptors' in one range. The peer keeps no descriptor. What was
  // mapped before is unmapped first.
  absl::Status Map(const SharedMemory& memory, bool read_only = false);
  absl::Status Unmap();
  // Maps the same once more and unmaps it again. ABORTED where it is at another address
  // than what is mapped.
  absl::Status MapAgain(const SharedMemory& memory);

  // Fills the mapped range with words that follow from the seed.
  absl::Status WritePattern(uint64_t seed);
  // Ok where it holds just that, or zeros; DATA_LOSS names the first wrong byte.
  absl::Status ExpectPattern(uint64_t seed);
  absl::Status ExpectZeros();

  // Hands a descriptor over for keeps: the peer neither maps it nor loads a driver.
  absl::Status Keep(int fd);
  // Gets it back.
  absl::StatusOr<gpumem::UniqueFd> GiveBack();

  // SIGKILLs the peer and waits until the kernel has reaped it. There is none to kill in
  // this process.
  void Kill();

 private:
  ContractPeer();

  absl::Status Open(absl::string_view verb, const SharedMemory& memory, bool read_only);
  absl::Status Ask(absl::string_view command, absl::Span<const int> fds = {},
                   gpumem::UniqueFd* answer = nullptr);

  PeerIdentity identity_ = PeerIdentity::kThisProcess;
  pid_t pid_ = 0;  // 0 once it is reaped
  gpumem::UniqueFd socket_;
  std::unique_ptr<PeerServer> here_;  // the peer, where it is this process
};

// To be called first in main(): where this program was run by ContractPeer::Start(),
// serves as a peer until the other side is gone and returns the exit status.
std::optional<int> RunAsContractPeer(int argc, char** argv);

}  // namespace gpumemd
