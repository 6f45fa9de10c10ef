// SPDX-License-Identifier: Apache-2.0
// Segments of one size whose memory is replaced by other memory of one request (demotion.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/mapping/remapping.h"
#include "client/session/interrupt.h"
#include "client/session/session.h"
#include "common/mapping/mapping.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::internal {

// The calls are made in the order of this class. The destructor releases the other memory, and all
// of it until Finish().
class DemotionBatch {
 public:
  using State = Remapping::State;
  enum class Memory { kOld, kNew };

  // The segments of one request: 1 to kMost, in the order of their addresses.
  static constexpr size_t kMost = 253;
  DemotionBatch(std::shared_ptr<Session> session, const Remapping::States& states);

  size_t size() const { return parts_.size(); }

  // Acquires as much memory for `request`, whose kind and device are set, and asks the daemon if it
  // will exchange it.
  absl::Status Acquire(v1::AcquireRequest request, absl::Duration wait,
                       std::optional<absl::Duration> timeout, const Disturbance& disturbance);
  // Maps the new memory elsewhere, and the old memory once more, to keep it.
  absl::Status MapElsewhere();
  // Copies from the old memory to the new.
  absl::Status Copy() const;

  // True if segments `first` to `first` + `count` - 1 are not all of that memory, and can be.
  bool Differs(size_t first, size_t count, Memory to) const;
  // Maps that memory at their addresses. Nothing may use them meanwhile. On an error some of them
  // may have either memory, or none.
  absl::Status Switch(size_t first, size_t count, Memory to);

  // Exchanges the leases of the segments that have the new memory.
  absl::Status Exchange(absl::Time deadline);
  // Undoes Exchange(), whatever its outcome was.
  void ExchangeBack(absl::Time deadline);
  // True if a segment does not have the old memory.
  bool IsChanged() const;

  // Makes the exchange known to the segments, and releases all memory that is not theirs.
  void Finish();

 private:
  // kUnknown: the daemon has not answered.
  enum class Exchanged { kNo, kYes, kUnknown };
  struct Part {
    State* state = nullptr;
    v1::Lease other;                 // of the new memory
    std::unique_ptr<Mapping> spare;  // the new memory, elsewhere
    std::unique_ptr<Mapping> kept;   // the old memory, elsewhere
    Memory mapped = Memory::kOld;    // at the segment's address
    Exchanged exchanged = Exchanged::kNo;
  };

  bool on_cuda() const;
  absl::Status Check(absl::Time deadline);
  void Add(const Part& part, Memory to, v1::ExchangeLeasesRequest* request) const;
  // Asks for an exchange of some parts, and notes its outcome. `to`: what they are to have.
  absl::Status Ask(const std::vector<Part*>& parts, Memory to, absl::Time deadline);

  std::shared_ptr<Session> session_;
  std::unique_ptr<Grant> grant_;  // outlives the mappings of its memory
  std::vector<Part> parts_;
};

}  // namespace gpumem::internal
