// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit/audit_text.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace gpumemd {
namespace {

using Json = nlohmann::ordered_json;

std::string TimeOf(const AuditRecord& record) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", record.time, absl::UTCTimeZone());
}

Json ValueOf(const AuditField& field, const std::string& text) {
  uint64_t number = 0;
  if (field.number && absl::SimpleAtoi(text, &number)) return number;
  return text;
}

// NAME=VALUE; or for a value with several lines NAME, its size in 64 bits, and the value.
void AppendField(absl::string_view name, absl::string_view value, std::string* entry) {
  if (value.find('\n') == absl::string_view::npos) {
    absl::StrAppend(entry, name, "=", value, "\n");
    return;
  }
  absl::StrAppend(entry, name, "\n");
  for (int shift = 0; shift < 64; shift += 8) {
    entry->push_back(static_cast<char>(static_cast<uint64_t>(value.size()) >> shift & 0xff));
  }
  absl::StrAppend(entry, value, "\n");
}

}  // namespace

std::string ToJson(const AuditRecord& record) {
  Json json = {{"time", TimeOf(record)},
               {"number", record.number},
               {"event", std::string(NameOf(record.event))}};
  for (const AuditField& field : FieldsOf(record)) {
    Json& value = json[std::string(field.name)];
    if (field.list) {
      value = Json::array();
      for (const std::string& each : field.values) value.push_back(ValueOf(field, each));
    } else {
      value = ValueOf(field, field.values.front());
    }
  }
  json["message"] = Tell(record);
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string ToJournal(const AuditRecord& record) {
  const AuditKind& kind = KindOf(record.event);
  std::string entry;
  AppendField("MESSAGE", Tell(record), &entry);
  AppendField("MESSAGE_ID", kind.message_id, &entry);
  AppendField("PRIORITY", absl::StrCat(kind.priority), &entry);
  AppendField("SYSLOG_IDENTIFIER", "gpumemd", &entry);
  AppendField("GPUMEM_EVENT", kind.name, &entry);
  AppendField("GPUMEM_TIME", TimeOf(record), &entry);
  AppendField("GPUMEM_NUMBER", absl::StrCat(record.number), &entry);
  for (const AuditField& field : FieldsOf(record)) {
    const std::string name = absl::StrCat("GPUMEM_", absl::AsciiStrToUpper(field.name));
    for (const std::string& each : field.values) AppendField(name, each, &entry);
  }
  return entry;
}

}  // namespace gpumemd
