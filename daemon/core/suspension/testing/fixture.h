// SPDX-License-Identifier: Apache-2.0
// A ledger with a host tier, and what its sessions have in their memory.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {

inline constexpr size_t kTierIndex = 2;
inline constexpr uint64_t kTierCapacity = 8 * kGranule;

// A ledger of two GPUs and a tier, and the contents of each segment: a number for each segment that
// was ever acquired.
class SuspensionsFixture : public LedgerFixture {
 protected:
  // `more`: devices behind the tier.
  explicit SuspensionsFixture(Bounds bounds = {}, const std::vector<DeviceInfo>& more = {})
      : LedgerFixture(bounds, DevicesAnd(more)) {
    ledger.KeepChanges();
  }
  static std::vector<DeviceInfo> DevicesAnd(const std::vector<DeviceInfo>& more) {
    std::vector<DeviceInfo> devices = {Device("GPU-1", {Kind::kVmm, Kind::kMempool}),
                                       Device("GPU-2", {Kind::kVmm}),
                                       {.uuid = "TIER-0",
                                        .capacity_bytes = kTierCapacity,
                                        .granularity_bytes = kGranule,
                                        .kinds = {Kind::kTier}}};
    devices.insert(devices.end(), more.begin(), more.end());
    return devices;
  }

  using Move = Suspensions::Move;

