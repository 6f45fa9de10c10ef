// SPDX-License-Identifier: Apache-2.0
// The operations of Mixed, but those that only count and connect.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "gpumem/demote.h"
#include "gpumem/suspend.h"
#include "tests/soak/mixed.h"

namespace gpumem::soak {
namespace {

using absl::StatusCode;

constexpr absl::Duration kWait = absl::Milliseconds(200);
constexpr uint64_t kMostBlocks = 16;
constexpr uint64_t kSlots = 16;  // of the mailbox

}  // namespace

// --- Memory --------------------------------------------------------------------------------------

void Mixed::Acquire() { Hold(client_->Acquire({.bytes = Bytes()}), "acquire"); }

void Mixed::AcquireMany() {
  auto segments = client_->AcquireMany({.bytes = Bytes()}, 2 + static_cast<int>(Random(6)));
  if (!tally_.Count("acquire-many", segments.status())) return;
  for (Segment& segment : *segments) Hold(std::move(segment), "segment");
}

void Mixed::AcquireOtherKind() {
  static const std::vector<std::pair<Kind, std::string>> kinds = {{Kind::kDriver, "driver"},
                                                                  {Kind::kPinned, "pinned"},
                                                                  {Kind::kMempool, "mempool"},
                                                                  {Kind::kIpc, "ipc"}};
  const auto& [kind, name] = kinds[Random(kinds.size())];
  // Memory of mempool and ipc is lost with its daemon, and the host backend has neither.
  auto segment = client_->Acquire({.bytes = Bytes(), .kind = kind});
  if (!tally_.Count(
          absl::StrCat("acquire-", name), segment.status(),
          {StatusCode::kUnimplemented, StatusCode::kNotFound, StatusCode::kFailedPrecondition})) {
    return;
  }
  if (kind == Kind::kPinned) {
    Keep(*std::move(segment));
  } else {
    tally_.Count("release", segment->Release());
  }
}

// More than the tenant may have: it waits, and then is refused, or is cancelled.
void Mixed::Wait() {
  const auto usage = client_->GetMemory(device_uuid_);
  if (!usage.ok()) return;
  AcquireOptions options = {.bytes = std::max(usage->free_bytes + kMiB, kMiB), .wait = kWait};
  options.bytes = std::min(options.bytes, usage->limit_bytes);
  if (options.bytes == 0) return;
  if (Random(2) == 0) {
    auto segment = client_->Acquire(options);
    if (tally_.Count("wait", segment.status())) tally_.Count("release", segment->Release());
    return;
  }
  options.cancel = CancelToken();
  std::thread cancels([token = *options.cancel] {
    absl::SleepFor(kWait / 4);
    token.Cancel();
  });
  auto segment = client_->Acquire(options);
  cancels.join();
  if (segment.status().code() == StatusCode::kCancelled) {
    tally_.Add("cancel");
  } else if (tally_.Count("wait", segment.status())) {
    tally_.Count("release", segment->Release());
  }
}

void Mixed::ReleaseAny() {
  if (!held_.empty()) Release(Random(held_.size()));
}

// --- Sharing -------------------------------------------------------------------------------------

// The ticket is left for other workers, with the seed of the contents.
void Mixed::Share() {
  const Held* const held = AnyHeld();
  if (held == nullptr || held->segment.suspended() || held->segment.demoted()) return;
  const auto ticket = held->segment.Share();
  if (!tally_.Count("share", ticket.status())) return;
  const std::string path = MailboxOf(Random(kSlots));
  const std::string next = absl::StrCat(path, ".", getpid());
  std::ofstream(next) << ticket->value << " " << held->seed;
  rename(next.c_str(), path.c_str());
}

void Mixed::Open() {
  std::string ticket;
  uint64_t seed = 0;
  if (!(std::ifstream(MailboxOf(Random(kSlots))) >> ticket >> seed)) return;
  // The lease may have ended, or be suspended.
  auto segment = client_->Open(ticket, {.read_only = true});
  if (!tally_.Count("open", segment.status(),
                    {StatusCode::kNotFound, StatusCode::kFailedPrecondition})) {
    return;
  }
  const absl::Status same = CheckBeginning(*segment, seed);
  if (!same.ok()) tally_.Wrong(absl::StrCat("opened memory: ", same.ToString()));
  tally_.Count("release", segment->Release());
}

void Mixed::Publish() {
  const Held* const held = AnyHeld();
  if (held == nullptr) return;
  const std::string name = Name("soak");
  const auto version = client_->Publish(
      name, absl::MakeConstSpan(&held->segment, 1),
      {.metadata = absl::StrCat(held->seed, " ", std::string(Random(2000), 'm')),
       .ephemeral = Random(2) == 0,
       .expire_after = Random(2) == 0 ? absl::Seconds(20) : absl::InfiniteDuration()});
  // Suspended and demoted memory cannot be published, nor that of other kinds.
  if (tally_.Count("publish", version.status(), {StatusCode::kFailedPrecondition})) {
    names_.push_back(name);
  }
}

void Mixed::Attach() {
  auto attached = client_->Attach(Name("soak"), {.wait = absl::ZeroDuration()});
  if (!tally_.Count("attach", attached.status(),
                    {StatusCode::kNotFound, StatusCode::kDeadlineExceeded})) {
    return;
  }
  uint64_t seed = 0;
  const std::vector<std::string> words = absl::StrSplit(attached->metadata(), ' ');
  const absl::Status same = absl::SimpleAtoi(words[0], &seed)
                                ? CheckBeginning(attached->segments().at(0), seed)
                                : absl::DataLossError("the metadata is another");
  if (!same.ok()) tally_.Wrong(absl::StrCat("attached memory: ", same.ToString()));
  tally_.Count("release", attached->Release());
}

void Mixed::Unpublish() {
  if (names_.empty()) return;
  tally_.Count("unpublish", client_->Unpublish(names_.back()).status(), {StatusCode::kNotFound});
  names_.pop_back();
}

// Half of the claims are given up by their end, the others by a publication.
void Mixed::AttachOrClaim() {
  const std::string name = Name("claimed");
  auto result = client_->AttachOrClaim(name, absl::StrCat("content-", Random(2)), {.wait = kWait});
  if (!tally_.Count("claim", result.status(), {StatusCode::kDeadlineExceeded})) return;
  if (result->attachment.valid()) {
    tally_.Add("claim-attach");
    return;
  }
  if (Random(2) == 0) return;
  auto segment = client_->Acquire({.bytes = 64 * 1024});
  if (!tally_.Count("acquire", segment.status())) return;
  const auto version =
      client_->Publish(name, absl::MakeConstSpan(&*segment, 1),
                       {.content_id = result->claim.content_id(), .ephemeral = true});
  tally_.Count("claim-published", version.status());
}

// --- Moving --------------------------------------------------------------------------------------

void Mixed::Suspend() {
  Held* const held = AnyHeld();
  if (held == nullptr || held->segment.kind() != Kind::kVmm || held->segment.demoted()) return;
  Segment* const segment = &held->segment;
  // Others may use the memory, which then stays; or it is revoked, or lost.
  if (!segment->suspended() &&
      !tally_.Count("suspend", client_->Suspend({segment}), {StatusCode::kFailedPrecondition})) {
    return;
  }
  if (Random(4) == 0) return;  // it is released while suspended, or resumed by a later step
  tally_.Count("resume", client_->Resume({segment}, {.wait = kWait}));
}

void Mixed::Demote() {
  Held* const held = AnyHeld();
  if (held == nullptr || held->segment.kind() != Kind::kVmm || held->segment.suspended()) return;
  Segment* const segment = &held->segment;
  if (!tally_.Count("demote", client_->Demote({segment}),
                    {StatusCode::kFailedPrecondition, StatusCode::kUnimplemented})) {
    return;
  }
  tally_.Count("promote", client_->Promote({segment}, {.wait = kWait}),
               {StatusCode::kFailedPrecondition});
  // What has no room on its device any more is released, since other operations refuse it.
  if (segment->demoted()) Release(static_cast<size_t>(held - held_.data()));
}

// --- Pools ---------------------------------------------------------------------------------------

void Mixed::UsePool() {
  if (pool_ == nullptr) {
    auto pool = Pool::Create(client_, {.limit_bytes = 16 * kMiB, .grow_bytes = 2 * kMiB});
    if (tally_.Count("pool", pool.status())) pool_ = *std::move(pool);
    return;
  }
  if (Random(30) == 0) {
    while (!blocks_.empty()) {
      tally_.Count("pool-free", pool_->Free(blocks_.front(), nullptr));
      blocks_.pop_front();
    }
    pool_.reset();
    return;
  }
  for (int i = 0; i < 8; ++i) {
    if (Random(2) == 0 && blocks_.size() < kMostBlocks) {
      auto block = pool_->Allocate(512 << Random(12), nullptr);
      if (tally_.Count("pool-allocate", block.status())) blocks_.push_back(*block);
    } else if (!blocks_.empty()) {
      tally_.Count("pool-free", pool_->Free(blocks_.front(), nullptr));
      blocks_.pop_front();
    }
  }
}

void Mixed::SharePool() {
  if (blocks_.empty()) return;
  const auto ticket = pool_->Share(blocks_.front());
  if (!tally_.Count("pool-share", ticket.status())) return;
  tally_.Count("pool-open", OpenBlock(*client_, ticket->value).status());
}

void Mixed::SuspendPool() {
  if (pool_ == nullptr) return;
  if (!tally_.Count("pool-suspend", pool_->Suspend(), {StatusCode::kFailedPrecondition})) return;
  if (tally_.Count("pool-resume", pool_->Resume({.wait = absl::Seconds(1)}))) return;
  // Without room the blocks are given up.
  blocks_.clear();
  pool_.reset();
}

// --- Others --------------------------------------------------------------------------------------

void Mixed::Ask() {
  tally_.Count("usage", client_->GetUsage().status());
  tally_.Count("memory", client_->GetMemory(device_uuid_).status());
  tally_.Count("devices", client_->Devices().status());
  tally_.Count("list-publications", client_->ListPublications().status());
}

void Mixed::Events() {
  const std::string name = absl::StrCat("event-", Random(4));
  if (Random(2) == 0) {
    auto event = client_->CreateEvent({.name = name});
    if (!tally_.Count("event", event.status(),
                      {StatusCode::kAlreadyExists, StatusCode::kUnimplemented})) {
      return;
    }
    tally_.Count("event-record", event->Record(nullptr));
    return;
  }
  tally_.Count("event-open", client_->OpenEvent(name).status(),
               {StatusCode::kNotFound, StatusCode::kUnimplemented, StatusCode::kPermissionDenied,
                StatusCode::kFailedPrecondition});
}

void Mixed::Watch() {
  auto watch =
      client_->StartWatch({.pressure = [this](const Pressure&) { tally_.Add("pressure"); },
                           .quota_changed = [this](const Quota&) { tally_.Add("quota"); }});
  if (!tally_.Count("watch", watch.status())) return;
  absl::SleepFor(kWait / 4);
}

void Mixed::MakeTenant() {
  const auto name = client_->CreateTenant({.limits = {.limit_bytes = 4 * kMiB}});
  if (!tally_.Count("tenant", name.status())) return;
  ConnectOptions inside = options_.connect;
  inside.tenant = *name;
  auto client = Client::Connect(inside);
  if (tally_.Count("connect", client.status())) {
    tally_.Count("acquire", (*client)->Acquire({.bytes = 64 * 1024}).status());
    client->reset();
  }
  tally_.Count("end-tenant", client_->EndTenant(*name).status());
}

}  // namespace gpumem::soak
