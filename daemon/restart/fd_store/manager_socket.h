// SPDX-License-Identifier: Apache-2.0
// The service manager's socket for sd_notify(3) messages.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"

namespace gpumemd {

// Connected for life: neither systemd, which keeps its socket even when it re-executes, nor
// gpumem-keeper ever opens another. Thread-safe: each message is one datagram.
class ManagerSocket {
 public:
  // Connects to `address`, as in $NOTIFY_SOCKET: a path, or "@" and an abstract name.
  //   UNAVAILABLE       no process listens there
  //   INVALID_ARGUMENT  it is no address of a unix socket
  //   others            as the operating system says
  static absl::StatusOr<ManagerSocket> Connect(const std::string& address);

  // Puts one message with descriptors into the manager's queue; waits until `deadline` for room
  // there. From then on the kernel holds the descriptors, even if this process ends.
  //   UNAVAILABLE         the manager is gone, for good
  //   DEADLINE_EXCEEDED   it does not read
  //   RESOURCE_EXHAUSTED  no memory for the message, or too many of this user's descriptors are
  //                       in queues
  //   INVALID_ARGUMENT    more than 253 descriptors, or one that is not open
  absl::Status Send(absl::string_view message, absl::Span<const int> fds,
                    absl::Time deadline) const;

 private:
  explicit ManagerSocket(gpumem::UniqueFd socket) : socket_(std::move(socket)) {}
  gpumem::UniqueFd socket_;
};

}  // namespace gpumemd
