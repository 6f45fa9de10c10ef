// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <utility>

#include "client/events/interprocess_event.h"
#include "client/session/ticket.h"

namespace gpumem::internal {
namespace {

// The format of a handle: this magic, the ticket's bytes, zeros.
constexpr absl::string_view kMagic = "gmhostev";

// Counts the records. Waiting is unnecessary: the threads that record are those that use the host
// memory.
class HostEvent : public InterprocessEvent {
 public:
  HostEvent(Segment memory, const Handle& handle) : memory_(std::move(memory)) { handle_ = handle; }

  absl::Status Record(void*) override {
    // Release order: a thread that sees the count sees all earlier writes.
    Count().fetch_add(1, std::memory_order_release);
    return absl::OkStatus();
  }
  absl::Status Wait(void*) override { return Look(); }
  absl::Status Synchronize() override { return Look(); }
  absl::StatusOr<bool> Done() override {
    if (absl::Status status = Look(); !status.ok()) return status;
    return true;
  }
  void* event() const override { return nullptr; }
  bool needs_its_maker() const override { return false; }  // other processes have leases

 private:
  std::atomic_ref<uint64_t> Count() {
    return std::atomic_ref(*static_cast<uint64_t*>(memory_.data()));
  }
  absl::Status Look() {
    (void)Count().load(std::memory_order_acquire);
    return absl::OkStatus();
  }

  const Segment memory_;
};

}  // namespace

std::shared_ptr<InterprocessEvent> MakeHostEvent(Segment memory, absl::string_view ticket) {
  Handle handle = {};
  std::copy(kMagic.begin(), kMagic.end(), handle.begin());
  std::copy_n(ticket.begin(), std::min(ticket.size(), kTicketBytes),
              handle.begin() + kMagic.size());
  return std::make_shared<HostEvent>(std::move(memory), handle);
}

absl::StatusOr<std::string> HostEventTicket(const Handle& handle) {
  if (!std::equal(kMagic.begin(), kMagic.end(), handle.begin())) {
    return absl::InvalidArgumentError("the handle is not an event of the host backend");
  }
  const auto* const ticket = handle.begin() + kMagic.size();
  return std::string(ticket, ticket + kTicketBytes);
}

}  // namespace gpumem::internal
