// SPDX-License-Identifier: Apache-2.0
// The keys of a tenant's quota, one row each. The daemon (configuration, protocol, operators'
// changes) and gpumemctl (options, views) loop over the rows. The values are members of
// gpumemd::Quota (daemon/core/quota/quota.h), which names them as this table does.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace gpumem {

enum class QuotaUnit {
  kBytes,        // uint64
  kDeviceBytes,  // bytes on single devices, by UUID
  kCount,        // uint32
  kNumber,       // int32
  kSwitch,       // bool
  kKind,
  kRelease,
  kPreload,
  kDuration,  // uint64, in milliseconds; a day at most
  kTenant,    // the parent: only the configuration sets it
};

struct QuotaKey {
  // Name and number of the field in gpumem.v1.Quota. JSON, the audit and overrides use the name.
  absl::string_view field;
  int number;
  // Name in the configuration; with '-' for '_' also the option of gpumemctl quota set and unset.
  // For kDeviceBytes the option alone: the configuration has [[tenant.device]].
  absl::string_view key;
  QuotaUnit unit;
  absl::string_view help;              // of gpumemctl quota set
  absl::string_view help_off = {};     // kSwitch: of its option --no-KEY
  absl::string_view share_of = {};     // kBytes: the configuration also takes a percentage of this
  absl::string_view all_devices = {};  // kDeviceBytes: field whose change removes these values
  int32_t least = 0, most = 0;         // kNumber: the range
  // Label of its row in gpumemctl quota get; empty: no row.
  absl::string_view row = {};
  // Field of gpumem.v1.Usage that it limits; empty: none. "devices": its bytes of host memory.
  absl::string_view usage = {};
  // True: no row without usage and limit; for other settings, none of a tenant that is not
  // swappable, unless an operator has set it: it holds for sessions that offer themselves.
  bool hidden_if_unused = false;
};

// In the order of gpumemctl quota set --help.
inline constexpr QuotaKey kQuotaKeys[] = {
    {.field = "limit_bytes",
     .number = 1,
     .key = "limit",
     .unit = QuotaUnit::kBytes,
     .help = "Limit bytes on each device",
     .share_of = "the device"},
    {.field = "total_limit_bytes",
     .number = 2,
     .key = "total_limit",
     .unit = QuotaUnit::kBytes,
     .help = "Limit bytes on all devices together",
     .row = "bytes on all devices",
     .usage = "charged_bytes"},
    {.field = "pinned_limit_bytes",
     .number = 8,
     .key = "pinned_limit",
     .unit = QuotaUnit::kBytes,
     .help = "Limit bytes of pinned host memory",
     .share_of = "the pinned capacity",
     .row = "bytes of pinned host memory",
     .usage = "devices"},
    {.field = "tier_limit_bytes",
     .number = 19,
     .key = "tier_limit",
     .unit = QuotaUnit::kBytes,
     .help = "Limit bytes of suspended memory in the host tier",
     .share_of = "the host tier's capacity",
     .row = "bytes in the host tier",
     .usage = "devices",
     .hidden_if_unused = true},
    {.field = "max_retained_bytes",
     .number = 6,
     .key = "max_retained",
     .unit = QuotaUnit::kBytes,
     .help = "Limit retained bytes on each device",
     .share_of = "the device",
     .row = "retained bytes on each device"},
    {.field = "max_segments",
     .number = 3,
     .key = "max_segments",
     .unit = QuotaUnit::kCount,
     .help = "Limit segments",
     .row = "segments",
     .usage = "segments"},
    {.field = "max_sessions",
     .number = 4,
     .key = "max_sessions",
     .unit = QuotaUnit::kCount,
     .help = "Limit sessions",
     .row = "sessions",
     .usage = "sessions"},
    {.field = "max_in_flight",
     .number = 5,
     .key = "max_in_flight",
     .unit = QuotaUnit::kCount,
     .help = "Limit calls in flight",
     .row = "calls in flight",
     .usage = "in_flight"},
    {.field = "devices",
     .number = 7,
     .key = "device",
     .unit = QuotaUnit::kDeviceBytes,
     .help = "Limit bytes on one device",
     .all_devices = "limit_bytes"},
    {.field = "guarantee_bytes",
     .number = 9,
     .key = "guarantee",
     .unit = QuotaUnit::kBytes,
     .help = "Guarantee bytes on each GPU",
     .share_of = "the device"},
    {.field = "guarantees",
     .number = 10,
     .key = "device_guarantee",
     .unit = QuotaUnit::kDeviceBytes,
     .help = "Guarantee bytes on one GPU",
     .all_devices = "guarantee_bytes"},
    {.field = "priority",
     .number = 11,
     .key = "priority",
     .unit = QuotaUnit::kNumber,
     .help = "Serve higher priorities first (-1000 to 1000)",
     .least = -1000,
     .most = 1000,
     .row = "priority"},
    {.field = "max_waiting",
     .number = 12,
     .key = "max_waiting",
     .unit = QuotaUnit::kCount,
     .help = "Limit requests that wait for memory",
     .row = "requests that wait",
     .usage = "waiting"},
    {.field = "max_publications",
     .number = 18,
     .key = "max_publications",
     .unit = QuotaUnit::kCount,
     .help = "Limit publications",
     .row = "publications",
     .usage = "publications",
     .hidden_if_unused = true},
    {.field = "scrub",
     .number = 13,
     .key = "scrub",
     .unit = QuotaUnit::kSwitch,
     .help = "Never reuse memory with its old contents",
     .help_off = "Reuse memory within the tenant as it is",
     .row = "scrub"},
    {.field = "revocable",
     .number = 14,
     .key = "revocable",
     .unit = QuotaUnit::kSwitch,
     .help = "Make all leases revocable",
     .help_off = "Make only leases revocable that request it",
     .row = "revocable"},
    {.field = "swappable",
     .number = 20,
     .key = "swappable",
     .unit = QuotaUnit::kSwitch,
     .help = "Ask sessions to suspend when others need their memory",
     .help_off = "Ask only sessions that offer it",
     .row = "swappable",
     .hidden_if_unused = true},
    {.field = "min_residence_ms",
     .number = 21,
     .key = "min_residence",
     .unit = QuotaUnit::kDuration,
     .help = "Ask a session no earlier after it resumed (10s)",
     .row = "minimum residence",
     .hidden_if_unused = true},
    {.field = "idle_suspend_ms",
     .number = 22,
     .key = "idle_suspend",
     .unit = QuotaUnit::kDuration,
     .help = "Ask a session that was idle for as long (0s: never)",
     .row = "suspend when idle for",
     .hidden_if_unused = true},
    {.field = "parent",
     .number = 17,
     .key = "parent",
     .unit = QuotaUnit::kTenant,
     .help = "",
     .row = "under tenant"},
    {.field = "kind",
     .number = 15,
     .key = "kind",
     .unit = QuotaUnit::kKind,
     .help = "Use this kind for requests that name none",
     .row = "kind"},
    {.field = "release",
     .number = 16,
     .key = "release",
     .unit = QuotaUnit::kRelease,
     .help = "Trust releases, or charge until process exit",
     .row = "release"},
    {.field = "preload",
     .number = 23,
     .key = "preload",
     .unit = QuotaUnit::kPreload,
     .help = "Give unmodified programs memory in this way",
     .row = "preload"},
};

// Returns the row with that field or key; null if there is none.
constexpr const QuotaKey* FindQuotaKey(absl::string_view name) {
  for (const QuotaKey& key : kQuotaKeys) {
    if (key.field == name || key.key == name) return &key;
  }
  return nullptr;
}

}  // namespace gpumem
