#include "client/cli/options/quota_options.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/values.h"

namespace gpumem::cli {
namespace {

// The settings of quota set that are not limits.
void AddQuotaSettings(CLI::App* set, v1::Quota* quota) {
  AddParsed(
      set, "--guarantee", ParseSize, [=](uint64_t bytes) { quota->set_guarantee_bytes(bytes); },
      "Guarantee bytes on each GPU")
      ->type_name("BYTES");
  AddSeveral(
      set, "--device-guarantee", ParseDeviceBytes,
      [quota](const DeviceBytes& of) {
        v1::DeviceGuarantee& guarantee = *quota->add_guarantees();
        guarantee.set_device_uuid(of.device);
        guarantee.set_guarantee_bytes(of.bytes);
      },
      "Guarantee bytes on one GPU")
      ->type_name("DEVICE=BYTES");
  set->add_option_function<int32_t>(
         "--priority", [=](int32_t priority) { quota->set_priority(priority); },
         "Serve higher priorities first (-1000 to 1000)")
      ->type_name("N");
  set->add_option_function<uint32_t>(
         "--max-waiting", [=](uint32_t count) { quota->set_max_waiting(count); },
         "Limit requests that wait for memory")
      ->type_name("N");
  set->add_option_function<uint32_t>(
         "--max-publications", [=](uint32_t count) { quota->set_max_publications(count); },
         "Limit publications")
      ->type_name("N");
  const auto add_switch = [&](const std::string& name, void (v1::Quota::*setter)(bool),
                              const char* yes, const char* no) {
    CLI::Option* on = set->add_flag_callback(
        "--" + name, [=] { (quota->*setter)(true); }, yes);
    // Otherwise "--scrub=false" would be accepted without effect.
    on->disable_flag_override();
    set->add_flag_callback(
           "--no-" + name, [=] { (quota->*setter)(false); }, no)
        ->disable_flag_override()
        ->excludes(on);
  };
  add_switch("scrub", &v1::Quota::set_scrub, "Never reuse memory with its old contents",
             "Reuse memory within the tenant as it is");
  add_switch("revocable", &v1::Quota::set_revocable, "Make all leases revocable",
             "Make only leases revocable that request it");
  AddParsed(
      set, "--parent",
      [](const std::string&) -> absl::StatusOr<std::string> {
        return absl::InvalidArgumentError(
            "set the parent of a tenant in the configuration (parent = …), then run gpumemctl "
            "reload");
      },
      [](const std::string&) {}, "")
      ->group("");  // hidden: it exists to report this error
  AddParsed(
      set, "--kind", ParseWireKind, [=](v1::Kind kind) { quota->set_kind(kind); },
      "Use this kind for requests that name none")
      ->type_name("vmm|mempool|ipc|pinned");
  AddParsed(
      set, "--release", ParseRelease, [=](v1::ReleasePolicy policy) { quota->set_release(policy); },
      "Trust releases, or charge until process exit")
      ->type_name("trust|on-exit");
}

}  // namespace

void AddQuotaSetOptions(CLI::App* set, QuotaSetCommand* command) {
  v1::SetQuotaRequest& request = command->request;
  set->add_option_function<std::string>(
         "TENANT", [&request](const std::string& name) { request.set_tenant(name); },
         "Change this tenant")
      ->required();
  v1::Quota* limits = request.mutable_quota();
  auto add_bytes = [&](const char* name, void (v1::Quota::*setter)(uint64_t), const char* help) {
    AddParsed(
        set, name, ParseSize, [=](uint64_t bytes) { (limits->*setter)(bytes); }, help)
        ->type_name("BYTES");
  };
  auto add_count = [&](const char* name, void (v1::Quota::*setter)(uint32_t), const char* help) {
    set->add_option_function<uint32_t>(
           name, [=](uint32_t count) { (limits->*setter)(count); }, help)
        ->type_name("N");
  };
  add_bytes("--limit", &v1::Quota::set_limit_bytes, "Limit bytes on each device");
  add_bytes("--total-limit", &v1::Quota::set_total_limit_bytes,
            "Limit bytes on all devices together");
  add_bytes("--pinned-limit", &v1::Quota::set_pinned_limit_bytes,
            "Limit bytes of pinned host memory");
  add_bytes("--max-retained", &v1::Quota::set_max_retained_bytes,
            "Limit retained bytes on each device");
  add_count("--max-segments", &v1::Quota::set_max_segments, "Limit segments");
  add_count("--max-sessions", &v1::Quota::set_max_sessions, "Limit sessions");
  add_count("--max-in-flight", &v1::Quota::set_max_in_flight, "Limit calls in flight");
  AddSeveral(
      set, "--device", ParseDeviceBytes,
      [limits](const DeviceBytes& of) {
        v1::DeviceLimit& limit = *limits->add_devices();
        limit.set_device_uuid(of.device);
        limit.set_limit_bytes(of.bytes);
      },
      "Limit bytes on one device")
      ->type_name("DEVICE=BYTES");
  AddQuotaSettings(set, limits);
  AddSeveral(
      set, "--clear", ParseLimitName,
      [&request](const std::string& field) { request.add_clear(field); },
      "Clear this setting, also if configured")
      ->type_name("LIMIT");
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
