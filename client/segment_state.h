// What is behind a valid Segment.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/client.h"
#include "client/mapper.h"
#include "client/session.h"

namespace gpumem {

// A lease and its mapping. Its end unmaps the memory, then releases the lease.
struct Segment::State {
  State(std::shared_ptr<internal::Session> the_session, internal::MappedLease mapped_lease)
      : session(std::move(the_session)), mapped(std::move(mapped_lease)) {}
  ~State();

  // Gives the addresses back. In a forked child only those of host memory: the driver
  // there is not the child's to call.
  void Unmap();

  const std::shared_ptr<internal::Session> session;
  internal::MappedLease mapped;
  bool leased = true;  // false: the lease was released already
};

}  // namespace gpumem
