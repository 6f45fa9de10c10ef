// SPDX-License-Identifier: Apache-2.0
// Requests of clients that the broker is answering.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/device/device.h"

namespace gpumemd {

class Broker;

// Segments on their way to a client. The broker owns the descriptors; they stay open until the
// Deliver that was given them returns.
struct Handover {
  struct Item {
    LeaseView lease;
    int fd = -1;  // -1 for kinds that are shared without a descriptor
  };
  std::vector<Item> items;
  std::vector<ExportedPool> pools;  // of these items, not yet sent to the session
  int memory_page = -1;             // the page of the session's tenant, in place of items
  // Set by a Deliver that sends several messages, once the first has gone out. Even if a later
  // message fails, the client may have some of the descriptors.
  mutable bool partly_sent = false;
};
// Sends the descriptors. Unless `partly_sent` is set, the client may have descriptors only after
// an OK.
using Deliver = absl::FunctionRef<absl::Status(const Handover&)>;

// The common part of an Acquisition and an Attachment, from beginning to answer.
struct WaitingRequest {
  SessionId session{};
  // The deadline for memory that others hold (with spec.waits), for spec.version, or for contents.
  absl::Time wait_until = absl::InfinitePast();
  // Sends the descriptors. Returns DEADLINE_EXCEEDED if `may_block` is false and sending would
  // block.
  std::function<absl::Status(const Handover&, bool may_block)> deliver;
  // Called once after each Advance that left the request waiting, when it can go on. Runs without
  // the mutex, on the thread whose call let the request go on. Must return soon.
  std::function<void()> resume;

 private:
  friend class Broker;
  // Under mutex_.
  std::optional<WaiterId> waiter;
  absl::Status refused;   // the answer, if its wait ended with an error
  bool given_up = false;  // by its client
  bool parked = false;
};

// One Acquire.
struct Acquisition : WaitingRequest {
  AcquireSpec spec;
  // The deadline for memory that is on its way back to the driver.
  absl::Time release_deadline = absl::InfinitePast();

 private:
  friend class Broker;
  // Returns when the clock next looks at it, while it waits.
  absl::Time Due() const {
    return spec.without_pressure ? give_up : std::min(give_up, press_again);
  }
  std::optional<Operation> operation;
  absl::Time give_up;
  absl::Time press_again;
  bool counts_on_revocation = false;
  int attempt = 1;
  absl::Time begun = absl::InfinitePast();  // infinite past: not begun
  bool waited = false;
};

// Returns the name of the session's call, for the audit.
inline absl::string_view NameOf(const Acquisition& acquisition) {
  return acquisition.spec.BringsBack() ? "resume" : "acquire";
}

// One Attach.
struct Attachment : WaitingRequest {
  AttachSpec spec;

 private:
  friend class Broker;
  // Under mutex_: brings the publication back, if it is suspended. Resumes this.
  std::shared_ptr<Acquisition> bring_back;
};

// A call being answered. Counts against its session's tenant while it lives.
class BrokerCall {
 public:
  BrokerCall(BrokerCall&& other) noexcept
      : broker_(std::exchange(other.broker_, nullptr)),
        session_(other.session_),
        watch_(other.watch_),
        accepts_suspension_(other.accepts_suspension_),
        demotes_(other.demotes_),
        swappable_(other.swappable_) {}
  BrokerCall& operator=(BrokerCall&&) = delete;
  ~BrokerCall();
  SessionId session() const { return session_; }
  // Makes the call one of the session's watches, which do not count as in flight.
  // `accepts_suspension`: the client obeys requests to suspend (SuspensionRequests). `swappable`
  // and `demotes`: as SuspensionRequests::AddWatch.
  //   RESOURCE_EXHAUSTED  the session has too many
  absl::Status BecomeWatch(bool accepts_suspension = false,
                           std::optional<bool> swappable = std::nullopt, bool demotes = false);

 private:
  friend class Broker;
  BrokerCall(Broker* broker, SessionId session) : broker_(broker), session_(session) {}
  Broker* broker_;
  SessionId session_;
  bool watch_ = false;
  bool accepts_suspension_ = false;
  bool demotes_ = false;
  std::optional<bool> swappable_;
};

}  // namespace gpumemd
