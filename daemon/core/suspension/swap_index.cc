// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/suspension/swap_index.h"

#include <algorithm>

namespace gpumemd {

void SwapIndex::Remove(OnDevice& on, SessionId session) {
  auto it = on.entries.find(session);
  if (it == on.entries.end()) return;
  const Entry& entry = it->second;
  if (entry.ripe) {
    on.candidates.erase(entry.candidate);
  } else {
    on.later.erase({entry.ready, session});
  }
  on.entries.erase(it);
}

void SwapIndex::Set(size_t device, const SwapCandidate& entry, absl::Time ready) {
  OnDevice& on = devices_[device];
  Remove(on, entry.session);
  on.entries.emplace(entry.session, Entry{.candidate = entry, .ready = ready});
  on.later.emplace(ready, entry.session);
}

void SwapIndex::Remove(SessionId session) {
  for (OnDevice& on : devices_) Remove(on, session);
}

bool SwapIndex::Ripen(absl::Time now, size_t most) {
  bool any = false;
  for (OnDevice& on : devices_) {
    for (size_t i = 0; i < most && !on.later.empty() && on.later.begin()->first <= now; ++i) {
      Entry& entry = on.entries.at(on.later.begin()->second);
      on.later.erase(on.later.begin());
      entry.ripe = true;
      on.candidates.insert(entry.candidate);
      any = true;
    }
  }
  return any;
}

absl::Time SwapIndex::NextReady() const {
  absl::Time next = absl::InfiniteFuture();
  for (const OnDevice& on : devices_) {
    if (!on.later.empty()) next = std::min(next, on.later.begin()->first);
  }
  return next;
}

bool SwapIndex::empty() const {
  return std::all_of(devices_.begin(), devices_.end(),
                     [](const OnDevice& on) { return on.entries.empty(); });
}

}  // namespace gpumemd
