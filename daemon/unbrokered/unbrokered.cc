// SPDX-License-Identifier: Apache-2.0
#include "daemon/unbrokered/unbrokered.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpumemd {
namespace {

// In how many samples a use is above the tolerance before it counts.
constexpr int kSamples = 2;

uint64_t Less(uint64_t bytes, uint64_t part) { return bytes > part ? bytes - part : 0; }

}  // namespace

Unbrokered FindUnbrokered(const UnbrokeredInputs& inputs) {
  // The first session of each process as each tenant.
  std::map<std::tuple<pid_t, uint64_t, std::string>, SessionId> first;
  struct Charged {
    SessionId session{};  // the first of these
    uint64_t bytes = 0;
    uint64_t overhead = 0;  // charged as such
    uint64_t beyond = 0;    // what the driver counts beyond `bytes`
  };
  std::map<std::tuple<pid_t, uint64_t, std::string>, Charged> charged;  // by process and device
  for (const SessionProcess& session : inputs.sessions) {
    if (session.pid <= 0 || session.start_time == 0) continue;
    for (const auto& [device, bytes] : session.driver_bytes) {
      Charged& there = charged[{session.pid, session.start_time, device}];
      there.bytes += bytes;
      if (there.session == SessionId{} || session.session < there.session)
        there.session = session.session;
    }
    auto [it, added] =
        first.try_emplace({session.pid, session.start_time, session.tenant}, session.session);
    if (!added) it->second = std::min(it->second, session.session);
  }

  Unbrokered found;
  for (const SessionProcess& session : inputs.sessions) {
    for (const auto& [device, bytes] : session.overhead_bytes) {
      const auto own = charged.find({session.pid, session.start_time, device});
      if (own != charged.end() && own->second.session == session.session) {
        own->second.overhead = bytes;
      } else {
        // It charges nothing any more, or another session of its process does so first.
        found.overheads.push_back(
            {.session = session.session, .device_uuid = device, .charged = bytes});
      }
    }
  }
  for (const DeviceProcess& process : inputs.processes) {
    auto mapped = inputs.mapped.find({process.pid, process.device_uuid});
    const uint64_t brokered = mapped == inputs.mapped.end() ? 0 : mapped->second;
    const auto own = charged.find({process.pid, process.start_time, process.device_uuid});
    const uint64_t used = Less(process.bytes.value_or(0), brokered);
    uint64_t known = inputs.allowance;
    if (own != charged.end()) {
      own->second.beyond = Less(used, own->second.bytes);
      known += own->second.bytes + own->second.overhead;
    }
    const uint64_t bytes = Less(used, known);
    bool ours = false;
    for (auto it = first.lower_bound({process.pid, process.start_time, ""}); it != first.end();
         ++it) {
      const auto& [pid, start_time, tenant] = it->first;
      if (pid != process.pid || start_time != process.start_time) break;
      ours = true;
      if (bytes == 0) continue;
      found.uses.push_back({.session = it->second,
                            .tenant = tenant,
                            .device_uuid = process.device_uuid,
                            .pid = pid,
                            .start_time = start_time,
                            .command = process.command,
                            .bytes = bytes});
    }
    if (!ours) found.foreign.push_back(process);
  }
  for (const auto& [key, there] : charged) {
    found.overheads.push_back({.session = there.session,
                               .device_uuid = std::get<2>(key),
                               .bytes = there.beyond,
                               .charged = there.overhead});
  }
  return found;
}

void SteadyOverheads::Settle(std::vector<OverheadUse>& overheads,
                             const std::set<std::string>& unanswered) {
  std::map<Key, uint64_t> last;
  std::erase_if(overheads, [&](const OverheadUse& use) {
    if (!unanswered.contains(use.device_uuid)) return false;
    if (auto it = last_.find({use.session, use.device_uuid}); it != last_.end()) last.insert(*it);
    return true;
  });
  for (OverheadUse& use : overheads) {
    const Key key = {use.session, use.device_uuid};
    const auto it = last_.find(key);
    const uint64_t before = it == last_.end() ? use.charged : it->second;
    last.emplace(key, use.bytes);
    uint64_t sorted[] = {before, use.bytes, use.charged};
    std::sort(std::begin(sorted), std::end(sorted));
    use.bytes = sorted[1];
  }
  last_ = std::move(last);
}

UnbrokeredOffenders::Change UnbrokeredOffenders::Observe(absl::Span<const UnbrokeredUse> uses,
                                                         uint64_t tolerance) {
  Change change;
  std::map<Key, Entry> above;
  for (const UnbrokeredUse& use : uses) {
    if (use.bytes <= tolerance) continue;
    auto before = above_.find(KeyOf(use));
    const int samples = before == above_.end() ? 1 : before->second.samples + 1;
    if (samples == kSamples) change.began.push_back(use);
    above.insert_or_assign(KeyOf(use), Entry{use, samples});
  }
  for (const auto& [key, entry] : above_) {
    if (entry.samples >= kSamples && above.count(key) == 0) change.ended.push_back(entry.use);
  }
  above_ = std::move(above);
  return change;
}

bool UnbrokeredOffenders::Contains(const UnbrokeredUse& use) const {
  auto it = above_.find(KeyOf(use));
  return it != above_.end() && it->second.samples >= kSamples;
}

}  // namespace gpumemd
