// What is behind a valid Segment.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/mapping/mapper.h"
#include "client/session/session.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"

namespace gpumem {

// A lease and its mapping. Its end unmaps the memory, then releases the lease.
struct Segment::State {
  State(std::shared_ptr<internal::Session> the_session, internal::MappedLease mapped_lease)
      : session(std::move(the_session)), mapped(std::move(mapped_lease)) {}
  ~State();

  // Gives the addresses back, and the descriptor. In a forked child only those of memory that
  // neither CUDA knows nor Segments share: neither the driver nor locks are the child's to use.
  void Unmap();

  // Asks the daemon for the descriptor behind the lease once more.
  absl::StatusOr<UniqueFd> FetchFd();

  const std::shared_ptr<internal::Session> session;
  internal::MappedLease mapped;
  UniqueFd fd;         // once Segment::fd() was called
  bool leased = true;  // false: the lease was released already
};

}  // namespace gpumem
