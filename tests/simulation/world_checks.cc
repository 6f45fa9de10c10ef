// SPDX-License-Identifier: Apache-2.0
// What must hold after every step of a simulation.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/journal/table.h"
#include "daemon/core/ledger/ledger.h"
#include "tests/simulation/world.h"

namespace gpumemd {

// Reads a broker's ledger while none of its threads runs.
class BrokerPeer {
 public:
  static const Ledger& LedgerOf(const Broker& broker) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return broker.ledger_;
  }
};

namespace simulation {

void World::CheckAll(bool full) {
  if (violation()) return;
  if (daemon_ == nullptr || !daemon_->serves() || daemon_->frozen()) return;
  if (full) {
    const absl::Status whole = BrokerPeer::LedgerOf(daemon_->broker()).CheckInvariants();
    if (!whole.ok()) return hall_.Violate(absl::StrCat("the ledger: ", whole.message()));
  }
  uint64_t memory = Mix(store_.batches, driver_.all().size());
  for (size_t device = 0; device < surroundings_.gpus; ++device) {
    memory = Mix(memory, driver_.used(device));
  }
  if (std::exchange(checked_memory_, memory) != memory || full) CheckMemory();
  if (full) CheckMappings();
  if (full) CheckJournal();
}

// Every driver allocation is charged, as one segment, and every segment that is made has one.
void World::CheckMemory() {
  const LedgerState& state = BrokerPeer::LedgerOf(daemon_->broker()).state();
  for (size_t device = 0; device < surroundings_.gpus; ++device) {
    if (driver_.used(device) > state.charged(device)) {
      return hall_.Violate(absl::StrCat("device ", device, " has ", driver_.used(device),
                                        " bytes, and ", state.charged(device), " are charged"));
    }
  }
  std::map<SegmentId, const Memory*> there;
  for (const auto& [fd, weak] : driver_.all()) {
    const MemoryPtr memory = weak.lock();
    if (!memory->segment) continue;  // it is being made
    const auto segment = state.segments.find(*memory->segment);
    const std::string name = absl::StrCat("the memory of segment ", ToInt(*memory->segment));
    if (segment == state.segments.end()) {
      return hall_.Violate(absl::StrCat(name, " exists, and is charged to no tenant"));
    }
    if (segment->second->charge.bytes() != memory->bytes ||
        segment->second->device != memory->device) {
      return hall_.Violate(absl::StrCat(name, " is charged with another size or device"));
    }
    if (memory->shown && !segment->second->shared_out) {
      return hall_.Violate(absl::StrCat(name, " was another tenant's, and is not marked so"));
    }
    if (!there.emplace(*memory->segment, memory.get()).second) {
      return hall_.Violate(absl::StrCat(name, " exists twice"));
    }
  }
  for (const auto& [id, segment] : state.segments) {
    if (segment->device >= surroundings_.gpus || !segment->made || segment->lost) continue;
    if (segment->charge.state() == SegmentState::kReleasing || there.contains(id)) continue;
    return hall_.Violate(absl::StrCat("segment ", ToInt(id), " is charged and has no memory"));
  }
}

// What a process maps is charged, and its session counts as one that may map it.
void World::CheckMappings() {
  const LedgerState& state = BrokerPeer::LedgerOf(daemon_->broker()).state();
  for (const auto& client : clients_) {
    client->Verify();
    for (const auto& [id, held] : client->held()) {
      if (held.memory == nullptr) continue;
      const auto segment = state.segments.find(held.segment);
      if (segment == state.segments.end() ||
          !segment->second->exposures.contains(client->session())) {
        return hall_.Violate(absl::StrCat("process ", client->pid(), " maps segment ",
                                          ToInt(held.segment), ", which does not count as mapped"));
      }
      if (held.memory->segment && *held.memory->segment != held.segment) {
        return hall_.Violate(absl::StrCat("the memory of segment ", ToInt(held.segment),
                                          " is that of segment ", ToInt(*held.memory->segment)));
      }
    }
  }
}

// The journal says what the ledger says, and a daemon that begins with it ends with the same.
void World::CheckJournal() {
  if (std::exchange(checked_batches_, store_.batches) == store_.batches) return;
  const absl::StatusOr<JournalContents> contents = ReadJournal(store_.journal);
  if (!contents.ok()) {
    return hall_.Violate(absl::StrCat("the journal: ", contents.status().ToString()));
  }
  const Ledger& ledger = BrokerPeer::LedgerOf(daemon_->broker());
  JournalImage present = ledger.Image();
  // Numbers that were taken since the last batch, and that no object has yet, are not journaled.
  if (check_ != Check::kFull) present.counters = contents->image.counters;
  if (!(contents->image == present)) return hall_.Violate("the journal differs from the ledger");
  if (const absl::Status whole = contents->image.CheckReferences(); !whole.ok()) {
    return hall_.Violate(absl::StrCat("the journal: ", whole.message()));
  }
  const auto restore = [&](const JournalImage& image) -> JournalImage {
    Ledger next(ledger.state().devices, surroundings_.bounds, [this] { return surroundings_.now; });
    next.tenants().Configure(surroundings_.tenants, Quota(), {});
    Survivors survivors;
    for (const auto& [id, session] : image.sessions) {
      const auto process = surroundings_.alive.find(session.pid);
      if (process != surroundings_.alive.end()) survivors.sessions[id] = process->second;
    }
    for (const auto& [id, segment] : image.segments) survivors.memory.insert(id);
    for (const auto& [id, publication] : image.publications) survivors.metadata.insert(id);
    next.Restore(image, survivors);
    if (const absl::Status whole = next.CheckInvariants(); !whole.ok()) {
      hall_.Violate(absl::StrCat("a restored ledger: ", whole.message()));
    }
    return next.Image();
  };
  const JournalImage once = restore(contents->image);
  if (violation()) return;
  if (!(restore(once) == once)) hall_.Violate("restoring a restored state changes it");
}

// Nothing is under way: clients and ledger agree about every lease.
void World::CheckIdle() {
  if (daemon_ == nullptr || !daemon_->serves()) return hall_.Violate("there is no daemon");
  const LedgerState& state = BrokerPeer::LedgerOf(daemon_->broker()).state();
  if (!state.waiters.empty()) return hall_.Violate("a request waits that no client has");
  if (state.open_operations > 0) return hall_.Violate("an operation is left open");
  for (const auto& client : clients_) {
    if (!client->alive() || client->session() == SessionId{}) continue;
    const auto session = state.sessions.find(client->session());
    if (session == state.sessions.end()) continue;
    std::set<LeaseId> leases(session->second->leases.begin(), session->second->leases.end());
    for (const auto& [id, held] : client->held()) {
      if (leases.erase(id) == 0) {
        return hall_.Violate(absl::StrCat("client ", client->pid(), " has lease ", ToInt(id),
                                          ", and the ledger does not"));
      }
    }
    if (!leases.empty()) {
      return hall_.Violate(absl::StrCat("the ledger has lease ", ToInt(*leases.begin()),
                                        " for client ", client->pid(), ", which does not have it"));
    }
  }
}

// All processes and publications have ended: all memory is back.
void World::CheckEmpty() {
  if (daemon_ == nullptr || !daemon_->serves()) return hall_.Violate("there is no daemon");
  const LedgerState& state = BrokerPeer::LedgerOf(daemon_->broker()).state();
  if (!state.sessions.empty()) return hall_.Violate("a session is left");
  if (!state.segments.empty()) {
    return hall_.Violate(
        absl::StrCat("segment ", ToInt(state.segments.begin()->first), " is left"));
  }
  if (!driver_.all().empty()) return hall_.Violate("memory is left on a device");
  if (!store_.memory.empty()) return hall_.Violate("a descriptor is left in the store");
  if (!store_.metadata.empty()) return hall_.Violate("metadata is left in the store");
}

void World::AddToDigest() {
  digest_ = Mix(digest_, store_.batches);
  for (size_t device = 0; device < surroundings_.gpus; ++device) {
    digest_ = Mix(digest_, driver_.used(device));
  }
  if (daemon_ != nullptr) digest_ = Mix(digest_, daemon_->fibers().size());
}

}  // namespace simulation
}  // namespace gpumemd
