// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/quota_options.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/values.h"
#include "common/bytes.h"
#include "common/quota_keys.h"

namespace gpumem::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Adds the two flags of a switch, --KEY and --no-KEY, which exclude each other.
void AddSwitch(CLI::App* set, const QuotaKey& key, const FieldDescriptor* field, v1::Quota* quota) {
  const std::string name = OptionOf(key);
  const auto store = [=](bool value) { quota->GetReflection()->SetBool(quota, field, value); };
  CLI::Option* on = set->add_flag_callback(
      "--" + name, [=] { store(true); }, std::string(key.help));
  // Neither flag takes a value: CLI11 would accept "--scrub=false" without effect.
  on->disable_flag_override();
  set->add_flag_callback(
         "--no-" + name, [=] { store(false); }, std::string(key.help_off))
      ->disable_flag_override()
      ->excludes(on);
}

// Adds the option that sets one key's field of `*quota`. The key's unit
// determines the form of the option's value. kQuotaKeys names only fields that v1::Quota has.
void AddKey(CLI::App* set, const QuotaKey& key, v1::Quota* quota) {
  const FieldDescriptor* field = v1::Quota::descriptor()->FindFieldByName(std::string(key.field));
  const Reflection* reflection = quota->GetReflection();
  const std::string option = "--" + OptionOf(key);
  const std::string help(key.help);
  switch (key.unit) {
    case QuotaUnit::kBytes:
      AddParsed(
          set, option, [](const std::string& text) { return ParseBytes(text); },
          [=](uint64_t bytes) { reflection->SetUInt64(quota, field, bytes); }, help)
          ->type_name("BYTES");
      return;
    case QuotaUnit::kDeviceBytes:
      AddSeveral(
          set, option, ParseDeviceBytes,
          [=](const DeviceBytes& parsed) {
            Message* entry = reflection->AddMessage(quota, field);
            // DeviceLimit and DeviceGuarantee both have the UUID first, then the bytes. The
            // daemon's device is looked up later: until then the field has the name as typed.
            const auto& type = *entry->GetDescriptor();
            entry->GetReflection()->SetString(entry, type.field(0), parsed.device);
            entry->GetReflection()->SetUInt64(entry, type.field(1), parsed.bytes);
          },
          help)
          ->type_name("DEVICE=BYTES");
      return;
    case QuotaUnit::kCount:
      set->add_option_function<uint32_t>(
             option, [=](uint32_t count) { reflection->SetUInt32(quota, field, count); }, help)
          ->type_name("N");
      return;
    case QuotaUnit::kNumber:
      set->add_option_function<int32_t>(
             option, [=](int32_t number) { reflection->SetInt32(quota, field, number); }, help)
          ->type_name("N");
      return;
    case QuotaUnit::kDuration:
      AddParsed(
          set, option, ParseDuration,
          [=](absl::Duration time) {
            reflection->SetUInt64(quota, field,
                                  static_cast<uint64_t>(absl::ToInt64Milliseconds(time)));
          },
          help)
          ->type_name("TIME");
      return;
    case QuotaUnit::kSwitch:
      AddSwitch(set, key, field, quota);
      return;
    case QuotaUnit::kKind:
      AddParsed(
          set, option, ParseWireKind,
          [=](v1::Kind kind) { reflection->SetEnumValue(quota, field, kind); }, help)
          ->type_name(KindWords());
      return;
    case QuotaUnit::kRelease:
      AddParsed(
          set, option, ParseRelease,
          [=](v1::ReleasePolicy policy) { reflection->SetEnumValue(quota, field, policy); }, help)
          ->type_name("trust|on-exit");
      return;
    case QuotaUnit::kPreload:
      AddParsed(
          set, option, ParsePreload,
          [=](PreloadMode mode) {
            reflection->SetEnumValue(
                quota, field,
                mode == PreloadMode::kBroker ? v1::PRELOAD_MODE_BROKER : v1::PRELOAD_MODE_ACCOUNT);
          },
          help)
          ->type_name("account|broker");
      return;
    case QuotaUnit::kTenant:
      AddParsed(
          set, option,
          [](const std::string&) -> absl::StatusOr<std::string> {
            return absl::InvalidArgumentError(
                "set the parent of a tenant in the configuration (parent = …), then run gpumemctl "
                "reload");
          },
          [](const std::string&) {}, help)
          ->group("");  // hidden: it exists to report this error
      return;
  }
}

}  // namespace

void AddQuotaKeys(CLI::App* app, v1::Quota* quota) {
  for (const QuotaKey& key : kQuotaKeys) {
    if (key.unit != QuotaUnit::kTenant) AddKey(app, key, quota);
  }
}

void AddQuotaSetOptions(CLI::App* set, QuotaSetCommand* command) {
  v1::SetQuotaRequest& request = command->request;
  set->add_option_function<std::string>(
         "TENANT", [&request](const std::string& name) { request.set_tenant(name); },
         "Change this tenant")
      ->required();
  AddQuotaKeys(set, request.mutable_quota());
  AddKey(set, *FindQuotaKey("parent"), request.mutable_quota());
  AddSeveral(
      set, "--clear", ParseLimitName,
      [&request](const std::string& field) { request.add_clear(field); },
      "Clear this setting, also if configured")
      ->type_name("LIMIT");
  // Single fields are optional in the protocol, so one that is set to 0 also has a size.
  set->parse_complete_callback([&request] {
    if (request.quota().ByteSizeLong() == 0 && request.clear().empty()) {
      throw CLI::ValidationError("quota set",
                                 "nothing to change: name a limit, such as --limit 40GiB");
    }
  });
}

void AddQuotaUnsetOptions(CLI::App* unset, QuotaUnsetCommand* command) {
  v1::UnsetQuotaRequest& request = command->request;
  unset
      ->add_option_function<std::string>(
          "TENANT", [&request](const std::string& name) { request.set_tenant(name); },
          "Reset this tenant")
      ->required();
  for (const auto& [option, field] : LimitFields()) {
    unset
        ->add_flag_callback(
            "--" + option, [&request, field = field] { request.add_fields(field); },
            "Undo only this and other named settings")
        ->disable_flag_override();
  }
}

}  // namespace gpumem::cli
