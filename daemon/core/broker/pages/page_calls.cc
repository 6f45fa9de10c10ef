// SPDX-License-Identifier: Apache-2.0
// How the broker offers tenants' pages to sessions, and keeps them up to date.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/broker/update.h"

namespace gpumemd {
namespace {

// Pages that are refreshed per hold of the mutex, each in time in proportion to the devices.
constexpr size_t kPagesAtOnce = 8;
// Between two rounds over all pages; and for each round as many times as it took, so that thousands
// of pages take a small part of one processor.
constexpr absl::Duration kPause = absl::Milliseconds(1);
constexpr int kPausesPerRound = 10;

}  // namespace

absl::StatusOr<std::vector<std::string>> BrokerTenants::OpenMemoryPage(const BrokerCall& call,
                                                                       Deliver deliver) {
  std::string tenant;
  uid_t uid = 0;
  MemoryPages::Page page;
  {
    TimedLock lock(&broker_.mutex_);
    // A call in flight keeps the record of its session.
    const records::Session& session = *broker_.ledger_.state().sessions.at(call.session());
    tenant = session.tenant->name;
    uid = session.details.peer.uid;
    page = broker_.pages_.Find(tenant);
    absl::Status room = page == nullptr ? broker_.pages_.CheckRoom(uid) : absl::OkStatus();
    if (!room.ok()) return room;
  }
  if (page == nullptr) {
    absl::StatusOr<std::unique_ptr<gpumem::MemoryPageWriter>> made =
        gpumem::MemoryPageWriter::Make();
    if (!made.ok()) return made.status();
    page = *std::move(made);
  }
  std::vector<std::string> uuids;
  {
    Broker::Update update(&broker_);
    if (MemoryPages::Page other = broker_.pages_.Find(tenant); other != nullptr) {
      page = std::move(other);  // that of another call
    } else {
      if (absl::Status room = broker_.pages_.CheckRoom(uid); !room.ok()) return room;
      broker_.pages_.Add(tenant, uid, page);
    }
    broker_.pages_.Use(call.session(), tenant);
    broker_.pages_.Touch(call.session());
    for (const DeviceInfo& device : broker_.ledger_.state().devices) uuids.push_back(device.uuid);
  }
  Handover handover;
  handover.memory_page = page->fd();
  if (absl::Status sent = deliver(handover); !sent.ok()) return sent;
  return uuids;
}

void Broker::PageLoop() {
  while (true) {
    std::vector<MemoryPages::Page> unused;  // destroyed without the mutex
    {
      TimedLock lock(&mutex_);
      const auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || pages_.stale() || pages_.has_unused();
      };
      mutex_.Await(absl::Condition(&wake));
      if (stopping_) return;
      unused = pages_.TakeUnused();
    }
    unused.clear();
    const absl::Time begun = now_();
    std::string last;
    do {
      TimedLock lock(&mutex_);
      last = pages_.RefreshSome(ledger_.state(), last, kPagesAtOnce);
    } while (!last.empty());
    const absl::Duration pause = std::max(kPause, kPausesPerRound * (now_() - begun));
    TimedLock lock(&mutex_);
    const auto stops = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
    if (mutex_.AwaitWithTimeout(absl::Condition(&stops), std::min(pause, absl::Seconds(1)))) return;
  }
}

}  // namespace gpumemd
