// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/host_memory.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "daemon/config/forms.h"

namespace gpumemd {
namespace {

constexpr char kMachine[] = "the machine's memory";

absl::StatusOr<uint64_t> CapacityOf(const SizeLimit& size, uint64_t memory_bytes,
                                    absl::string_view what, absl::string_view section) {
  const uint64_t capacity = size.Of(memory_bytes);
  if (capacity <= memory_bytes) return capacity;
  return absl::InvalidArgumentError(
      absl::StrCat("the configuration sets ", gpumem::FormatBytes(capacity), " of ", what,
                   ", and this machine has ", gpumem::FormatBytes(memory_bytes),
                   " of memory; write a smaller [", section, "] capacity, or a percentage"));
}

}  // namespace

void ReadHost(const toml::value& table, Mistakes* mistakes, Config* config) {
  TableReader reader(table, "host", mistakes);
  reader.Read("devices", CountForm(1, 64), &config->host_devices);
  reader.Read("device_bytes", BytesForm(), &config->host_device_bytes);
  if (config->host_device_bytes == 0) {
    reader.Complain(*reader.Find("device_bytes"), "device_bytes", "a device has at least one byte");
  }
  reader.Finish();
}

void ReadPinned(const toml::value& table, Mistakes* mistakes, SizeLimit* capacity) {
  TableReader reader(table, "pinned", mistakes);
  reader.Read("capacity", SizeLimitForm(kMachine), capacity);
  reader.Finish();
}

void ReadTier(const toml::value& table, Mistakes* mistakes, TierConfig* config) {
  TableReader reader(table, "tier", mistakes);
  reader.Read("capacity", SizeLimitForm(kMachine), &config->capacity);
  reader.Read("huge_pages", BoolForm(), &config->huge_pages);
  reader.Read("prefault", BoolForm(), &config->prefault);
  reader.Finish();
}

absl::StatusOr<uint64_t> PinnedCapacity(const Config& config, uint64_t memory_bytes) {
  return CapacityOf(config.pinned_capacity, memory_bytes, "pinned memory", "pinned");
}

absl::StatusOr<uint64_t> TierCapacity(const Config& config, uint64_t memory_bytes) {
  return CapacityOf(config.tier.capacity, memory_bytes, "the host tier", "tier");
}

}  // namespace gpumemd
