// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/exposition.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace gpumemd {
namespace {

// Seconds of so many nanoseconds, exactly: 25000 is 0.000025.
std::string SecondsText(int64_t ns) {
  constexpr int64_t kPerSecond = 1'000'000'000;
  std::string text = absl::StrCat(ns / kPerSecond);
  if (ns % kPerSecond == 0) return text;
  const std::string digits = absl::StrCat(kPerSecond + ns % kPerSecond);  // 1, and nine digits
  absl::StrAppend(&text, ".", digits.substr(1));
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

absl::string_view TypeName(Exposition::Type type) {
  switch (type) {
    case Exposition::Type::kCounter:
      return "counter";
    case Exposition::Type::kGauge:
      return "gauge";
    case Exposition::Type::kHistogram:
      return "histogram";
  }
  return "untyped";
}

}  // namespace

std::string EscapeLabelValue(absl::string_view value) {
  std::string escaped;
  for (const char c : value) {
    switch (c) {
      case '\\':
        escaped += "\\\\";
        break;
      case '"':
        escaped += "\\\"";
        break;
      case '\n':
        escaped += "\\n";
        break;
      default:
        escaped += absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
    }
  }
  return escaped;
}

void Exposition::Family(absl::string_view name, Type type, absl::string_view help) {
  name_ = std::string(name);
  absl::StrAppend(&text_, "# HELP ", name, " ",
                  absl::StrReplaceAll(help, {{"\\", "\\\\"}, {"\n", "\\n"}}), "\n# TYPE ", name,
                  " ", TypeName(type), "\n");
}

void Exposition::Line(absl::string_view suffix, Labels labels, absl::string_view bound,
                      absl::string_view value) {
  absl::StrAppend(&text_, name_, suffix);
  const char* before = "{";
  for (const auto& [label, text] : labels) {
    absl::StrAppend(&text_, before, label, "=\"", EscapeLabelValue(text), "\"");
    before = ",";
  }
  if (!bound.empty()) {
    absl::StrAppend(&text_, before, "le=\"", bound, "\"");
    before = ",";
  }
  absl::StrAppend(&text_, *before == ',' ? "} " : " ", value, "\n");
}

void Exposition::Sample(Labels labels, uint64_t value) {
  Line("", labels, "", absl::StrCat(value));
}

void Exposition::Seconds(Labels labels, absl::Duration value) {
  Line("", labels, "", SecondsText(absl::ToInt64Nanoseconds(value)));
}

void Exposition::Histogram(Labels labels, const LatencyCounts& counts) {
  uint64_t up_to_here = 0;
  for (size_t i = 0; i < LatencyCounts::kBounds.size(); ++i) {
    up_to_here += counts.buckets[i];
    Line("_bucket", labels, SecondsText(LatencyCounts::kBounds[i]), absl::StrCat(up_to_here));
  }
  const std::string all = absl::StrCat(counts.count());
  Line("_bucket", labels, "+Inf", all);
  Line("_sum", labels, "", SecondsText(absl::ToInt64Nanoseconds(counts.sum)));
  Line("_count", labels, "", all);
}

}  // namespace gpumemd
