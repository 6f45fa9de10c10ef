// SPDX-License-Identifier: Apache-2.0
// Random operations of one session, with what it holds. Checks that memory keeps its contents.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/cuda/device_copy.h"
#include "gpumem/client.h"
#include "gpumem/pool.h"
#include "gpumem/publication.h"
#include "tests/soak/tally.h"

namespace gpumem::soak {

// The first bytes of a segment: enough to tell memory apart, and soon written.
absl::Status FillBeginning(const Segment& segment, uint64_t seed);
// DATA_LOSS if they differ.
absl::Status CheckBeginning(const Segment& segment, uint64_t seed);

// The names of the operations that a soak must have seen.
const std::vector<std::string>& MixedOperations();

class Mixed {
 public:
  struct Options {
    ConnectOptions connect;
    std::string mailbox;  // a folder in which workers leave tickets for each other
    uint64_t seed = 0;
  };
  // Counts in `tally`, which must outlive it.
  Mixed(Options options, Tally& tally);
  ~Mixed();

  // False if it cannot.
  bool Connect();
  // Does one operation.
  void Step();
  // Releases everything, and checks that it could.
  void End();
  // Of segments; pools hold more.
  uint64_t held_bytes() const;

 private:
  struct Held {
    Segment segment;
    uint64_t seed = 0;
  };
  struct Choice {
    int weight;
    void (Mixed::*operation)();
  };
  static const std::vector<Choice>& Choices();

  uint64_t Random(uint64_t count) { return random_() % count; }
  uint64_t Bytes();
  std::string Name(absl::string_view what);
  std::string MailboxOf(uint64_t slot) const;
  Held* AnyHeld();
  void Hold(absl::StatusOr<Segment> segment, const std::string& what);
  void Keep(Segment segment);
  // Releases one, if there is any, after a check of its contents.
  void Release(size_t which);

  // The operations.
  void Acquire();
  void AcquireMany();
  void AcquireOtherKind();
  void Wait();
  void ReleaseAny();
  void Share();
  void Open();
  void Publish();
  void Attach();
  void Unpublish();
  void AttachOrClaim();
  void Suspend();
  void Demote();
  void UsePool();
  void SharePool();
  void SuspendPool();
  void Ask();
  void Events();
  void Watch();
  void MakeTenant();
  void Cut();
  void Reconnect();

  const Options options_;
  Tally& tally_;
  std::mt19937_64 random_;
  std::string device_uuid_;
  std::unique_ptr<DeviceCopier> context_;  // of a GPU: kept, since making one is slow
  std::shared_ptr<Client> client_;
  std::vector<Held> held_;
  std::unique_ptr<Pool> pool_;
  std::deque<Block> blocks_;
  std::vector<std::string> names_;  // that it has published
};

}  // namespace gpumem::soak
