// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/events_view.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gpumem::cli {
namespace {

constexpr size_t kEventWidth = 17;  // "publication-ended"

Style StyleOf(absl::string_view event) {
  for (absl::string_view bad : {"denied", "refused", "lost", "revoked", "signalled", "revoking",
                                "reload-refused", "missed"}) {
    if (event == bad) return Style::kBad;
  }
  for (absl::string_view good : {"granted", "published", "session-opened"}) {
    if (event == good) return Style::kGood;
  }
  return Style::kPlain;
}

Json ValueOf(const v1::EventField& field, const std::string& text) {
  uint64_t number = 0;
  int64_t negative = 0;
  if (field.number() && absl::SimpleAtoi(text, &number)) return number;
  if (field.number() && absl::SimpleAtoi(text, &negative)) return negative;
  return text;
}

}  // namespace

std::vector<Line> EventLines(const v1::EventRecord& record, absl::Time now, absl::TimeZone zone) {
  std::vector<Line> lines;
  if (record.missed() > 0) {
    lines.emplace_back(absl::StrCat("(", record.missed(), " records before this one are gone)"),
                       Style::kBad);
  }
  const absl::Time time = absl::FromUnixNanos(static_cast<int64_t>(record.time_unix_ns()));
  const bool today = absl::ToCivilDay(time, zone) == absl::ToCivilDay(now, zone);
  Line line(absl::FormatTime(today ? "%H:%M:%E3S" : "%Y-%m-%d %H:%M:%E3S", time, zone),
            Style::kDim);
  const std::string& event = record.event();
  line.Add("  ").Add(event, StyleOf(event));
  line.Add(std::string(kEventWidth - std::min(kEventWidth, event.size()) + 2, ' '));
  lines.push_back(std::move(line.Add(record.text())));
  return lines;
}

Json EventJson(const v1::EventRecord& record) {
  Json json = Json::object();
  json["number"] = record.number();
  json["time"] = absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ",
                                  absl::FromUnixNanos(static_cast<int64_t>(record.time_unix_ns())),
                                  absl::UTCTimeZone());
  json["event"] = record.event();
  for (const v1::EventField& field : record.fields()) {
    Json& member = json[field.name()];
    if (field.list()) {
      member = Json::array();
      for (const std::string& value : field.values()) member.push_back(ValueOf(field, value));
    } else if (field.values_size() > 0) {
      member = ValueOf(field, field.values(0));
    }
  }
  if (record.missed() > 0) json["missed_before"] = record.missed();
  json["message"] = record.text();
  return json;
}

}  // namespace gpumem::cli
