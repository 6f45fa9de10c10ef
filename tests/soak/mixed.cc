// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/mixed.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "tests/support/cut_streams.h"
#include "tests/support/pattern.h"

namespace gpumem::soak {
namespace {

constexpr size_t kMostHeld = 10;
constexpr uint64_t kBeginning = 16 * 1024;

testing::Memory BeginningOf(const Segment& segment) {
  testing::Memory memory = testing::MemoryOf(segment);
  memory.size = std::min(memory.size, kBeginning);
  return memory;
}

}  // namespace

absl::Status FillBeginning(const Segment& segment, uint64_t seed) {
  return testing::Fill(BeginningOf(segment), seed);
}
absl::Status CheckBeginning(const Segment& segment, uint64_t seed) {
  return testing::Check(BeginningOf(segment), seed);
}

const std::vector<std::string>& MixedOperations() {
  static const auto* const names = new std::vector<std::string>{
      "acquire",       "acquire-many", "acquire-driver", "acquire-pinned", "wait",
      "wait-refused",  "cancel",       "release",        "share",          "open",
      "publish",       "attach",       "unpublish",      "claim",          "claim-published",
      "claim-attach",  "suspend",      "resume",         "demote",         "promote",
      "pool-allocate", "pool-free",    "pool-share",     "pool-open",      "pool-suspend",
      "pool-resume",   "usage",        "memory",         "devices",        "list-publications",
      "event",         "watch",        "tenant",         "end-tenant",     "cut",
      "reconnect",     "check"};
  return *names;
}

const std::vector<Mixed::Choice>& Mixed::Choices() {
  static const auto* const choices = new std::vector<Choice>{
      {120, &Mixed::Acquire},   {15, &Mixed::AcquireMany},   {25, &Mixed::AcquireOtherKind},
      {15, &Mixed::Wait},       {140, &Mixed::ReleaseAny},   {40, &Mixed::Share},
      {60, &Mixed::Open},       {25, &Mixed::Publish},       {40, &Mixed::Attach},
      {10, &Mixed::Unpublish},  {20, &Mixed::AttachOrClaim}, {15, &Mixed::Suspend},
      {10, &Mixed::Demote},     {80, &Mixed::UsePool},       {15, &Mixed::SharePool},
      {8, &Mixed::SuspendPool}, {30, &Mixed::Ask},           {10, &Mixed::Events},
      {6, &Mixed::Watch},       {6, &Mixed::MakeTenant},     {4, &Mixed::Cut},
      {4, &Mixed::Reconnect}};
  return *choices;
}

Mixed::Mixed(Options options, Tally& tally)
    : options_(std::move(options)), tally_(tally), random_(options_.seed) {}

Mixed::~Mixed() {
  pool_.reset();
  held_.clear();
}

bool Mixed::Connect() {
  auto client = Client::Connect(options_.connect);
  if (!tally_.Count("connect", client.status())) return false;
  client_ = *std::move(client);
  auto devices = client_->Devices();
  if (!tally_.Count("devices", devices.status()) || devices->empty()) return false;
  for (const DeviceInfo& device : *devices) {
    const auto& kinds = device.kinds;
    if (std::find(kinds.begin(), kinds.end(), Kind::kVmm) == kinds.end()) continue;
    device_uuid_ = device.uuid;
    if (device.backend != Backend::kCuda || context_ != nullptr) break;
    auto context = DeviceCopier::ForCuda(device.uuid);
    if (!tally_.Count("context", context.status())) return false;
    context_ = *std::move(context);
    break;
  }
  return !device_uuid_.empty();
}

void Mixed::Step() {
  // A session that a daemon ended for good cannot go on: a worker that was stopped for long.
  if (client_ == nullptr && !Connect()) return;
  int sum = 0;
  for (const Choice& choice : Choices()) sum += choice.weight;
  int left = static_cast<int>(Random(static_cast<uint64_t>(sum)));
  for (const Choice& choice : Choices()) {
    left -= choice.weight;
    if (left >= 0) continue;
    (this->*choice.operation)();
    return;
  }
}

void Mixed::End() {
  blocks_.clear();
  pool_.reset();
  while (!held_.empty()) Release(held_.size() - 1);
  while (!names_.empty()) Unpublish();
  client_.reset();
}

uint64_t Mixed::held_bytes() const {
  uint64_t bytes = pool_ != nullptr ? pool_->Stats().reserved_bytes : 0;
  for (const Held& held : held_) bytes += held.segment.size();
  return bytes;
}

uint64_t Mixed::Bytes() {
  constexpr uint64_t kSizes[] = {4096, 64 * 1024, 64 * 1024, 256 * 1024, kMiB, 2 * kMiB};
  return kSizes[Random(std::size(kSizes))];
}

// One of a few names, which come again and again.
std::string Mixed::Name(absl::string_view what) { return absl::StrCat(what, "-", Random(6)); }

std::string Mixed::MailboxOf(uint64_t slot) const {
  return absl::StrCat(options_.mailbox, "/", options_.connect.tenant, "-", slot);
}

Mixed::Held* Mixed::AnyHeld() { return held_.empty() ? nullptr : &held_[Random(held_.size())]; }

void Mixed::Keep(Segment segment) {
  const uint64_t seed = random_();
  const absl::Status filled = FillBeginning(segment, seed);
  if (!filled.ok()) tally_.Wrong(absl::StrCat("fill: ", filled.ToString()));
  held_.push_back({std::move(segment), seed});
}

void Mixed::Hold(absl::StatusOr<Segment> segment, const std::string& what) {
  if (tally_.Count(what, segment.status())) Keep(*std::move(segment));
  while (held_.size() > kMostHeld) Release(Random(held_.size()));
}

void Mixed::Release(size_t which) {
  std::swap(held_[which], held_.back());
  Held& last = held_.back();
  if (!last.segment.suspended() && last.segment.kind() != Kind::kDriver) {
    const absl::Status same = CheckBeginning(last.segment, last.seed);
    if (!same.ok()) tally_.Wrong(absl::StrCat("memory of a lease: ", same.ToString()));
    tally_.Add("check");
  }
  tally_.Count("release", last.segment.Release());
  held_.pop_back();
}

void Mixed::Cut() {
  tally_.Add("cut");
  testing::CutStreams();
}

void Mixed::Reconnect() {
  End();
  if (Connect()) tally_.Add("reconnect");
}

}  // namespace gpumem::soak
