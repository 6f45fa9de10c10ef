// SPDX-License-Identifier: Apache-2.0
#include "client/pool/stream_api.h"

namespace gpumem::internal {
namespace {

// Submitted work has already completed.
class HostStreamApi : public StreamApi {
 public:
  absl::StatusOr<bool> IsBlocking(Stream) override { return true; }
  bool IsFree(Stream) override { return true; }
  absl::Status CheckFree(Stream) override { return absl::OkStatus(); }
  absl::StatusOr<EventHandle> Record(Stream) override { return nullptr; }
  absl::StatusOr<bool> Done(EventHandle) override { return true; }
  absl::Status Synchronize(EventHandle) override { return absl::OkStatus(); }
  absl::Status SynchronizeDevice() override { return absl::OkStatus(); }
  absl::Status Wait(Stream, EventHandle) override { return absl::OkStatus(); }
  void Drop(EventHandle) override {}
};

}  // namespace

std::unique_ptr<StreamApi> MakeHostStreamApi() { return std::make_unique<HostStreamApi>(); }

}  // namespace gpumem::internal
