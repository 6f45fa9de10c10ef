// Another process, for tests that share device memory between processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Runs this program again and tells it what to do with descriptors that it is handed,
// as a client would be. A new program and not a fork: CUDA does not survive that.
//
// Each call waits for the peer's answer and gives its status; UNAVAILABLE where the peer
// has died. Its end ends the peer.
class ContractPeer {
 public:
  static absl::StatusOr<std::unique_ptr<ContractPeer>> Start();
  ContractPeer(const ContractPeer&) = delete;
  ContractPeer& operator=(const ContractPeer&) = delete;
  ~ContractPeer();

  // Maps memory of `device`, `bytes` from each descriptor, in one range. The peer keeps
  // no descriptor. What was mapped before is unmapped first.
  absl::Status Map(const DeviceInfo& device, absl::Span<const int> fds, uint64_t bytes,
                   bool read_only = false);
  absl::Status Unmap();

  // Fills the mapped range with words that follow from the seed.
  absl::Status WritePattern(uint64_t seed);
  // Ok where it holds just that, or zeros; DATA_LOSS names the first wrong byte.
  absl::Status ExpectPattern(uint64_t seed);
  absl::Status ExpectZeros();

  // Hands a descriptor over for keeps: the peer neither maps it nor loads a driver.
  absl::Status Keep(int fd);
  // Gets it back.
  absl::StatusOr<gpumem::UniqueFd> GiveBack();

  // SIGKILLs the peer and waits until the kernel has reaped it.
  void Kill();

 private:
  ContractPeer(pid_t pid, gpumem::UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}

  absl::Status Ask(absl::string_view command, absl::Span<const int> fds = {},
                   gpumem::UniqueFd* answer = nullptr);

  pid_t pid_;  // 0 once it is reaped
  gpumem::UniqueFd socket_;
};

// To be called first in main(): where this program was run by ContractPeer::Start(),
// serves as a peer until the other side is gone and returns the exit status.
std::optional<int> RunAsContractPeer(int argc, char** argv);

}  // namespace gpumemd
