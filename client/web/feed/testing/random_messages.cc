// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/testing/random_messages.h"

#include <cstdint>
#include <limits>

namespace gpumem::web {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

uint64_t AnyNumber(std::mt19937& random, uint64_t most) {
  switch (random() % 4) {
    case 0:
      return 0;
    case 1:
      return most;
    default:
      return random() % 1000;
  }
}

}  // namespace

std::string HostileText(std::mt19937& random) {
  static const std::string kParts[] = {
      "</script><script>alert(1)</script>",
      "\n\nevent: snapshot\ndata: {}\n\n",
      "\r\n\r\n",
      "\r",
      std::string("\0", 1),
      "\"",
      "\\",
      "\\u0000",
      "\x1b[31m",
      "\x7f",
      "\xff\xfe",
      "\xc3",
      "\xed\xa0\x80",
      "\xf4\x90\x80\x80",
      "\xe2\x80\xae",
      "\xe2\x80\xa8",
      "\xf0\x9f\x98\x80",
      "{\"a\":1}",
      "plain",
      "gr\xc3\xbc\xc3\x9f",
      "",
  };
  std::string text;
  for (unsigned i = random() % 4; i > 0; --i) text += kParts[random() % std::size(kParts)];
  return text;
}

void FillRandom(google::protobuf::Message& message, std::mt19937& random) {
  const Reflection& reflection = *message.GetReflection();
  const auto& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (random() % 3 == 0) continue;
    const unsigned count = field.is_repeated() ? random() % 3 : 1;
    for (unsigned j = 0; j < count; ++j) {
      const auto set = [&](auto single, auto add, auto value) {
        if (field.is_repeated()) {
          (reflection.*add)(&message, &field, value);
        } else {
          (reflection.*single)(&message, &field, value);
        }
      };
      switch (field.cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32:
          set(&Reflection::SetInt32, &Reflection::AddInt32, static_cast<int32_t>(random()));
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          set(&Reflection::SetInt64, &Reflection::AddInt64, int64_t{1} << random() % 53);
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          set(&Reflection::SetUInt32, &Reflection::AddUInt32,
              static_cast<uint32_t>(AnyNumber(random, std::numeric_limits<uint32_t>::max())));
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          set(&Reflection::SetUInt64, &Reflection::AddUInt64, AnyNumber(random, 1ull << 52));
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          set(&Reflection::SetBool, &Reflection::AddBool, random() % 2 == 0);
          break;
        case FieldDescriptor::CPPTYPE_ENUM:  // at times one that a newer daemon has
          set(&Reflection::SetEnumValue, &Reflection::AddEnumValue,
              static_cast<int>(random() % 40));
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          set(&Reflection::SetString, &Reflection::AddString, HostileText(random));
          break;
        case FieldDescriptor::CPPTYPE_MESSAGE:
          FillRandom(field.is_repeated() ? *reflection.AddMessage(&message, &field)
                                         : *reflection.MutableMessage(&message, &field),
                     random);
          break;
        default:
          break;
      }
    }
  }
}

}  // namespace gpumem::web
