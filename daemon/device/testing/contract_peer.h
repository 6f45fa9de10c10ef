// SPDX-License-Identifier: Apache-2.0
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

// The identity of a peer.
enum class PeerIdentity {
  kThisProcess,    // no other process: the test itself acts as the peer
  kSameUser,       // another process
  kOtherUser,      // another process of another uid
  kOwnNamespaces,  // another process in separate PID, network, IPC and mount namespaces
};

// "ThisProcess" and so on.
absl::string_view PeerIdentityName(PeerIdentity identity);

// A client's description of memory that it may open.
struct SharedMemory {
  Kind kind = Kind::kVmm;
  std::string device_uuid;
  std::string runtime_dir;  // of the host backend
  uint64_t bytes = 0;       // of each allocation
  std::vector<int> fds;     // of each allocation; of kind mempool, the pool's
  uint64_t pool_id = 0;
  std::optional<ExportData> data;
};

// Runs this program again and tells it what to do with given memory, as a client would. A new
// program and not a fork, which CUDA does not survive.
//
// Each call waits for the peer's answer and returns its status; UNAVAILABLE if the peer has died.
// The destructor ends the peer.
class ContractPeer {
 public:
  // Starts a peer.
  //   FAILED_PRECONDITION  this user may not make a process of that identity; says why
  static absl::StatusOr<std::unique_ptr<ContractPeer>> Start(PeerIdentity identity);
  ContractPeer(const ContractPeer&) = delete;
  ContractPeer& operator=(const ContractPeer&) = delete;
  ~ContractPeer();

  // Maps memory, several descriptors' in one range. The peer keeps no descriptor. Unmaps earlier
  // mappings first.
  absl::Status Map(const SharedMemory& memory, bool read_only = false);
  absl::Status Unmap();
  // Maps the same once more and unmaps it again. ABORTED if its address differs from the first
  // mapping's.
  absl::Status MapAgain(const SharedMemory& memory);

  // Fills the mapped range with words derived from the seed.
  absl::Status WritePattern(uint64_t seed);
  // OK if it holds just that, or zeros; DATA_LOSS names the first wrong byte.
  absl::Status ExpectPattern(uint64_t seed);
  absl::Status ExpectZeros();

  // Hands a descriptor over: the peer neither maps it nor loads a driver.
  absl::Status Keep(int fd);
  // Gets it back.
  absl::StatusOr<gpumem::UniqueFd> GiveBack();

  // Kills the peer with SIGKILL and waits until the kernel has reaped it. Not for kThisProcess.
  void Kill();

 private:
  ContractPeer();

  absl::Status Open(absl::string_view verb, const SharedMemory& memory, bool read_only);
  absl::Status Ask(absl::string_view command, absl::Span<const int> fds = {},
                   gpumem::UniqueFd* answer = nullptr);

  PeerIdentity identity_ = PeerIdentity::kThisProcess;
  pid_t pid_ = 0;  // 0 once it is reaped
  gpumem::UniqueFd socket_;
  std::unique_ptr<PeerServer> here_;  // the peer, if it is this process
};

// Must be called first in main(). In a process started by ContractPeer::Start(), serves as a peer
// until the other side is gone and returns the exit status.
std::optional<int> RunAsContractPeer(int argc, char** argv);

}  // namespace gpumemd
