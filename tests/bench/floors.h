// What the machine itself takes: the bare calls under which no broker can go. Measured
// in the same run as what is set against them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "common/mapping.h"
#include "common/unique_fd.h"
#include "tests/support/child.h"

namespace gpumem::bench {

// Another process that owns memory and hands it out, with no broker in between: a
// device of its own, bare. Its answers come over a SEQPACKET socket.
class BareOwner {
 public:
  BareOwner(Backend backend, const std::string& device_uuid);

  // A message there and back.
  absl::Status Ping();
  // Makes `count` segments of `bytes` there; `send` also hands their descriptors over,
  // in one message. The former ones are given up first.
  absl::StatusOr<std::vector<UniqueFd>> Make(uint64_t bytes, int count, bool send);
  absl::Status Drop();

 private:
  absl::StatusOr<std::vector<UniqueFd>> Ask(const std::string& what);
  testing::Child child_;
};

// The other end, in the process that BareOwner starts (--role bare-owner).
int RunBareOwner(const std::vector<std::string>& args);

// Maps descriptors as the client library does: one range, one access call.
absl::StatusOr<std::vector<std::unique_ptr<Mapping>>> Map(Backend backend,
                                                          const std::string& device_uuid,
                                                          const std::vector<UniqueFd>& fds,
                                                          uint64_t bytes);

}  // namespace gpumem::bench
