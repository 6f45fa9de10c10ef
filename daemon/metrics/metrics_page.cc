// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics_page.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "daemon/metrics/exposition.h"

namespace gpumemd {
namespace {

using Type = Exposition::Type;
using Tenant = LedgerMeasures::Tenant;
using OnDevice = LedgerMeasures::OnDevice;

constexpr const char* kStates[kSegmentStates] = {"pending", "leased", "retained", "lingering",
                                                 "releasing"};

uint64_t Charged(const OnDevice& on) {
  uint64_t bytes = 0;
  for (uint64_t each : on.charged) bytes += each;
  return bytes;
}

uint64_t Charged(const Tenant& tenant) {
  uint64_t bytes = 0;
  for (const OnDevice& on : tenant.devices) bytes += Charged(on);
  return bytes;
}

// True if the tenant has values on the device. Once it had, it stays true, so that a fall to 0 is
// shown.
bool Matters(const OnDevice& on) { return on.ever_charged || on.waiting > 0 || on.unbrokered > 0; }

std::vector<std::pair<Denial::Cause, std::string>> Causes() {
  std::vector<std::pair<Denial::Cause, std::string>> causes;
  for (const Denial::Cause cause : DenialCauses()) {
    causes.emplace_back(cause, absl::StrReplaceAll(NameOf(cause), {{"-", "_"}}));
  }
  return causes;
}

// Writes one number for each of the tenants' devices.
template <typename Value>
void WriteByDevice(Exposition& page, const Measures& measures, const std::vector<Tenant>& tenants,
                   bool always, Value value) {
  for (const Tenant& tenant : tenants) {
    for (size_t i = 0; i < tenant.devices.size(); ++i) {
      const OnDevice& on = tenant.devices[i];
      const uint64_t number = value(on);
      if (!Matters(on) && !always && number == 0) continue;
      page.Sample({{"tenant", tenant.name}, {"device", measures.device_infos[i].uuid}}, number);
    }
  }
}

void WriteTenantsOnDevices(Exposition& page, const Measures& measures,
                           const std::vector<Tenant>& shown, size_t named) {
  page.Family("gpumem_charged_bytes", Type::kGauge,
              "Bytes charged to the tenant and its descendants, by the state of their segments.");
  for (const Tenant& tenant : shown) {
    for (size_t i = 0; i < tenant.devices.size(); ++i) {
      if (!Matters(tenant.devices[i])) continue;
      for (size_t state = 0; state < kSegmentStates; ++state) {
        page.Sample({{"tenant", tenant.name},
                     {"device", measures.device_infos[i].uuid},
                     {"state", kStates[state]}},
                    tenant.devices[i].charged[state]);
      }
    }
  }
  // Limits of several do not add up.
  const std::vector<Tenant> by_name(shown.begin(), shown.begin() + static_cast<ptrdiff_t>(named));
  page.Family("gpumem_quota_limit_bytes", Type::kGauge,
              "Limit of the tenant's memory on the device.");
  WriteByDevice(page, measures, by_name, /*always=*/true,
                [](const OnDevice& on) { return on.limit; });
  page.Family("gpumem_quota_guarantee_bytes", Type::kGauge,
              "Memory that is guaranteed to the tenant on the device.");
  WriteByDevice(page, measures, by_name, /*always=*/true,
                [](const OnDevice& on) { return on.guarantee; });
  page.Family("gpumem_waiting_requests", Type::kGauge,
              "Requests of the tenant and its descendants that wait for memory.");
  WriteByDevice(page, measures, shown, false, [](const OnDevice& on) { return on.waiting; });
  page.Family("gpumem_waiting_bytes", Type::kGauge, "Bytes that those requests wait for.");
  WriteByDevice(page, measures, shown, false, [](const OnDevice& on) { return on.waited_for; });
  page.Family(
      "gpumem_unbrokered_bytes", Type::kGauge,
      "Bytes that processes of the tenant allocated past the broker, as the driver counts them.");
  WriteByDevice(page, measures, shown, false, [](const OnDevice& on) { return on.unbrokered; });
}

void WriteTenants(Exposition& page, const std::vector<Tenant>& shown, size_t named) {
  page.Family("gpumem_tenant_info", Type::kGauge,
              "1 for each tenant that is shown by name; parent is its parent tenant.");
  for (size_t i = 0; i < named; ++i) {
    page.Sample({{"tenant", shown[i].name}, {"parent", shown[i].parent}}, 1);
  }
  const auto write = [&](absl::string_view name, absl::string_view help, auto value) {
    page.Family(name, Type::kGauge, help);
    for (const Tenant& tenant : shown) page.Sample({{"tenant", tenant.name}}, value(tenant));
  };
  write("gpumem_sessions", "Sessions of the tenant and its descendants.",
        [](const Tenant& tenant) { return tenant.sessions; });
  write("gpumem_segments", "Segments charged to the tenant and its descendants.",
        [](const Tenant& tenant) { return tenant.segments; });
  write("gpumem_publications", "Publications of the tenant and its descendants.",
        [](const Tenant& tenant) { return tenant.publications; });
  write("gpumem_demoted_bytes",
        "Bytes of the tenant and its descendants that are in host memory instead of a device's, "
        "mapped at the same addresses.",
        [](const Tenant& tenant) { return tenant.demoted; });
  page.Family("gpumem_denials_total", Type::kCounter,
              "Requests of the tenant that were denied, by cause.");
  const auto causes = Causes();
  for (const Tenant& tenant : shown) {
    for (const auto& [cause, name] : causes) {
      const auto found = tenant.denials.find(cause);
      page.Sample({{"tenant", tenant.name}, {"cause", name}},
                  found == tenant.denials.end() ? 0 : found->second);
    }
  }
}

void WriteDevices(Exposition& page, const MetricsFacts& facts) {
  const std::vector<DeviceInfo>& infos = facts.measures.device_infos;
  page.Family("gpumem_device_info", Type::kGauge,
              "1 for each device: the index and name that go with its UUID.");
  for (size_t i = 0; i < infos.size(); ++i) {
    page.Sample({{"device", infos[i].uuid},
                 {"index", absl::StrCat(i)},
                 {"name", infos[i].name},
                 {"pci_bus_id", infos[i].pci_bus_id}},
                1);
  }
  const auto write = [&](absl::string_view name, Type type, absl::string_view help, auto value) {
    page.Family(name, type, help);
    for (size_t i = 0; i < infos.size(); ++i) page.Sample({{"device", infos[i].uuid}}, value(i));
  };
  write("gpumem_device_capacity_bytes", Type::kGauge,
        "Bytes of the device that the daemon may lease in total.",
        [&](size_t i) { return infos[i].capacity_bytes; });
  write("gpumem_device_charged_bytes", Type::kGauge,
        "Bytes of the device that are charged to tenants, each counted once.",
        [&](size_t i) { return facts.measures.devices[i].charged; });
  write("gpumem_foreign_bytes", Type::kGauge,
        "Bytes of the device that processes without a session hold, as the driver counts them.",
        [&](size_t i) {
          const auto found = facts.foreign_bytes.find(infos[i].uuid);
          return found == facts.foreign_bytes.end() ? 0 : found->second;
        });
  write("gpumem_reclaimed_bytes_total", Type::kCounter,
        "Bytes of the device that were taken back from processes that had ended.",
        [&](size_t i) { return facts.measures.devices[i].reclaimed; });
  write("gpumem_suspended_bytes_total", Type::kCounter,
        "Bytes that were moved from the device to the host tier.",
        [&](size_t i) { return facts.measures.devices[i].suspended; });
  write("gpumem_resumed_bytes_total", Type::kCounter,
        "Bytes that were moved from the host tier to the device.",
        [&](size_t i) { return facts.measures.devices[i].resumed; });
}

void WriteDaemon(Exposition& page, const MetricsFacts& facts) {
  page.Family("gpumem_acquire_seconds", Type::kHistogram,
              "Time from a request for new memory until its client had it, for granted requests.");
  for (const Measures::Acquires& acquires : facts.measures.acquires) {
    page.Histogram(
        {{"kind", KindName(acquires.kind)}, {"waited", acquires.waited ? "true" : "false"}},
        acquires.latency);
  }
  const SwapCounts& swaps = facts.measures.swaps;
  page.Family("gpumem_suspension_requests_total", Type::kCounter,
              "Requests of the daemon that a session suspends: for waiting requests, or since the "
              "session was idle.");
  page.Sample({{"cause", "memory_needed"}}, swaps.asked_for_waiters);
  page.Sample({{"cause", "idle"}}, swaps.asked_idle);
  page.Family("gpumem_suspension_requests_ended_total", Type::kCounter,
              "Such requests that have ended, by what the session did.");
  page.Sample({{"result", "suspended"}}, swaps.suspended);
  page.Sample({{"result", "ignored"}}, swaps.ignored);
  page.Sample({{"result", "refused"}}, swaps.refused);
  page.Sample({{"result", "gone"}}, swaps.gone);
  page.Family("gpumem_suspend_seconds", Type::kHistogram,
              "Time of a Suspend until the contents were in the host tier.");
  page.Histogram({}, facts.measures.suspends);
  page.Family("gpumem_resume_seconds", Type::kHistogram,
              "Time of a Resume until its client had the memory, for granted requests.");
  for (const bool waited : {false, true}) {
    page.Histogram({{"waited", waited ? "true" : "false"}}, facts.measures.resumes[waited ? 1 : 0]);
  }
  page.Family("gpumem_broker_lock_hold_seconds", Type::kHistogram,
              "Time for which a thread of the daemon held the broker's lock.");
  page.Histogram({}, facts.measures.lock_holds);
  page.Family("gpumem_broker_lock_hold_max_seconds", Type::kGauge,
              "Longest time for which a thread held the broker's lock since the daemon started.");
  page.Seconds({}, facts.measures.longest_lock_hold);
  page.Family("gpumem_draining", Type::kGauge, "1 while the daemon refuses new requests.");
  page.Sample({}, facts.measures.draining ? 1 : 0);
  page.Family("gpumem_notices", Type::kGauge, "Notices for the operator in gpumemctl status.");
  page.Sample({}, facts.notices);
  page.Family("gpumem_store_places", Type::kGauge,
              "Places of the service manager's descriptor store; 0 if unknown.");
  page.Sample({}, facts.store_places);
  page.Family("gpumem_store_places_used", Type::kGauge,
              "Places of the service manager's store that the daemon uses, as it counts them.");
  page.Sample({}, facts.store_used);
  page.Family("gpumem_unkept_segments", Type::kGauge,
              "Segments and publications that are lost when the daemon ends, because the service "
              "manager's store had no place for them.");
  page.Sample({}, facts.unkept);
  page.Family("gpumem_log_lines_lost_total", Type::kCounter,
              "Log lines that were dropped because standard error did not take them, or suppressed "
              "because one user caused too many of a kind.");
  page.Sample({{"cause", "dropped"}}, facts.log_dropped);
  page.Sample({{"cause", "suppressed"}}, facts.log_suppressed);
  page.Family("gpumem_spin_seconds_total", Type::kCounter,
              "CPU time that threads have spun while they waited for calls, in seconds.");
  page.Seconds({}, facts.spun);
  page.Family("gpumem_restarts_total", Type::kCounter,
              "Daemons in succession whose state the next daemon restored, after crashes and after "
              "planned restarts.");
  page.Sample({}, facts.generation - 1);
  page.Family("gpumem_build_info", Type::kGauge, "1: the daemon's version and backend.");
  page.Sample(
      {{"version", facts.version}, {"backend", facts.backend == Backend::kCuda ? "cuda" : "host"}},
      1);

  // By the names that every exporter of Prometheus has for them.
  page.Family("process_start_time_seconds", Type::kGauge,
              "Start time of the daemon, in seconds since 1970.");
  page.Seconds({}, facts.started - absl::UnixEpoch());
  page.Family("process_cpu_seconds_total", Type::kCounter, "CPU time of the daemon, in seconds.");
  page.Seconds({}, facts.process.cpu);
  page.Family("process_resident_memory_bytes", Type::kGauge,
              "Resident memory of the daemon, in bytes.");
  page.Sample({}, facts.process.resident_bytes);
  page.Family("process_open_fds", Type::kGauge, "Descriptors that the daemon has open.");
  page.Sample({}, facts.process.open_fds);
  page.Family("process_max_fds", Type::kGauge, "Descriptors that the daemon may have open.");
  page.Sample({}, facts.process.max_fds);
}

}  // namespace

std::string MetricsPage::Write(const MetricsFacts& facts) {
  const std::vector<Tenant> shown = Shown(facts.measures);
  const bool others = !shown.empty() && shown.back().name == kOtherTenants;
  const size_t named = shown.size() - (others ? 1 : 0);
  Exposition page;
  WriteTenantsOnDevices(page, facts.measures, shown, named);
  WriteTenants(page, shown, named);
  WriteDevices(page, facts);
  WriteDaemon(page, facts);
  return page.Take();
}

void MetricsPage::AddToOther(const Tenant& tenant, bool parent_is_there, Tenant& other) {
  for (size_t i = 0; i < tenant.devices.size(); ++i) {
    const OnDevice& on = tenant.devices[i];
    OnDevice& sum = other.devices[i];
    sum.unbrokered += on.unbrokered;
    sum.ever_charged |= on.ever_charged;
    // Then its values are included already.
    if (parent_is_there) continue;
    for (size_t state = 0; state < kSegmentStates; ++state) sum.charged[state] += on.charged[state];
    sum.waiting += on.waiting;
    sum.waited_for += on.waited_for;
  }
  if (parent_is_there) return;
  other.sessions += tenant.sessions;
  other.segments += tenant.segments;
  other.publications += tenant.publications;
  other.demoted += tenant.demoted;
}

std::vector<LedgerMeasures::Tenant> MetricsPage::Shown(const Measures& measures) {
  // The largest first. A tenant has no less than its children, and precedes equals. So no child of
  // a hidden tenant is shown.
  std::map<absl::string_view, absl::string_view> parents;
  for (const Tenant& tenant : measures.tenants) parents[tenant.name] = tenant.parent;
  const auto depth = [&](absl::string_view name) {
    int above = 0;
    for (auto it = parents.find(name); it != parents.end() && !it->second.empty();
         it = parents.find(it->second)) {
      ++above;
    }
    return above;
  };
  std::vector<std::tuple<uint64_t, int, const Tenant*>> order;
  for (const Tenant& tenant : measures.tenants) {
    order.emplace_back(~Charged(tenant), depth(tenant.name), &tenant);  // by name, of the rest
  }
  std::sort(order.begin(), order.end());

  std::vector<Tenant> shown;
  std::set<absl::string_view> hidden;
  Tenant other{.name = std::string(kOtherTenants),
               .devices = std::vector<OnDevice>(measures.device_infos.size())};
  std::map<std::string, Denials> seen;
  for (const auto& [bytes, above, tenant] : order) {
    const Denials before = seen_[tenant->name];
    seen[tenant->name] = tenant->denials;
    if (shown.size() < max_tenants_) {
      shown.push_back(*tenant);
      continue;
    }
    AddToOther(*tenant, hidden.contains(tenant->parent), other);
    hidden.insert(tenant->name);
    for (const auto& [cause, count] : tenant->denials) {
      const auto counted = before.find(cause);
      // Less than before: it was forgotten meanwhile, and has come again.
      const uint64_t old = counted == before.end() || counted->second > count ? 0 : counted->second;
      others_denials_[cause] += count - old;
    }
  }
  seen_ = std::move(seen);
  std::sort(shown.begin(), shown.end(),
            [](const Tenant& a, const Tenant& b) { return a.name < b.name; });
  if (hidden.empty() && others_denials_.empty()) return shown;
  other.denials = others_denials_;
  shown.push_back(std::move(other));
  return shown;
}

}  // namespace gpumemd
