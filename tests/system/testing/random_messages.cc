// SPDX-License-Identifier: Apache-2.0
#include "tests/system/testing/random_messages.h"

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::testing {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void RandomMessages::ForgetOld() {
  if (leases_.size() > 32) leases_.erase(leases_.begin(), leases_.begin() + 16);
  if (tickets_.size() > 8) tickets_.erase(tickets_.begin(), tickets_.begin() + 4);
}

uint64_t RandomMessages::Number() {
  if (polite_) return leases_.empty() || random_.OneIn(2) ? random_.Below(5) : random_.Of(leases_);
  switch (random_.Below(6)) {
    case 0:
      return random_.Of(std::vector<uint64_t>{0, 1, 2, 253, 254, UINT32_MAX, UINT64_MAX,
                                              uint64_t{1} << 63, 256 * kMiB, 256 * kMiB + 1,
                                              2 * kMiB, 2 * kMiB + 1, 64 * kMiB});
    case 1:
    case 2:
      return leases_.empty() ? 1 : random_.Of(leases_);
    case 3:
      return random_.Next() >> random_.Below(64);
    default:
      return 1 + random_.Below(4);
  }
}

std::string RandomMessages::Text(const FieldDescriptor* field) {
  if (polite_ && field->name() == "handle")
    return std::string(64, static_cast<char>(random_.Below(256)));
  if (polite_ && field->containing_type() == v1::RegisterIpcEventRequest::descriptor()) {
    return field->name() == "name" ? absl::StrCat("event ", random_.Below(9))
                                   : "HOST-00000000-0000-0000-0000-000000000000";
  }
  if (polite_ && field->name() == "name") {
    return absl::StrCat(random_.OneIn(2) ? "bad/" : "", "p", random_.Below(4));
  }
  if (polite_) return field->name() == "tenant" ? "bad" : "";
  switch (random_.Below(8)) {
    case 0: {
      std::string text = random_.Bytes(70);
      for (char& c : text) c &= 0x7f;  // mangling makes invalid UTF-8
      return text;
    }
    case 1:
      return std::string(random_.Below(70000), 'x');
    case 2:
      return "HOST-00000000-0000-0000-0000-000000000000";
    case 3:
      return random_.Of(
          std::vector<std::string>{"limit_bytes", "max_segments", "devices", "scrub"});
    case 4:
      return random_.Of(std::vector<std::string>{"other", "nobody", "GPU-0", "\n"});
    case 5:
      return "bad";
    default:
      return "";
  }
}

std::string RandomMessages::Ticket() {
  if (!polite_ && random_.OneIn(10)) return random_.Bytes(40);
  if (tickets_.empty() || random_.OneIn(20)) return std::string(32, 't');
  return random_.Of(tickets_);
}

void RandomMessages::Fill(Message* message, int depth) {
  const auto* reflection = message->GetReflection();
  const auto* type = message->GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (random_.OneIn(3) && !(polite_ && field->name() == "tenant")) continue;
    if (field->is_repeated()) {
      const uint64_t count = random_.OneIn(20) ? random_.Below(300) : random_.Below(4);
      for (uint64_t n = 0; n < count; ++n) Add(message, reflection, field, depth);
    } else {
      Set(message, reflection, field, depth);
    }
  }
}

void RandomMessages::Set(Message* message, const google::protobuf::Reflection* reflection,
                         const FieldDescriptor* field, int depth) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT64:
      // A guarantee to it rightly takes memory from the bystander.
      if (field->name() == "guarantee_bytes") {
        return reflection->SetUInt64(message, field, Number() % (8 * kMiB));
      }
      return reflection->SetUInt64(message, field, Number());
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(message, field, static_cast<uint32_t>(Number()));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(message, field, random_.OneIn(2));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->SetEnumValue(
          message, field,
          static_cast<int>(polite_ || !random_.OneIn(4)
                               ? random_.Below(field->enum_type()->value_count())
                               : random_.Next()));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(message, field, Text(field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth < 3) Fill(reflection->MutableMessage(message, field), depth + 1);
      return;
    default:
      return;
  }
}

void RandomMessages::Add(Message* message, const google::protobuf::Reflection* reflection,
                         const FieldDescriptor* field, int depth) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->AddUInt64(message, field, Number());
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->AddString(message, field,
                                   field->name() == "tickets" ? Ticket() : Text(field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Fill(reflection->AddMessage(message, field), depth + 1);
    default:
      return;
  }
}

std::string RandomMessages::Mangled(std::string bytes) {
  for (uint64_t i = 0; i <= random_.Below(4); ++i) {
    const size_t at = bytes.empty() ? 0 : random_.Below(bytes.size());
    switch (random_.Below(5)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random_.Below(8)));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, random_.Bytes(10));
        break;
      case 3:
        bytes += bytes.substr(0, 30000);
        break;
      default:
        if (!bytes.empty()) bytes.erase(at, random_.Below(10));
    }
  }
  return bytes;
}

}  // namespace gpumem::testing
