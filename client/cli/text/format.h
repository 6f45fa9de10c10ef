// SPDX-License-Identifier: Apache-2.0
// Formats values for people.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "client/cli/views/device_list.h"
#include "common/counted.h"  // re-exported: Counted
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::cli {

// Returns "1.50 GiB"; "1610612736" if `exact`.
std::string Size(uint64_t bytes, bool exact);

// Returns "850ms", "12s", "3m05s", "2h04m", "5d06h".
std::string Age(uint64_t milliseconds);

// Returns "37%" of the whole; "-" if the whole is zero. Only zero is "0%", and only the whole is
// "100%".
std::string Percent(uint64_t part, uint64_t whole);

// Returns a short name that is unambiguous to people and to --device: "0 GPU-8f2b1a30", "2 PINNED".
std::string ShortDevice(const DeviceList& devices, absl::string_view uuid);

// True if that is the host memory of kind pinned; the host tier, with the contents of suspended
// memory; one of both. Limits for devices exclude them.
bool IsPinnedMemory(absl::string_view uuid);
bool IsHostTier(absl::string_view uuid);
bool IsHostMemory(absl::string_view uuid);

// Returns "vmm", "host", …: the word of json.h for the same value.
std::string Word(v1::Kind kind);
std::string Word(v1::Backend backend);
std::string Word(v1::PreloadMode mode);
// Returns "device limit", "capacity", …: the cause of a denial.
std::string CauseWords(v1::Denial::Cause cause);

}  // namespace gpumem::cli
