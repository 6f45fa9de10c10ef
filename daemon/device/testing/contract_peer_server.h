// SPDX-License-Identifier: Apache-2.0
// The work of a ContractPeer, in either process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/device_copy.h"
#include "common/mapping/mapping.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "daemon/device/testing/contract_peer.h"

namespace gpumemd {

class PeerServer {
 public:
  // Executes a message; returns the descriptor to send back, if any.
  absl::StatusOr<gpumem::UniqueFd> Do(gpumem::UnixMessage message);

 private:
  absl::StatusOr<gpumem::Mappings> Open(const SharedMemory& memory, bool read_only);
  absl::StatusOr<std::shared_ptr<gpumem::ImportedPool>> Pool(const SharedMemory& memory);
  absl::Status Map(const SharedMemory& memory, bool read_only);
  absl::Status MapAgain(const SharedMemory& memory);
  absl::Status Write(absl::FunctionRef<uint64_t(uint64_t)> word_at);
  absl::Status Expect(absl::FunctionRef<uint64_t(uint64_t)> word_at);
  absl::Status ForEachChunk(
      absl::FunctionRef<absl::Status(char* mapped, uint64_t first_word, std::vector<uint64_t>&)>
          work);
  char* Base() const { return static_cast<char*>(mappings_.front()->data()); }

  SharedMemory memory_;  // the mapped memory
  std::map<uint64_t, std::shared_ptr<gpumem::ImportedPool>> pools_;
  gpumem::Mappings mappings_;
  std::unique_ptr<gpumem::DeviceCopier> copier_;
  gpumem::UniqueFd kept_;
};

}  // namespace gpumemd
