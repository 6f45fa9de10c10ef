// Values as people read them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "client/cli/views/device_list.h"
#include "common/counted.h"  // found as Counted from here, too
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::cli {

// "1.50 GiB"; "1610612736" where `exact`.
std::string Size(uint64_t bytes, bool exact);

// "850ms", "12s", "3m05s", "2h04m", "5d06h".
std::string Age(uint64_t milliseconds);

// "37%" of the whole; "-" where the whole is zero. More than nothing is never "0%", less
// than all never "100%".
std::string Percent(uint64_t part, uint64_t whole);

// A short name that is unambiguous to people and to --device: "0 GPU-8f2b1a30",
// "2 PINNED".
std::string ShortDevice(const DeviceList& devices, absl::string_view uuid);

// Whether that is the host memory of kind pinned, which limits for devices do not count.
bool IsPinnedMemory(absl::string_view uuid);

// "vmm", "host", …: what json.h says for the same value.
std::string Word(v1::Kind kind);
std::string Word(v1::Backend backend);
// "device limit", "capacity", …: what was in the way.
std::string CauseWords(v1::Denial::Cause cause);

}  // namespace gpumem::cli
