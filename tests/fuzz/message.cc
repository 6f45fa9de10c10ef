// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>

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
  Filler(FuzzInput& input, const KnownValues& known) : input_(input), known_(known) {}

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
    const uint8_t unknown = input_.Byte();
    if (unknown >= 0xf0) AddUnknown(reflection->MutableUnknownFields(message), unknown);
  }

 private:
  uint64_t Number(const FieldDescriptor* field) {
    const uint8_t how = input_.Byte();
    const uint64_t number = (how & 1) != 0 && !known_.numbers.empty()
                                ? known_.numbers[how / 2 % known_.numbers.size()]
                                : input_.Number();
    if (absl::StrContains(field->name(), "wait") || absl::StrContains(field->name(), "timeout")) {
      return std::min(number, kMostWaitMs);
    }
    return number;
  }

  // Adds fields that no version has had, or has had with another type. Parsers accept groups inside
  // one another up to a depth of 100.
  void AddUnknown(google::protobuf::UnknownFieldSet* fields, uint8_t how) {
    const int number = 1 + static_cast<int>(input_.Take<uint16_t>());
    switch (how & 3) {
      case 0:
        return fields->AddVarint(number, input_.Number());
      case 1:
        return fields->AddFixed32(number, input_.Take<uint32_t>());
      case 2:
        return fields->AddLengthDelimited(number, std::string(input_.Word(300)));
      default:
        for (uint32_t depth = input_.Below(200); depth > 0; --depth) {
          fields = fields->AddGroup(number);
        }
    }
  }

  std::string Text(const FieldDescriptor* field) {
    constexpr const char* kTexts[] = {
        "a",           "b",      "c", "a/p", "p", "x", "HOST-00000000-0000-0000-0000-000000000000",
        "limit_bytes", "devices"};
    const uint8_t how = input_.Byte();
    if (how % 4 == 0 && !known_.texts.empty()) return known_.texts[how / 4 % known_.texts.size()];
    if (how % 4 == 1) return kTexts[how / 4 % std::size(kTexts)];
    std::string text(input_.Word(80));
    if (how % 4 == 2) {
      // Text that is not UTF-8 is refused by the parser of messages.
      if (field->type() == FieldDescriptor::TYPE_STRING && (how & 0x70) != 0x70) {
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
  const KnownValues& known_;
};

}  // namespace

void FillMessage(FuzzInput& input, Message* message, const KnownValues& known) {
  Filler(input, known).Fill(message, 0);
  const auto* type = message->GetDescriptor();
  const FieldDescriptor* wait = type->FindFieldByName("wait_ms");
  if (wait == nullptr || type->FindFieldByName("wait_for_version") == nullptr) return;
  // Zero would be until the call's deadline.
  const Reflection* reflection = message->GetReflection();
  reflection->SetUInt64(message, wait,
                        std::max(uint64_t{1}, reflection->GetUInt64(*message, wait)));
}

}  // namespace gpumem::testing
