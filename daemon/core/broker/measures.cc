#include <algorithm>

#include "daemon/core/broker/broker.h"

namespace gpumemd {

Measures Broker::Measure() const {
  Measures measures;
  for (const auto& device : devices_) measures.device_infos.push_back(device->info());
  {
    TimedLock lock(&mutex_);
    static_cast<LedgerMeasures&>(measures) = ledger_.look().Measure();
  }
  HoldTimes times = mutex_.Read();
  measures.lock_holds = times.holds;
  measures.longest_lock_hold = times.longest;
  for (size_t i = 0; i < kKinds; ++i) {
    const Kind kind = gpumem::kKindTable[i].kind;
    const bool made = std::any_of(
        measures.device_infos.begin(), measures.device_infos.end(), [&](const DeviceInfo& info) {
          return std::find(info.kinds.begin(), info.kinds.end(), kind) != info.kinds.end();
        });
    if (!made) continue;
    for (const bool waited : {false, true}) {
      measures.acquires.push_back(
          {.kind = kind, .waited = waited, .latency = acquires_[i][waited ? 1 : 0].Read()});
    }
  }
  return measures;
}

void Broker::CountGrant(const Acquisition& acquisition, const std::vector<LeaseView>& leases) {
  if (leases.empty()) return;
  acquires_[IndexOf(leases.front().kind)][acquisition.waited ? 1 : 0].Observe(now_() -
                                                                              acquisition.begun);
}

}  // namespace gpumemd
