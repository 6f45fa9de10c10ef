// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/document.h"

#include <map>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace gpumem::web {
namespace {

enum ListIndex { kDevices, kTenants, kSessions, kSegments, kLeases, kPublished, kPublications };
// Parts of identities, beside those.
constexpr int kStatus = -1, kWaiting = -2;

std::string Quoted(absl::string_view text) {
  std::string quoted;
  AppendQuoted(text, &quoted);
  return quoted;
}

template <typename List, typename Key>
void Fill(const List& list, ListIndex index, Key key, StableTimes& times, Document* document) {
  auto& objects = document->lists[index];
  objects.reserve(static_cast<size_t>(list.size()));
  for (const auto& each : list) {
    Document::Object& object = objects.emplace_back();
    object.key = key(each);
    AppendCompact(each, absl::HashOf(index, object.key), times, &object.text);
  }
}

// Returns the tenants as documents have them. What idle tenants could get is left out: it is
// another number after each grant and release of any tenant, so that each change would contain all
// of them.
v1::ListTenantsResponse WithoutIdleNumbers(const v1::ListTenantsResponse& all) {
  v1::ListTenantsResponse tenants = all;
  for (v1::TenantInfo& tenant : *tenants.mutable_tenants()) {
    v1::Usage& usage = *tenant.mutable_usage();
    const bool idle =
        usage.sessions() == 0 && absl::c_none_of(usage.devices(), [](const v1::DeviceUsage& each) {
          return each.charged_bytes() > 0 || each.waiting() > 0;
        });
    if (!idle) continue;
    for (v1::DeviceUsage& each : *usage.mutable_devices()) each.clear_obtainable_bytes();
  }
  return tenants;
}

std::string StatusText(const v1::GetStatusResponse& status, StableTimes& times) {
  v1::GetStatusResponse rest = status;
  rest.clear_devices();
  std::string text;
  AppendCompact(rest, absl::HashOf(kStatus), times, &text);
  return text;
}

std::string WaitingText(const v1::ListWaitingResponse& waiting, StableTimes& times) {
  // Requests have no number. Of those of a session that look the same, the order tells them apart.
  std::map<std::tuple<uint64_t, std::string, int, uint64_t, uint32_t>, int> alike;
  std::string text = "[";
  for (const v1::WaitingInfo& each : waiting.waiting()) {
    if (text.size() > 1) text += ',';
    if (each.session_id() == 0) {  // of a tenant that the viewer may not see
      absl::StrAppend(&text, "{\"tenant\":", Quoted(each.tenant()),
                      ",\"device_uuid\":", Quoted(each.device_uuid()),
                      ",\"position\":", each.position(), "}");
      continue;
    }
    const std::tuple looks(each.session_id(), each.device_uuid(), static_cast<int>(each.kind()),
                           each.bytes(), each.count());
    AppendCompact(each, absl::HashOf(kWaiting, looks, alike[looks]++), times, &text);
  }
  return text + "]";
}

void AppendList(const std::vector<Document::Object>& objects, std::string* json) {
  *json += '[';
  bool first = true;
  for (const Document::Object& each : objects) {
    absl::StrAppend(json, first ? "" : ",", each.text);
    first = false;
  }
  *json += ']';
}

// Appends the changes of a list with its name; nothing if there are none.
void AppendChanges(absl::string_view name, const std::vector<Document::Object>& from,
                   const std::vector<Document::Object>& to, std::string* json) {
  std::string set, gone;
  const auto changed = [&](const Document::Object& object) {
    absl::StrAppend(&set, set.empty() ? "" : ",", object.text);
  };
  // Both have mostly the same order, so the common beginning needs no table.
  size_t same = 0;
  for (; same < from.size() && same < to.size() && from[same].key == to[same].key; ++same) {
    if (from[same].text != to[same].text) changed(to[same]);
  }
  absl::flat_hash_map<absl::string_view, absl::string_view> left;
  left.reserve(from.size() - same);
  for (size_t i = same; i < from.size(); ++i) left.emplace(from[i].key, from[i].text);
  for (size_t i = same; i < to.size(); ++i) {
    const auto found = left.find(to[i].key);
    if (found == left.end()) {
      changed(to[i]);
      continue;
    }
    if (found->second != to[i].text) changed(to[i]);
    left.erase(found);
  }
  for (size_t i = same; i < from.size() && !left.empty(); ++i) {
    if (!left.contains(from[i].key)) continue;
    absl::StrAppend(&gone, gone.empty() ? "" : ",", from[i].key);
  }
  if (set.empty() && gone.empty()) return;
  absl::StrAppend(json, ",\"", name, "\":{");
  if (!set.empty()) absl::StrAppend(json, "\"set\":[", set, "]");
  if (!gone.empty()) absl::StrAppend(json, set.empty() ? "" : ",", "\"gone\":[", gone, "]");
  *json += '}';
}

}  // namespace

