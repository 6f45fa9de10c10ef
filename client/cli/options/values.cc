// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/values.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/bytes.h"
#include "common/kind.h"
#include "common/kind_proto.h"

namespace gpumem::cli {
namespace {

absl::StatusOr<SegmentKind> KindNamed(const std::string& text) {
  const KindTraits* const row = FindKind(text);
  if (row != nullptr && IsAcquirable(*row)) return row->kind;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a kind (expected one of ", ListKinds(", ", ", "), ")"));
}

}  // namespace

std::string OptionOf(const QuotaKey& key) { return absl::StrReplaceAll(key.key, {{"_", "-"}}); }

const std::map<std::string, std::string>& LimitFields() {
  static const auto& fields = *[] {
    auto* map = new std::map<std::string, std::string>;
    for (const QuotaKey& key : kQuotaKeys) {
      if (key.unit != QuotaUnit::kTenant) map->emplace(OptionOf(key), key.field);
    }
    return map;
  }();
  return fields;
}

std::function<absl::StatusOr<std::string>(const std::string&)> OneOfWords(
    std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text) -> absl::StatusOr<std::string> {
    for (const std::string& word : words) {
      if (absl::EqualsIgnoreCase(word, text)) return word;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not one of ", absl::StrJoin(words, ", ")));
  };
}

absl::StatusOr<std::string> ParseSlurmJob(const std::string& text) {
  const bool number = !text.empty() && text.size() <= 10 &&
                      std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (number) return absl::StrCat("job-", text);  // as gpumem-slurm names it
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\" is not the number of a job (expected $SLURM_JOB_ID, such as 17; "
                   "of an element of an array: sacct -X -j 17_3 -o JobIDRaw)"));
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a duration (expected one such as 10s, 1m30s, 500ms)"));
  }
  return duration;
}

absl::StatusOr<absl::Duration> ParsePositiveDuration(const std::string& text) {
  absl::StatusOr<absl::Duration> duration = ParseDuration(text);
  if (!duration.ok() || *duration > absl::ZeroDuration()) return duration;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a duration (expected one such as 10s, 1m30s, 500ms)"));
}

absl::StatusOr<absl::Duration> ParseWait(const std::string& text) {
  if (text == "forever") return absl::InfiniteDuration();
  absl::StatusOr<absl::Duration> duration = ParsePositiveDuration(text);
  if (duration.ok()) return duration;
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is not a duration (expected one such as 10s, 1m30s, 500ms, or forever)"));
}

absl::StatusOr<absl::Time> ParseSince(const std::string& text, absl::Time now) {
  const absl::StatusOr<absl::Duration> ago = ParsePositiveDuration(text);
  if (ago.ok()) return now - *ago;
  absl::Time time;
  std::string error;
  if (absl::ParseTime(absl::RFC3339_full, text, &time, &error) && time <= now) return time;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\" is not a past time (expected one such as 10m, 1h30m or "
                   "2030-01-31T12:00:00Z)"));
}

absl::StatusOr<uint64_t> ParseSize(const std::string& text) { return ParseBytes(text); }

absl::StatusOr<uint64_t> ParseSegmentSize(const std::string& text) {
  absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  if (bytes.ok() && *bytes == 0) {
    return absl::InvalidArgumentError("a segment needs at least one byte");
  }
  return bytes;
}

absl::StatusOr<bool> ParseSwitch(const std::string& text) {
  if (text != "on" && text != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a switch (expected on or off)"));
  }
  return text == "on";
}

absl::StatusOr<Kind> ParseKind(const std::string& text) {
  absl::StatusOr<SegmentKind> kind = KindNamed(text);
  if (!kind.ok()) return kind.status();
  return static_cast<Kind>(*kind);
}

std::string KindWords() { return ListKinds("|", "|"); }

absl::StatusOr<v1::ReleasePolicy> ParseRelease(const std::string& text) {
  if (text == "trust") return v1::RELEASE_POLICY_TRUST;
  if (text == "on-exit") return v1::RELEASE_POLICY_ON_EXIT;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a release policy (expected trust or on-exit)"));
}

absl::StatusOr<PreloadMode> ParsePreload(const std::string& text) {
  if (text == "account") return PreloadMode::kAccount;
  if (text == "broker") return PreloadMode::kBroker;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a mode (expected account or broker)"));
}

absl::StatusOr<v1::Kind> ParseWireKind(const std::string& text) {
  absl::StatusOr<SegmentKind> kind = KindNamed(text);
  if (!kind.ok()) return kind.status();
  return ToProto(*kind);
}

absl::StatusOr<std::string> ParsePublication(const std::string& text) {
  bool fits = !text.empty() && text.size() <= 64;
  for (const char c : text) {
    fits = fits &&
           (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-');
  }
  if (fits) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\" is not a publication's name (expected 1 to 64 letters, digits, '.', "
                   "'_' and '-')"));
}

absl::StatusOr<DeviceBytes> ParseDeviceBytes(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == 0 || equals == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not a device's limit (expected DEVICE=BYTES such as 0=10GiB)"));
  }
  absl::StatusOr<uint64_t> bytes = ParseBytes(text.substr(equals + 1));
  if (!bytes.ok()) return bytes.status();
  return DeviceBytes{text.substr(0, equals), *bytes};
}

std::string LimitNames() {
  return absl::StrJoin(LimitFields(), ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first);
  });
}

absl::StatusOr<std::string> ParseLimitName(const std::string& text) {
  for (const auto& [option, field] : LimitFields()) {
    if (text == option || text == field) return field;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a limit (expected one of ", LimitNames(), ")"));
}

}  // namespace gpumem::cli
