// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/store_places.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

// Places of the store that are not for memory: two journals, two listening sockets, a probe, and
// one to spare.
constexpr uint64_t kOtherPlaces = 6;
// For how long its refusal of a crate holds.
constexpr std::chrono::seconds kRefusalHolds(1);

// Returns the number of descriptors that the manager takes directly.
uint64_t DirectRoom(const FdStore& store) {
  if (store.keeper_pid() == 0) return 0;
  const uint64_t capacity = store.capacity().value_or(0);
  const uint64_t places = capacity - std::min(capacity, kOtherPlaces);
  return places - places / 16 * 2;  // crates have the others: two places, 32 segments
}

}  // namespace

StorePlaces::StorePlaces(FdStore& store)
    : store_(store), crates_(store), direct_room_(DirectRoom(store)) {}

void StorePlaces::AdoptDirect(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  direct_.insert(name);
}

uint64_t StorePlaces::used() const {
  absl::MutexLock lock(&mutex_);
  return kOtherPlaces + direct_.size() + 2 * crates_.crates();
}

bool StorePlaces::HasPlace() const {
  absl::MutexLock lock(&mutex_);
  return direct_.size() < direct_room_ || !crates_.full();
}

StorePlaces::Outcome StorePlaces::CheckPlacesOfACrate() {
  const std::optional<uint64_t> capacity = store_.capacity();
  if (capacity && kOtherPlaces + direct_room_ + 2 * (crates_.crates() + 1) > *capacity) {
    return {.status = absl::ResourceExhaustedError(absl::StrCat(
                "all ", *capacity, " places of the service manager's store are taken")),
            .full = true};
  }
  // The announced capacity may be wrong: the unit's beside FileDescriptorStoreMax=, or of an older
  // systemd none. Three places: both ends of the crate, and the probe of the next one.
  const absl::Status room = store_.CheckRoomNow(3, kAnswerTime);
  // One that is busy: its word has to do.
  if (absl::IsDeadlineExceeded(room) && capacity) return {};
  return {.status = room, .full = absl::IsResourceExhausted(room)};
}

StorePlaces::Outcome StorePlaces::MakeRoom() {
  absl::MutexLock lock(&crates_mutex_);
  // Another has made one meanwhile, or something was let go.
  if (!crates_.full()) return {};
  if (!no_crate_.status.ok() && std::chrono::steady_clock::now() < ask_again_) return no_crate_;
  no_crate_ = CheckPlacesOfACrate();
  if (no_crate_.status.ok()) no_crate_.status = crates_.AddCrate(kAnswerTime);
  ask_again_ = std::chrono::steady_clock::now() + kRefusalHolds;
  return no_crate_;
}

bool StorePlaces::TakeDirectPlace(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  if (direct_.size() >= direct_room_) return false;
  direct_.insert(name);
  return true;
}

StorePlaces::Outcome StorePlaces::Put(const std::string& name, int fd) {
  if (TakeDirectPlace(name)) {
    const absl::Status stored = store_.Store(name, fd);
    if (stored.ok()) return {};
    absl::MutexLock lock(&mutex_);
    direct_.erase(name);
    return {.status = stored};
  }
  while (true) {
    const absl::StatusOr<bool> stored = crates_.StoreInRoom(name, fd);
    if (!stored.ok() || *stored) return {.status = stored.status()};
    if (Outcome made = MakeRoom(); !made.status.ok()) return made;
  }
}

StorePlaces::Removal StorePlaces::Remove(absl::Span<const std::string> names) {
  Removal removal;
  std::vector<std::string> direct;
  for (const std::string& name : names) {
    {
      absl::MutexLock lock(&mutex_);
      if (direct_.contains(name)) {
        direct.push_back(name);
        continue;
      }
    }
    const absl::Status one = crates_.Remove(name);
    removal.freed |= one.ok();
    if (!absl::IsNotFound(one)) removal.status.Update(one);
  }
  if (!direct.empty()) {
    const absl::Status gone = store_.RemoveAndWait(direct);
    removal.status.Update(gone);
    if (gone.ok()) {
      absl::MutexLock lock(&mutex_);
      for (const std::string& name : direct) direct_.erase(name);
      removal.freed = true;
    }
  }
  return removal;
}

}  // namespace gpumemd
