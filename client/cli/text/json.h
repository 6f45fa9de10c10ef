// SPDX-License-Identifier: Apache-2.0
// Converts messages of the protocol to JSON, in a form that programs can rely on:
//
//   fields      all of them, in the protocol's order, by their snake_case names, also
//               those that are zero or empty
//   numbers     JSON numbers, 64-bit ones too
//   enums       lower-case words without the type's prefix: "vmm", "leased", "host";
//               "unspecified"; the number if this program does not know the value
//   bytes       base64
//   absent      null: optional fields and messages that are not set
//
// Pure.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::cli {

using Json = nlohmann::ordered_json;

Json ToJson(const google::protobuf::Message& message);

// Returns the word of a value of `type`, as above; the number if this program does not know it.
Json EnumJson(const google::protobuf::EnumDescriptor& type, int number);

// {"tenant": "…", "quota": {…}, "usage": {…}, "overridden": ["…"]}; "overridden" is null if
// unknown.
Json QuotaJson(const v1::GetQuotaResponse& response, bool knows_overridden);

// {"error": {"code": "NOT_FOUND", "message": "…", "denial": null}}
Json ErrorJson(const absl::Status& status);
// {"warning": {"message": "…"}}
Json WarningJson(const std::string& message);

// The version of the documents' structure: their member "schema_version". It grows if a member goes
// or changes its meaning; new members do not count. client/cli/schema describes it.
inline constexpr int kSchemaVersion = 1;

// Returns a whole document of a command, with its version: on several lines, ended by a newline.
// Invalid UTF-8 is replaced.
std::string Document(const Json& json);
// Returns the same on one line, for streams of documents.
std::string DocumentLine(const Json& json);

// The same without the version.
std::string Pretty(const Json& json);
std::string OneLine(const Json& json);

}  // namespace gpumem::cli
