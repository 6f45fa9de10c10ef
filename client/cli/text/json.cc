// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/json.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/cli/text/printable.h"
#include "common/denial.h"

namespace gpumem::cli {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Returns the prefix of an enum's values: "TICKET_SCOPE_" for TicketScope.
std::string ValuePrefix(const EnumDescriptor& type) {
  std::string prefix;
  for (char c : type.name()) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  return prefix + "_";
}

// Converts one value of `field`: element `index` of a repeated one, else the only one.
Json ValueJson(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  auto get = [&](auto single, auto repeated) {
    return index < 0 ? (reflection.*single)(message, &field)
                     : (reflection.*repeated)(message, &field, index);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumJson(*field.enum_type(),
                      get(&Reflection::GetEnumValue, &Reflection::GetRepeatedEnumValue));
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string text = get(&Reflection::GetString, &Reflection::GetRepeatedString);
      return field.type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(index < 0 ? reflection.GetMessage(message, &field)
                              : reflection.GetRepeatedMessage(message, &field, index));
  }
  return nullptr;
}

Json Versioned(const Json& json) {
  Json document = Json::object();
  document["schema_version"] = kSchemaVersion;
  document.update(json);
  return document;
}

}  // namespace

Json EnumJson(const EnumDescriptor& type, int number) {
  const auto* value = type.FindValueByNumber(number);
  if (value == nullptr) return number;
  return absl::AsciiStrToLower(absl::StripPrefix(value->name(), ValuePrefix(type)));
}

Json ToJson(const Message& message) {
  Json json = Json::object();
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    Json& member = json[field.name()];
    if (field.is_repeated()) {
      member = Json::array();
      for (int j = 0; j < reflection.FieldSize(message, &field); ++j) {
        member.push_back(ValueJson(message, field, j));
      }
    } else if (!field.has_presence() || reflection.HasField(message, &field)) {
      member = ValueJson(message, field, -1);
    }
  }
  return json;
}

Json QuotaJson(const v1::GetQuotaResponse& response, bool knows_overridden) {
  Json json = Json::object();
  json["tenant"] = response.usage().tenant();
  json["quota"] = ToJson(response.quota());
  json["usage"] = ToJson(response.usage());
  json["overridden"] = knows_overridden ? ToJson(response)["overridden"] : Json(nullptr);
  return json;
}

Json ErrorJson(const absl::Status& status) {
  Json error = Json::object();
  error["code"] = absl::StatusCodeToString(status.code());
  error["message"] = std::string(status.message());
  error["denial"] = nullptr;
  if (std::optional<v1::Denial> denial = DenialOf(status)) error["denial"] = ToJson(*denial);
  Json json = Json::object();
  json["error"] = std::move(error);
  return json;
}

Json WarningJson(const std::string& message) {
  Json json = Json::object();
  json["warning"]["message"] = message;
  return json;
}

std::string Document(const Json& json) { return Pretty(Versioned(json)); }

std::string DocumentLine(const Json& json) { return OneLine(Versioned(json)); }

std::string Pretty(const Json& json) {
  return absl::StrCat(EscapedJson(json.dump(2, ' ', false, Json::error_handler_t::replace)), "\n");
}

std::string OneLine(const Json& json) {
  return absl::StrCat(EscapedJson(json.dump(-1, ' ', false, Json::error_handler_t::replace)), "\n");
}

}  // namespace gpumem::cli
