// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/history_sampler.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/start_thread.h"
#include "daemon/core/broker/views.h"

namespace gpumemd {

namespace v1 = gpumem::v1;

absl::StatusOr<std::unique_ptr<HistorySampler>> HistorySampler::Start(const Broker* broker) {
  std::unique_ptr<HistorySampler> sampler(new HistorySampler(broker));
  absl::StatusOr<std::thread> thread =
      gpumem::StartThread([sampler = sampler.get()] { sampler->Run(); });
  if (!thread.ok()) return thread.status();
  sampler->thread_ = *std::move(thread);
  return sampler;
}

HistorySampler::~HistorySampler() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const HistorySampler::Measured> HistorySampler::Measure(absl::Duration age) {
  absl::MutexLock lock(&measure_mutex_);
  const absl::Time now = absl::Now();
  const bool is_young = last_ != nullptr && last_->time <= now && now - last_->time < age;
  if (!is_young) {
    last_ = std::make_shared<const Measured>(
        Measured{.time = now, .measures = broker_.views().Measure()});
  }
  return last_;
}

void HistorySampler::Run() {
  while (true) {
    const absl::Time now = absl::Now();
    const Measures measures = broker_.views().Measure();
    {
      // A reader compares the sample with a later measurement, not with one from before it.
      absl::MutexLock lock(&measure_mutex_);
      last_.reset();
    }
    absl::MutexLock lock(&mutex_);
    if (ends_) return;
    history_.Add(now, measures);
    if (mutex_.AwaitWithTimeout(absl::Condition(&ends_), kInterval)) return;
  }
}

absl::StatusOr<v1::GetHistoryResponse> HistorySampler::Read(const v1::GetHistoryRequest& request) {
  std::shared_ptr<const Measured> measured = Measure(kReuse);
  const std::set<std::string> tenants(request.tenants().begin(), request.tenants().end());
  const auto is_there = [&](const std::string& name) {
    const auto& present = measured->measures.tenants;  // by name
    const auto found =
        std::lower_bound(present.begin(), present.end(), name,
                         [](const LedgerMeasures::Tenant& tenant, const std::string& wanted) {
                           return tenant.name < wanted;
                         });
    return found != present.end() && found->name == name;
  };
  // A tenant may have been made since. One that has ended needs no measurement.
  const auto is_known = [&](const std::string& name) {
    if (is_there(name)) return true;
    absl::MutexLock lock(&mutex_);
    return history_.Knows(name);
  };
  if (!std::all_of(tenants.begin(), tenants.end(), is_known)) {
    measured = Measure(absl::ZeroDuration());
  }
  const Measures& measures = measured->measures;
  const absl::Time now = measured->time;
  std::optional<size_t> device;
  if (!request.device_uuid().empty()) {
    const auto& infos = measures.device_infos;
    const auto found = std::find_if(infos.begin(), infos.end(), [&](const DeviceInfo& info) {
      return info.uuid == request.device_uuid();
    });
    if (found == infos.end()) {
      return absl::NotFoundError(absl::StrCat("this node has no device \"", request.device_uuid(),
                                              "\"; gpumemctl devices lists those it has"));
    }
    device = static_cast<size_t>(found - infos.begin());
  }

  v1::GetHistoryResponse response;
  response.set_interval_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(kInterval)));
  response.set_now_unix_ms(absl::ToUnixMillis(now));
  std::vector<HistorySeries> all;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& name : tenants) {
      if (is_there(name) || history_.Knows(name)) continue;
      return absl::NotFoundError(absl::StrCat("there is no tenant \"", name,
                                              "\", and none of this name in the last hour"));
    }
    all = history_.Read(now, measures, tenants, device);
    response.set_since_unix_ms(absl::ToUnixMillis(history_.Since(now)));
  }
  for (const HistorySeries& series : all) {
    v1::TenantHistory& out = *response.add_series();
    out.set_tenant(series.tenant);
    out.set_device_uuid(measures.device_infos[series.device].uuid);
    out.set_cut(series.cut);
    out.mutable_points()->Reserve(static_cast<int>(series.points.size()));
    for (const HistoryPoint& point : series.points) {
      v1::HistoryPoint& shown = *out.add_points();
      shown.set_time_unix_ms(absl::ToUnixMillis(point.time));
      shown.set_charged_bytes(point.values.charged);
      shown.set_limit_bytes(point.values.limit);
      shown.set_guarantee_bytes(point.values.guarantee);
      shown.set_waiting_bytes(point.values.waiting);
      shown.set_leased_bytes(point.values.leased);
    }
  }
  return response;
}

}  // namespace gpumemd
