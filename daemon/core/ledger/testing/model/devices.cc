// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/devices.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ledger/testing/model/guarantees.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {
namespace {

bool Makes(const LedgerModel& model, size_t device, Kind kind) {
  for (Kind made : model.devices[device].kinds) {
    if (made == kind) return true;
  }
  return false;
}

}  // namespace

size_t DeviceIndex(const LedgerModel& model, const std::string& uuid) {
  size_t index = 0;
  while (index < model.devices.size() && model.devices[index].uuid != uuid) ++index;
  return index;
}

bool Pinned(const LedgerModel& model, size_t device) {
  return model.devices[device].kinds[0] == Kind::kPinned;
}

Kind KindFor(const LedgerModel& model, const std::string& tenant, const AcquireSpec& spec,
             size_t device) {
  if (spec.kind) return *spec.kind;
  if (Pinned(model, device)) return Kind::kPinned;
  return model.tenants.at(tenant).quota.kind.value_or(model.devices[device].kinds[0]);
}

uint64_t Obtainable(const LedgerModel& model, const std::string& name, size_t device) {
  uint64_t most = UINT64_MAX;
  const auto bound = [&](uint64_t limit, uint64_t held) {
    most = std::min(most, limit > held ? limit - held : 0);
  };
  bound(model.devices[device].capacity_bytes, SumOf(model, "", device, Which::kHeld).bytes);
  uint64_t guaranteed = 0;
  for (const std::string& each : PathOf(model, name)) {
    bound(LimitOn(model, each, device), SumOf(model, each, device, Which::kHeld).bytes);
    const std::optional<uint64_t> total = model.tenants.at(each).quota.total_limit_bytes;
    if (!Pinned(model, device) && total) {
      bound(*total, SumOf(model, each, kUnpinned, Which::kHeld).bytes);
    }
    guaranteed += UnusedGuarantee(model, each, device);
  }
  if (model.tenants.at(name).quota.revocable) return most;
  const uint64_t capacity = model.devices[device].capacity_bytes;
  return std::min(most, guaranteed + capacity - std::min(capacity, Need(model, "", device)));
}

absl::StatusOr<size_t> DeviceFor(const LedgerModel& model, const std::string& tenant,
                                 const AcquireSpec& spec) {
  if (!spec.device_uuid.empty()) {
    if (spec.most_free) return absl::InvalidArgumentError("");
    const size_t device = DeviceIndex(model, spec.device_uuid);
    if (device >= model.devices.size()) return absl::NotFoundError("");
    if (!Makes(model, device, KindFor(model, tenant, spec, device))) {
      return absl::UnimplementedError("");
    }
    return device;
  }
  std::vector<size_t> makers;
  for (const std::string& uuid : spec.among) {
    if (DeviceIndex(model, uuid) >= model.devices.size()) return absl::NotFoundError("");
  }
  for (size_t device = 0; device < model.devices.size(); ++device) {
    bool among = !spec.most_free || spec.among.empty();
    for (const std::string& uuid : spec.among) among |= uuid == model.devices[device].uuid;
    if (among && Makes(model, device, KindFor(model, tenant, spec, 0))) makers.push_back(device);
  }
  if (makers.empty()) return absl::UnimplementedError("");
  if (!spec.most_free) return makers.front();
  // The first of the best.
  return *std::max_element(makers.begin(), makers.end(), [&](size_t a, size_t b) {
    return Obtainable(model, tenant, a) < Obtainable(model, tenant, b);
  });
}

}  // namespace gpumemd::model
