// SPDX-License-Identifier: Apache-2.0
// Configurations in TOML. A text is refused with one sentence, or gives a configuration that can be
// compared, resolved and checked against devices.
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/testing/fuzz/input.h"
#include "daemon/config/config.h"
#include "daemon/device/device.h"

namespace gpumemd {
namespace {

NameLookup Names() {
  return {.user = [](const std::string& name) -> std::optional<uid_t> {
            if (name == "alice") return 1001;
            return std::nullopt;
          },
          .group = [](const std::string& name) -> std::optional<gid_t> {
            if (name == "ml") return 2001;
            return std::nullopt;
          }};
}

std::vector<DeviceInfo> Devices() {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  return {{.uuid = "GPU-a",
           .backend = Backend::kCuda,
           .capacity_bytes = 80 * kGiB,
           .kinds = {Kind::kVmm, Kind::kIpc}},
          {.uuid = "GPU-b", .backend = Backend::kCuda, .capacity_bytes = 1, .kinds = {Kind::kVmm}},
          {.uuid = "PINNED-0", .capacity_bytes = 16 * kGiB, .kinds = {Kind::kPinned}},
          {.uuid = "TIER-0", .capacity_bytes = 64 * kGiB, .kinds = {Kind::kTier}}};
}

void CheckError(const absl::Status& status) {
  FUZZ_CHECK(absl::IsInvalidArgument(status));
  FUZZ_CHECK(absl::StartsWith(status.message(), "gpumemd.toml"));
  FUZZ_CHECK(!absl::StrContains(status.message(), '\n'));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<Config> config = ParseConfig(text, "gpumemd.toml", Names());
  if (!config.ok()) {
    CheckError(config.status());
    return 0;
  }
  FUZZ_CHECK(!config->rules.empty());
  FUZZ_CHECK(ConfigChanges(*config, *config).empty());
  (void)ConfigChanges(DefaultConfig(), *config);
  const std::vector<DeviceInfo> devices = Devices();
  (void)DeviceNotices(*config, devices);
  if (absl::Status checked = CheckGuarantees(*config, devices); !checked.ok()) CheckError(checked);
  for (const TenantConfig& tenant : config->tenants) {
    FUZZ_CHECK(QuotaOf(*config, tenant.name) == tenant.quota);
    (void)ResolveQuota(tenant.quota, devices);
  }
  (void)ResolveQuota(config->tenant_defaults, devices);
  for (const uint64_t memory : {uint64_t{0}, uint64_t{1} << 36, UINT64_MAX}) {
    const absl::StatusOr<uint64_t> pinned = PinnedCapacity(*config, memory);
    FUZZ_CHECK(!pinned.ok() || *pinned <= memory);
    const absl::StatusOr<uint64_t> tier = TierCapacity(*config, memory);
    FUZZ_CHECK(!tier.ok() || *tier <= memory);
  }
  return 0;
}

}  // namespace gpumemd