Document MakeDocument(const cli::Snapshot& snapshot, absl::string_view sees, StableTimes& times) {
  Document document;
  document.sees = std::string(sees);
  document.status = StatusText(snapshot.status, times);
  Fill(
      snapshot.status.devices(), kDevices,
      [](const v1::Device& each) { return Quoted(each.device_uuid()); }, times, &document);
  const v1::ListTenantsResponse tenants = WithoutIdleNumbers(snapshot.tenants);
  Fill(
      tenants.tenants(), kTenants,
      [](const v1::TenantInfo& each) { return Quoted(each.usage().tenant()); }, times, &document);
  Fill(
      snapshot.sessions.sessions(), kSessions,
      [](const v1::SessionInfo& each) { return absl::StrCat(each.session_id()); }, times,
      &document);
  Fill(
      snapshot.segments.segments(), kSegments,
      [](const v1::SegmentInfo& each) { return absl::StrCat(each.segment_id()); }, times,
      &document);
  Fill(
      snapshot.holders.leases(), kLeases,
      [](const v1::LeaseInfo& each) { return absl::StrCat(each.lease_id()); }, times, &document);
  Fill(
      snapshot.holders.publications(), kPublished,
      [](const v1::PublishedSegments& each) {
        return Quoted(absl::StrCat(each.tenant(), "/", each.name(), "/", each.version()));
      },
      times, &document);
  Fill(
      snapshot.publications.publications(), kPublications,
      [](const v1::PublicationInfo& each) {
        return Quoted(absl::StrCat(each.tenant(), "/", each.name()));
      },
      times, &document);
  document.waiting = WaitingText(snapshot.waiting, times);
  return document;
}

std::string DocumentText(const Document& document, uint64_t number, absl::Time now) {
  size_t bytes = document.status.size() + document.waiting.size() + 1024;
  for (const auto& list : document.lists) {
    for (const Document::Object& each : list) bytes += each.text.size() + 1;
  }
  std::string json;
  json.reserve(bytes);
  absl::StrAppend(&json, "{\"schema_version\":1,\"number\":", number,
                  ",\"time_ms\":", absl::ToUnixMillis(now), ",\"viewer\":{\"sees\":\"",
                  document.sees, "\"},\"status\":", document.status);
  for (size_t i = 0; i < kLists.size(); ++i) {
    absl::StrAppend(&json, ",\"", kLists[i], "\":");
    AppendList(document.lists[i], &json);
  }
  absl::StrAppend(&json, ",\"waiting\":", document.waiting, "}");
  return json;
}

std::optional<std::string> ChangeText(const Document& from, const Document& to, uint64_t number,
                                      absl::Time now) {
  std::string changes;
  if (from.status != to.status) absl::StrAppend(&changes, ",\"status\":", to.status);
  for (size_t i = 0; i < kLists.size(); ++i) {
    AppendChanges(kLists[i], from.lists[i], to.lists[i], &changes);
  }
  if (from.waiting != to.waiting) absl::StrAppend(&changes, ",\"waiting\":", to.waiting);
  if (changes.empty()) return std::nullopt;
  return absl::StrCat("{\"number\":", number, ",\"time_ms\":", absl::ToUnixMillis(now), changes,
                      "}");
}

std::string ServerSentEvent(absl::string_view name, absl::string_view json) {
  return absl::StrCat("event: ", name, "\ndata: ", json, "\n\n");
}

}  // namespace gpumem::web
