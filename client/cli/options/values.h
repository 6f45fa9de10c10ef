// SPDX-License-Identifier: Apache-2.0
// Parsers of values on the command line.
//
// Pure. INVALID_ARGUMENT: a message with the text and the expected form.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/quota_keys.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::cli {

// Returns a parser that accepts these words, in any case, and yields them as they are here.
std::function<absl::StatusOr<std::string>(const std::string&)> OneOfWords(
    std::vector<std::string> words);
absl::StatusOr<absl::Duration> ParseDuration(const std::string& text);          // "10s", or "0s"
absl::StatusOr<absl::Duration> ParsePositiveDuration(const std::string& text);  // "10s"
absl::StatusOr<absl::Duration> ParseWait(const std::string& text);              // or "forever"
// "10m" before `now`, or a time such as "2030-01-31T12:00:00Z".
absl::StatusOr<absl::Time> ParseSince(const std::string& text, absl::Time now);
absl::StatusOr<uint64_t> ParseSize(const std::string& text);              // "1GiB"
absl::StatusOr<uint64_t> ParseSegmentSize(const std::string& text);       // the same; not 0
absl::StatusOr<bool> ParseSwitch(const std::string& text);                // "on", "off"
absl::StatusOr<Kind> ParseKind(const std::string& text);                  // "vmm"
absl::StatusOr<v1::Kind> ParseWireKind(const std::string& text);          // the same
std::string KindWords();                                                  // "vmm|..."
absl::StatusOr<PreloadMode> ParsePreload(const std::string& text);        // "broker"
absl::StatusOr<v1::ReleasePolicy> ParseRelease(const std::string& text);  // "trust"
absl::StatusOr<std::string> ParsePublication(const std::string& text);    // a name
absl::StatusOr<std::string> ParseSlurmJob(const std::string& text);       // "17": its tenant
struct DeviceBytes {
  std::string device;
  uint64_t bytes = 0;
};
absl::StatusOr<DeviceBytes> ParseDeviceBytes(const std::string& text);  // "0=10GiB"

// Returns the name of the option of gpumemctl quota set for a key: "total-limit".
std::string OptionOf(const QuotaKey& key);
// The settable fields of a Quota: option names ("total-limit") to field names
// ("total_limit_bytes").
const std::map<std::string, std::string>& LimitFields();

// Returns the field of a Quota for an option's or a field's name: "total-limit",
// "total_limit_bytes".
absl::StatusOr<std::string> ParseLimitName(const std::string& text);
// Returns the names of the options, as a list for people.
std::string LimitNames();

}  // namespace gpumem::cli
