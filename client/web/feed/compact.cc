// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/compact.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/text/json.h"

namespace gpumem::web {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using ProtoMessage = google::protobuf::Message;
using google::protobuf::Reflection;

// Latencies are far below it, and a time that is a second off misleads no reader.
constexpr int64_t kSlackMs = 1000;

struct TimeField {
  absl::string_view name;  // a duration's
  absl::string_view time;  // the name of the time
  bool ahead;              // of now
  bool always;             // zero is a duration, and not the absence of one
};
constexpr TimeField kTimeFields[] = {
    {"age_ms", "since_ms", false, true},
    {"idle_ms", "idle_since_ms", false, true},
    {"uptime_ms", "started_ms", false, true},
    {"expires_in_ms", "expires_at_ms", true, false},
};

const TimeField* TimeOf(const FieldDescriptor& field) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_UINT64) return nullptr;
  for (const TimeField& each : kTimeFields) {
    if (each.name == field.name()) return &each;
  }
  return nullptr;
}

// Writes one message. Reflection on each member is the main cost of a document, so numbers and
// texts are appended without intermediate values.
class Writer {
 public:
  Writer(size_t identity, StableTimes& times, std::string* json)
      : identity_(identity), times_(times), json_(*json) {}

  void Object(const ProtoMessage& message) {
    json_ += '{';
    bool first = true;
    const Reflection& reflection = *message.GetReflection();
    const auto& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (const TimeField* time = TimeOf(field)) {
        Time(message, field, *time, &first);
        continue;
      }
      if (field.is_repeated()) {
        const int size = reflection.FieldSize(message, &field);
        if (size == 0) continue;
        Name(field.name(), &first);
        json_ += '[';
        for (int j = 0; j < size; ++j) {
          if (j > 0) json_ += ',';
          Value(message, field, j);
        }
        json_ += ']';
      } else if (reflection.HasField(message, &field) && field.name() != "byte_seconds") {
        Name(field.name(), &first);
        Value(message, field, -1);
      }
    }
    json_ += '}';
  }

 private:
  // `name` is a field's: it needs no escapes.
  void Name(absl::string_view name, bool* first) {
    absl::StrAppend(&json_, *first ? "\"" : ",\"", name, "\":");
    *first = false;
  }

  void Time(const ProtoMessage& message, const FieldDescriptor& field, const TimeField& time,
            bool* first) {
    const uint64_t ms = message.GetReflection()->GetUInt64(message, &field);
    if (ms == 0 && !time.always) return;
    const auto age = static_cast<int64_t>(std::min<uint64_t>(ms, 1ull << 52));
    Name(time.time, first);
    absl::StrAppend(&json_,
                    times_.Before(absl::HashOf(identity_, time.name), time.ahead ? -age : age));
  }

  void Value(const ProtoMessage& message, const FieldDescriptor& field, int index) {
    const Reflection& reflection = *message.GetReflection();
    const auto get = [&](auto single, auto repeated) {
      return index < 0 ? (reflection.*single)(message, &field)
                       : (reflection.*repeated)(message, &field, index);
    };
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        absl::StrAppend(&json_, get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32));
        return;
      case FieldDescriptor::CPPTYPE_INT64:
        absl::StrAppend(&json_, get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64));
        return;
      case FieldDescriptor::CPPTYPE_UINT32:
        absl::StrAppend(&json_, get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32));
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        absl::StrAppend(&json_, get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64));
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        json_ += get(&Reflection::GetBool, &Reflection::GetRepeatedBool) ? "true" : "false";
        return;
      case FieldDescriptor::CPPTYPE_ENUM:
        json_ += Word(*field.enum_type(),
                      get(&Reflection::GetEnumValue, &Reflection::GetRepeatedEnumValue));
        return;
      case FieldDescriptor::CPPTYPE_STRING: {
        std::string scratch;
        const std::string& text =
            index < 0 ? reflection.GetStringReference(message, &field, &scratch)
                      : reflection.GetRepeatedStringReference(message, &field, index, &scratch);
        if (field.type() == FieldDescriptor::TYPE_BYTES) {
          AppendQuoted(absl::Base64Escape(text), &json_);
        } else {
          AppendQuoted(text, &json_);
        }
        return;
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        Object(index < 0 ? reflection.GetMessage(message, &field)
                         : reflection.GetRepeatedMessage(message, &field, index));
        return;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        json_ += cli::Json(get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble)).dump();
        return;
      case FieldDescriptor::CPPTYPE_FLOAT:
        json_ += cli::Json(get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat)).dump();
        return;
    }
    json_ += "null";
  }

  // Returns the word of an enum's value, quoted. A word costs more to form than a whole object.
  const std::string& Word(const EnumDescriptor& type, int number) {
    thread_local absl::flat_hash_map<std::pair<const EnumDescriptor*, int>, std::string> words;
    constexpr size_t kMost = 1024;  // numbers that no enum has come from a newer daemon
    if (words.size() > kMost) words.clear();
    std::string& word = words[{&type, number}];
    if (word.empty()) word = cli::EnumJson(type, number).dump();
    return word;
  }

  const size_t identity_;
  StableTimes& times_;
  std::string& json_;
};

bool NeedsEscapes(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 0x20 || c >= 0x7f || c == '"' || c == '\\';
  });
}

}  // namespace

void StableTimes::Begin(absl::Time now) {
  now_ = now;
  earlier_ = std::exchange(times_, {});
}

int64_t StableTimes::Before(size_t identity, int64_t age_ms) {
  const int64_t computed = absl::ToUnixMillis(now_) - age_ms;
  const auto [kept, is_new] = times_.try_emplace(identity, computed);
  if (!is_new) return kept->second;  // of this answer
  const auto before = earlier_.find(identity);
  if (before != earlier_.end() && std::abs(before->second - computed) <= kSlackMs) {
    kept->second = before->second;
  }
  return kept->second;
}

void AppendCompact(const ProtoMessage& message, size_t identity, StableTimes& times,
                   std::string* json) {
  Writer(identity, times, json).Object(message);
}

void AppendQuoted(absl::string_view text, std::string* json) {
  if (!NeedsEscapes(text)) {
    absl::StrAppend(json, "\"", text, "\"");
    return;
  }
  std::string quoted = cli::OneLine(std::string(text));
  quoted.pop_back();  // its line feed
  *json += quoted;
}

}  // namespace gpumem::web
