// SPDX-License-Identifier: Apache-2.0
// Makes the memory of a request, and hands it over to its client.
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/failpoint.h"

namespace gpumemd {

// Makes the fresh segments of an operation. Those made before a failure stay in memory_ for the
// caller's Abort.
absl::Status Broker::Create(const Operation& operation, bool* refused) {
  *refused = false;
  for (const Operation::Item& item : operation.items) {
    if (!item.fresh) continue;
    CreateSpec spec;
    {
      TimedLock lock(&mutex_);
      spec = ledger_.operations().Creation(operation, item);
    }
    absl::StatusOr<std::unique_ptr<Allocation>> memory = devices_[operation.device]->Create(spec);
    if (!memory.ok()) return memory.status();
    if (continuity_ != nullptr && (*memory)->fd() >= 0) {
      Failpoint("keep-before");
      const absl::Status kept = continuity_->Keep(item.segment, (*memory)->fd());
      Failpoint("keep-after");
      if (!kept.ok()) {
        *refused = true;
        return kept;
      }
    }
    Update update(this);
    memory_.emplace(item.segment, *std::move(memory));
    ledger_.operations().Created(item.segment);
  }
  return absl::OkStatus();
}

void Broker::Abort(const Operation& operation, bool handed_over) {
  size_t next = 0;
  for (bool done = false; !done;) {
    Update update(this);
    done = ledger_.operations().Abort(operation, handed_over, next, kLeasesAtOnce);
  }
}

absl::Status Broker::Describe(const Operation& operation, size_t begin, Handover& handover,
                              absl::flat_hash_set<uint64_t>& pools) {
  auto sent = pools_sent_.find(operation.session);
  const size_t end = std::min(begin + kLeasesAtOnce, operation.items.size());
  for (size_t i = begin; i < end; ++i) {
    const Operation::Item& item = operation.items[i];
    const Allocation& memory = *memory_.at(item.segment);
    LeaseView lease = ledger_.look().Describe(item);
    lease.revocable = operation.revocable;
    const std::optional<ExportedPool> pool = memory.pool();
    // The session learns of later losses once it has its lease.
    if (memory.lost() || (TraitsOf(lease.kind).pooled && !pool)) {
      ledger_.segments().MarkLost({item.segment});
      return absl::FailedPreconditionError("the segment is lost: its CUDA context ended");
    }
    lease.export_data = memory.export_data();
    if (pool) {
      lease.pool_id = pool->id;
      const bool has_it = sent != pools_sent_.end() && sent->second.contains(pool->id);
      if (!has_it && pools.insert(pool->id).second) handover.pools.push_back(*pool);
    }
    handover.items.push_back({std::move(lease), memory.fd()});
  }
  return absl::OkStatus();
}

Broker::HandedOver Broker::HandOver(const Operation& operation, Deliver deliver, bool may_block) {
  using Outcome = HandedOver::Outcome;
  Handover handover;
  absl::Cleanup rollback = [&] { Abort(operation, handover.partly_sent); };
  absl::flat_hash_set<uint64_t> pools;
  for (size_t begin = 0; begin < operation.items.size(); begin += kLeasesAtOnce) {
    Update update(this);  // journals that its process may map them
    absl::Status there = Describe(operation, begin, handover, pools);
    if (!there.ok()) return {Outcome::kLost, there};
  }
  Failpoint("deliver-before");
  if (absl::Status sent = deliver(handover); !sent.ok()) {
    const bool would_block = !may_block && absl::IsDeadlineExceeded(sent);
    return {would_block ? Outcome::kWouldBlock : Outcome::kFailed, sent};
  }
  Failpoint("deliver-after");
  std::move(rollback).Cancel();
  std::vector<LeaseView> leases;
  for (Handover::Item& item : handover.items) leases.push_back(std::move(item.lease));
  size_t next = 0;
  for (bool done = false; !done;) {
    Update update(this);
    if (next == 0) {
      for (const ExportedPool& pool : handover.pools) {
        pools_sent_[operation.session].insert(pool.id);
      }
      if (!handover.pools.empty()) ForgetOldPools(operation.session);
    }
    absl::StatusOr<bool> committed = ledger_.operations().Commit(operation, next, kLeasesAtOnce);
    if (!committed.ok()) return {Outcome::kFailed, committed.status()};
    done = *committed;
  }
  return {Outcome::kDone, std::move(leases)};
}

// Forgets pools that are gone: they come and go while a session lives.
void Broker::ForgetOldPools(SessionId session) {
  constexpr size_t kFew = 64;
  absl::flat_hash_set<uint64_t>& sent = pools_sent_[session];
  if (sent.size() <= kFew) return;
  absl::flat_hash_set<uint64_t> living;
  for (const auto& [id, memory] : memory_) {
    if (const std::optional<ExportedPool> pool = memory->pool()) living.insert(pool->id);
  }
  absl::erase_if(sent, [&](uint64_t id) { return !living.contains(id); });
}

}  // namespace gpumemd
