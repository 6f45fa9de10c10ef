// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/json_reader.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace gpumem::kubernetes {
namespace {

constexpr int kMostLevels = 20'000;  // Kubernetes reads 10,000

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text, size_t most_bytes, int most_depth) {
  if (text.size() > most_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("JSON of ", text.size(), " bytes; at most ", most_bytes, " are read"));
  }
  bool absurd = false;
  Json json = Json::parse(
      text.begin(), text.end(),
      [&](int depth, Json::parse_event_t event, const Json& value) {
        absurd = absurd || depth > kMostLevels;
        // Larger than the rest of most objects, and of no use here.
        const bool useless = event == Json::parse_event_t::key && value == "managedFields";
        return depth <= most_depth && !useless;
      },
      /*allow_exceptions=*/false);
  if (absurd) {
    return absl::ResourceExhaustedError(absl::StrCat("JSON of more than ", kMostLevels, " levels"));
  }
  if (!json.is_object()) return absl::InvalidArgumentError("it is no JSON object");
  return json;
}

const Json& Member(const Json& object, const char* name) {
  static const Json& null = *new Json();
  if (!object.is_object()) return null;
  const auto member = object.find(name);
  return member == object.end() ? null : *member;
}

const Json& Object(const Json& object, const char* name) {
  static const Json& empty = *new Json(Json::object());
  const Json& member = Member(object, name);
  return member.is_object() ? member : empty;
}

const Json& Array(const Json& object, const char* name) {
  static const Json& empty = *new Json(Json::array());
  const Json& member = Member(object, name);
  return member.is_array() ? member : empty;
}

std::string Text(const Json& object, const char* name, size_t most) {
  const Json& member = Member(object, name);
  if (!member.is_string()) return "";
  const std::string& text = member.get_ref<const std::string&>();
  const bool printable =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isprint(c); });
  return printable && text.size() <= most ? text : "";
}

bool Flag(const Json& object, const char* name) {
  const Json& member = Member(object, name);
  return member.is_boolean() && member.get<bool>();
}

}  // namespace gpumem::kubernetes
