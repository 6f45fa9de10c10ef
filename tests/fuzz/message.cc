// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/message.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/match.h"

namespace gpumem::testing {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMostDepth = 4;
constexpr uint64_t kMostWaitMs = 3;

class Filler {
 public:
  explicit Filler(FuzzInput& input) : input_(input) {}

  void Fill(Message* message, int depth) {
    const Reflection* reflection = message->GetReflection();
    const auto* type = message->GetDescriptor();
    uint8_t set = 0;
    for (int i = 0; i < type->field_count(); ++i) {
      if (i % 8 == 0) set = input_.Byte();
      if ((set >> (i % 8) & 1) == 0 || input_.empty()) continue;
      const FieldDescriptor* field = type->field(i);
      const uint32_t count = field->is_repeated() ? input_.Below(6) : 1;
      for (uint32_t n = 0; n < count; ++n) Put(message, reflection, field, depth);
    }
  }

 private:
  uint64_t Number(const FieldDescriptor* field) {
    const uint64_t number = input_.Number();
    if (absl::StrContains(field->name(), "wait") || absl::StrContains(field->name(), "timeout")) {
      return std::min(number, kMostWaitMs);
    }
    return number;
  }

  std::string Text(const FieldDescriptor* field) {
    constexpr const char* kTexts[] = {
        "a",           "b",      "c", "a/p", "p", "x", "HOST-00000000-0000-0000-0000-000000000000",
        "limit_bytes", "devices"};
    const uint8_t how = input_.Byte();
    if (how % 4 < 2) return kTexts[how / 4 % std::size(kTexts)];
    std::string text(input_.Word(80));
    if (how % 4 == 2) {
      // Text with other bytes is refused by the parser of messages.
      if (field->type() == FieldDescriptor::TYPE_STRING) {
        for (char& c : text) c = static_cast<char>(c & 0x7f);
      }
      return text;
    }
    return std::string(input_.Take<uint16_t>(), 'x');
  }

  void Put(Message* message, const Reflection* reflection, const FieldDescriptor* field,
           int depth) {
    const bool many = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT64: {
        const uint64_t value = Number(field);
        return many ? reflection->AddUInt64(message, field, value)
                    : reflection->SetUInt64(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_UINT32: {
        const auto value = static_cast<uint32_t>(Number(field));
        return many ? reflection->AddUInt32(message, field, value)
                    : reflection->SetUInt32(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        const auto value = static_cast<int64_t>(Number(field));
        return many ? reflection->AddInt64(message, field, value)
                    : reflection->SetInt64(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_INT32: {
        const auto value = static_cast<int32_t>(Number(field));
        return many ? reflection->AddInt32(message, field, value)
                    : reflection->SetInt32(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        return many ? reflection->AddBool(message, field, input_.Bool())
                    : reflection->SetBool(message, field, input_.Bool());
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int value = static_cast<int8_t>(input_.Byte());
        return many ? reflection->AddEnumValue(message, field, value)
                    : reflection->SetEnumValue(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_STRING:
        return many ? reflection->AddString(message, field, Text(field))
                    : reflection->SetString(message, field, Text(field));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth >= kMostDepth) return;
        return Fill(many ? reflection->AddMessage(message, field)
                         : reflection->MutableMessage(message, field),
                    depth + 1);
      default:
        return;
    }
  }

  FuzzInput& input_;
};

}  // namespace

void FillMessage(FuzzInput& input, Message* message) { Filler(input).Fill(message, 0); }

}  // namespace gpumem::testing
