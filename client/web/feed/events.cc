// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/events.h"

#include <algorithm>
#include <array>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/web/feed/compact.h"

namespace gpumem::web {
namespace {

// Fields that name nothing of other tenants in a record about a visible one. A field that is added
// later is not told until it is added here, or has a condition below.
constexpr std::array<absl::string_view, 19> kHarmless = {
    "tenant",  "session", "pid",      "uid",    "client", "command", "rule",
    "call",    "device",  "kind",     "bytes",  "count",  "lease",   "cause",
    "content", "asked",   "resident", "signal", "of"};

const std::string* ValueOf(const v1::EventRecord& record, absl::string_view name) {
  for (const v1::EventField& field : record.fields()) {
    if (field.name() == name && field.values_size() > 0) return &field.values(0);
  }
  return nullptr;
}

void AppendValue(const v1::EventField& field, const std::string& value, std::string* json) {
  uint64_t number = 0;
  int64_t negative = 0;
  if (field.number() && absl::SimpleAtoi(value, &number)) {
    absl::StrAppend(json, number);
  } else if (field.number() && absl::SimpleAtoi(value, &negative)) {
    absl::StrAppend(json, negative);
  } else {
    AppendQuoted(value, json);
  }
}

}  // namespace

std::string EventText(const v1::EventRecord& record) {
  std::string json =
      absl::StrCat("{\"number\":", record.number(),
                   ",\"time_ms\":", record.time_unix_ns() / 1'000'000, ",\"event\":");
  AppendQuoted(record.event(), &json);
  json += ",\"text\":";
  AppendQuoted(record.text(), &json);
  if (const std::string* tenant = ValueOf(record, "tenant")) {
    json += ",\"tenant\":";
    AppendQuoted(*tenant, &json);
  }
  if (record.missed() > 0) absl::StrAppend(&json, ",\"missed\":", record.missed());
  json += ",\"fields\":{";
  bool first = true;
  for (const v1::EventField& field : record.fields()) {
    if (!first) json += ',';
    first = false;
    AppendQuoted(field.name(), &json);
    json += ':';
    if (!field.list()) {
      AppendValue(field, field.values_size() > 0 ? field.values(0) : "", &json);
      continue;
    }
    json += '[';
    for (int i = 0; i < field.values_size(); ++i) {
      if (i > 0) json += ',';
      AppendValue(field, field.values(i), &json);
    }
    json += ']';
  }
  return json + "}}";
}

std::string EventsFailedText(const absl::Status& why, absl::Time now) {
  v1::EventRecord record;
  record.set_time_unix_ns(static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixNanos(now))));
  record.set_event("events-unavailable");
  record.set_text(absl::StrCat("events are missing: ",
                               absl::IsResourceExhausted(why)
                                   ? "the daemon has too many readers of events"
                                   : "the daemon does not send them",
                               "; gpumem-web tries again"));
  return EventText(record);
}

std::optional<v1::EventRecord> FilteredEvent(const v1::EventRecord& record,
                                             const VisibleTenants* shown) {
  const std::string* tenant = ValueOf(record, "tenant");
  if (tenant == nullptr) return std::nullopt;
  if (shown == nullptr) return record;
  const VisibleTenants& visible = *shown;
  const std::string* uid = ValueOf(record, "uid");
  const bool by_viewer = uid != nullptr && *uid == absl::StrCat(visible.uid());
  const auto time_ms = static_cast<int64_t>(record.time_unix_ns() / 1'000'000);
  const auto is_own = [&](absl::string_view name) {
    return visible.contains(name) && time_ms >= visible.since_ms(name);
  };
  if (!is_own(*tenant) && !by_viewer) return std::nullopt;

  const auto is_foreign = [&](absl::string_view name) { return name != *tenant && !is_own(name); };
  const auto names_foreign = [&](absl::string_view field) {
    const std::string* name = ValueOf(record, field);
    return name != nullptr && is_foreign(*name);
  };
  // Memory of another tenant on which the viewer's process has a lease; a limit of a tenant above.
  const bool others_memory = names_foreign("owner");
  const bool others_limit = names_foreign("limited");
  // The use of a limit includes tenants under the one that has it.
  const std::string* limited = ValueOf(record, "limited");
  const bool others_use =
      others_limit || visible.has_hidden(limited != nullptr ? *limited : *tenant);
  const std::string* publication = ValueOf(record, "publication");
  const bool others_publication =
      publication != nullptr && is_foreign(publication->substr(0, publication->rfind('/')));
  const auto is_visible = [&](absl::string_view field) {
    if (field == "owner" || field == "segment") return !others_memory;
    if (field == "used") return !others_use;
    if (field == "limited" || field == "limit") return !others_limit;
    if (field == "publication" || field == "version") return !others_publication;
    return absl::c_linear_search(kHarmless, field);
  };

  v1::EventRecord result = record;
  result.clear_fields();
  result.clear_missed();  // they may be of other tenants
  bool whole = true;
  for (const v1::EventField& field : record.fields()) {
    if (is_visible(field.name())) {
      *result.add_fields() = field;
    } else {
      whole &= field.name() == "why";
    }
  }
  // The sentence has all fields in it, the reason at its end.
  absl::string_view text = record.text();
  const std::string* why = ValueOf(record, "why");
  if (why != nullptr) whole &= absl::ConsumeSuffix(&text, absl::StrCat(": ", *why));
  result.set_text(whole ? std::string(text) : absl::StrCat(record.event(), ": tenant ", *tenant));
  return result;
}

}  // namespace gpumem::web