  Operation::Item AcquireFilled(SessionId session, uint64_t bytes, std::string device = "GPU-1",
                                bool scratch = false) {
    auto operation =
        Ask(session,
            {.device_uuid = std::move(device), .bytes = bytes, .tag = "t", .scratch = scratch});
    EXPECT_TRUE(Granted(operation)) << operation.status();
    Finish(**operation);
    const Operation::Item item = (*operation)->items.at(0);
    contents[item.segment] = expected[item.lease] = ++numbers;
    return item;
  }
  // Makes the segments in the tier, and copies.
  void Carry(const Suspensions::Begun& begun, bool copied = true) { Carry(begun.moves, copied); }
  void Carry(const std::vector<Move>& moves, bool copied = true) {
    MakeRooms(moves);
    EndMoves(moves, copied);
  }
  void MakeRooms(const std::vector<Move>& moves) {
    for (const Move& move : moves) {
      if (move.dropped) {
        ledger.suspensions().Made(move, {});
        continue;
      }
      ledger.suspensions().Made(move, {{.offset = next_offset, .bytes = move.bytes}});
      next_offset += move.bytes;
    }
  }
  // Copies, or drops: memory without contents has the number 0.
  void EndMoves(const std::vector<Move>& moves, bool copied) {
    for (const Move& move : moves) {
      if (copied) contents[move.to] = move.dropped ? 0 : contents.at(move.from);
      ledger.suspensions().Finish(move, copied);
      if (!copied || !move.dropped) continue;
      for (auto& [lease, number] : expected) {
        if (ledger.state().leases.Find(lease) != nullptr && SegmentOf(lease) == move.to) number = 0;
      }
    }
  }
  // Does what the daemon does by itself. Returns the bytes that moved.
  uint64_t MoveLater(bool copied = true) {
    uint64_t moved = 0;
    while (std::optional<Move> move = ledger.suspensions().BeginLater(/*steps=*/64)) {
      Carry({*move}, copied);
      moved += copied ? move->bytes : 0;
    }
    return moved;
  }
  // Publishes what the leases are of, under a name of the session's tenant.
  PublicationId Publish(SessionId session, const std::string& name,
                        const std::vector<LeaseId>& leases, bool to_any = false) {
    auto published =
        ledger.publications().Publish(session, {.name = name, .leases = leases, .to_any = to_any});
    EXPECT_TRUE(published.ok()) << published.status();
    if (!published.ok()) return {};
    std::vector<uint64_t>& numbers_of = published_numbers[published->id];
    for (LeaseId lease : leases) numbers_of.push_back(expected.at(lease));
    return published->id;
  }
  // Suspends the publication in one go. Returns the bytes that moved.
  uint64_t SuspendPublication(PublicationId publication) {
    auto moves = ledger.suspensions().BeginPublication(publication);
    EXPECT_TRUE(moves.ok()) << moves.status();
    if (!moves.ok()) return 0;
    Carry(*moves);
    uint64_t moved = 0;
    for (const Move& move : *moves) moved += move.bytes;
    return moved;
  }
  void Complete(const Operation& operation) {
    FillFrom(operation);
    EXPECT_TRUE(ledger.operations().Commit(operation).ok());
  }
  // Suspends the leases in one go. Returns the bytes that moved or were dropped.
  uint64_t Suspend(SessionId session, const std::vector<LeaseId>& leases) {
    auto begun = ledger.suspensions().Begin(session, leases, /*reservation=*/0);
    EXPECT_TRUE(begun.ok()) << begun.status();
    if (!begun.ok()) return 0;
    Carry(*begun);
    uint64_t moved = 0;
    for (const Move& move : begun->moves) moved += move.bytes;
    return moved;
  }
  absl::StatusOr<std::optional<Operation>> AskResume(SessionId session,
                                                     const std::vector<LeaseId>& leases) {
    return Ask(session, {.resumes = leases});
  }
  void FillFrom(const Operation& operation) {
    Make(operation);
    for (const Operation::Item& item : operation.items) {
      if (item.fresh) contents[item.segment] = contents.at(*item.tier);
    }
  }
  void Resume(SessionId session, const std::vector<LeaseId>& leases) {
    auto operation = AskResume(session, leases);
    ASSERT_TRUE(Granted(operation)) << operation.status();
    FillFrom(**operation);
    EXPECT_TRUE(ledger.operations().Commit(**operation).ok());
  }
  SegmentId SegmentOf(LeaseId lease) { return ledger.state().leases.at(lease).segment; }
  uint64_t InTier(absl::string_view tenant) { return Usage(tenant, kTierIndex).charged; }
  void ExpectContents() {
    for (const auto& [lease, number] : expected) {
      if (ledger.state().leases.Find(lease) == nullptr) continue;
      EXPECT_EQ(contents.at(SegmentOf(lease)), number) << "of lease " << ToInt(lease);
    }
    for (const auto& [id, publication] : ledger.state().publications) {
      const std::vector<uint64_t>& numbers_of = published_numbers.at(id);
      for (size_t i = 0; i < publication.segments.size(); ++i) {
        EXPECT_EQ(contents.at(publication.segments[i]), numbers_of.at(i))
            << "of publication " << ToInt(id) << ", segment " << i;
      }
    }
  }
  // The daemon is killed, and another one goes on. All processes live, and all memory but
  // `lost_with_daemon`. `devices`: of the new daemon; none: as before.
  Restored Restart(std::vector<DeviceInfo> devices = {}) {
    for (const journal::Change& change : ledger.TakeChanges()) image.Apply(change);
    EXPECT_TRUE(image == ledger.Image()) << "what was recorded is not what there is";
    EXPECT_TRUE(image.CheckReferences().ok()) << image.CheckReferences();
    Survivors survivors;
    for (const auto& [id, session] : image.sessions) {
      survivors.sessions[id] = {
          .peer = {.pid = session.pid, .start_time = session.start_time, .uid = session.uid}};
    }
    for (const auto& [id, segment] : image.segments) {
      const bool dropped = segment.kind == Kind::kTier && segment.scratch;
      if (!dropped && !lost_with_daemon.contains(id)) survivors.memory.insert(id);
    }
    for (const auto& [id, publication] : image.publications) survivors.metadata.insert(id);
    if (devices.empty()) devices = ledger.state().devices;
    std::destroy_at(&ledger);
    std::construct_at(&ledger, devices, Bounds{}, [this] { return now; });
    Restored restored = ledger.Restore(image, survivors);
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    for (const auto& [id, session] : image.sessions) {
      if (!ledger.state().sessions.contains(id)) continue;
      EXPECT_TRUE(ledger.sessions().Resume(id, survivors.sessions.at(id).peer).ok());
    }
    image = ledger.Image();
    ledger.KeepChanges();
    return restored;
  }

  std::set<SegmentId> lost_with_daemon;
  std::map<SegmentId, uint64_t> contents;
  std::map<LeaseId, uint64_t> expected;
  std::map<PublicationId, std::vector<uint64_t>> published_numbers;
  uint64_t numbers = 0;
  uint64_t next_offset = 0;
  JournalImage image;
};

}  // namespace gpumemd
