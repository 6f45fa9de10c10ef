// SPDX-License-Identifier: Apache-2.0
// The costs of the bare machine: calls that every broker needs. Measured in the same run as the
// calls that are compared with them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mapping/mapping.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"
#include "tests/bench/bare_cuda.h"
#include "tests/support/child.h"

namespace gpumem::bench {

// The data by which one process lets another open its memory.
struct Handed {
  std::vector<UniqueFd> fds;  // kinds vmm and pinned, and every kind on the host
  Handle data = {};           // kinds ipc and mempool
};

// Another process that owns memory and hands it out, with no broker in between. Its answers
// come over a SEQPACKET socket. On the host backend all kinds are memfds there.
class BareOwner {
 public:
  BareOwner(Backend backend, const std::string& device_uuid);

  // A message there and back.
  absl::Status Ping();
  // Makes `count` segments of `bytes` there; `send` also hands them over, in one message. The
  // former ones are given up first. Kinds ipc and mempool: one at a time.
  absl::StatusOr<Handed> Make(Kind kind, uint64_t bytes, int count, bool send);
  // Asks for the descriptors that Make made, once more.
  absl::StatusOr<Handed> SendAgain();
  // Returns the descriptor of its memory pool, for kind mempool on CUDA.
  absl::StatusOr<UniqueFd> PoolFd();
  absl::Status Drop();

  pid_t pid() const { return child_.pid(); }

 private:
  absl::StatusOr<Handed> Ask(const std::string& what);
  testing::Child child_;
};

// The other end, in the process that BareOwner starts (--role bare-owner).
int RunBareOwner(const std::vector<std::string>& args);

// The importer's side. Kinds vmm and pinned are mapped as the client library does it: one
// range, one access call. Kinds ipc and mempool by one bare call; the pool is imported before.
class BareImporter {
 public:
  //   UNAVAILABLE  CUDA is needed and not there
  static absl::StatusOr<std::unique_ptr<BareImporter>> For(Kind kind, const DeviceInfo& device,
                                                           BareOwner& owner);

  absl::Status Open(const Handed& handed, uint64_t bytes);
  absl::Status Close();  // the mapping that Open made last

 private:
  BareImporter(Kind kind, DeviceInfo device) : kind_(kind), device_(std::move(device)) {}
  bool by_data() const { return cuda_ != nullptr; }

  const Kind kind_;
  const DeviceInfo device_;
  std::unique_ptr<BareCuda> cuda_;  // kinds ipc and mempool on CUDA
  Mappings mappings_;
  BareCuda::Address address_ = 0;
};

// Returns a function that imports, maps and unmaps memory of another process, at addresses that are
// reserved once. Dies of errors.
std::function<void()> BareTrip(const DeviceInfo& device, UniqueFd memory, uint64_t bytes);

}  // namespace gpumem::bench
