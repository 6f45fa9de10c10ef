// SPDX-License-Identifier: Apache-2.0
// Tickets of blocks for the holders of CUDA IPC handles. A handle has 64 bytes, and a ticket has
// more: the handle names a socket of the process that made it, which tells the ticket.
//
// The socket's name is an unguessable abstract one, so it goes with the process, however that ends.
// It answers processes of the same user, or of root, in the same network namespace.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/preload/brokered_memory.h"

namespace gpumem::preload {

// Thread-safe. Never destroyed: its thread serves until the process ends.
class TicketExchange {
 public:
  // Returns a handle for the block at `base`; the same one while it is offered. Begins to serve at
  // the first call.
  //   UNAVAILABLE  no socket or no thread could be made
  absl::StatusOr<GpumemIpcHandle> Offer(uint64_t base, const std::string& ticket);
  // The block has gone. Does nothing for one that is not offered.
  void Withdraw(uint64_t base);

  // True for a handle of Offer(), of any process. The driver's begin otherwise.
  static bool IsOurs(const GpumemIpcHandle& handle);

  // Asks the process that made the handle. Requires IsOurs().
  //   NOT_FOUND  that process has ended, is not reachable, or offers the block no more
  static absl::StatusOr<std::string> Fetch(const GpumemIpcHandle& handle);

 private:
  using Key = std::array<unsigned char, 16>;

  struct Offered {
    uint64_t base = 0;
    std::string ticket;
  };

  absl::Status Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Serve();
  std::string TicketOf(const Key& key) const;

  mutable absl::Mutex mutex_;
  int socket_ ABSL_GUARDED_BY(mutex_) = -1;
  Key name_ ABSL_GUARDED_BY(mutex_) = {};
  std::map<Key, Offered> offered_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Key> keys_ ABSL_GUARDED_BY(mutex_);  // by base
};

}  // namespace gpumem::preload
