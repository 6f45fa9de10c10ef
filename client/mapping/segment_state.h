// SPDX-License-Identifier: Apache-2.0
// The state of a valid Segment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/mapping/mapper.h"
#include "client/session/session.h"
#include "common/mapping/mapping.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"

namespace gpumem {

// A lease and its mapping, or if it is suspended, its addresses. The destructor unmaps the memory,
// then releases the lease.
struct Segment::State {
  State(std::shared_ptr<internal::Session> the_session, internal::MappedLease mapped_lease)
      : session(std::move(the_session)), mapped(std::move(mapped_lease)) {}
  ~State();

  // Releases the addresses and the descriptor. A forked child releases only memory unknown to CUDA
  // and not shared between Segments: it must use neither the driver nor locks.
  void Unmap();

  // Asks the daemon for the descriptor behind the lease once more.
  absl::StatusOr<UniqueFd> FetchFd();

  const std::shared_ptr<internal::Session> session;
  internal::MappedLease mapped;
  std::optional<Reserved> reserved;  // set while it is suspended; mapped.mapping is null then
  UniqueFd fd;                       // set by Segment::fd()
  std::string tag;                   // AcquireOptions::tag
  std::string home;                  // while it is demoted: the device that it came from
  bool leased = true;                // false: the lease was released already
};

}  // namespace gpumem
