#include "client/cli/options/pool_options.h"

#include <cstdint>
#include <string>

#include "client/cli/options/parsed_options.h"
#include "client/cli/options/values.h"

namespace gpumem::cli {
namespace {

void AddPoolName(CLI::App* app, std::string* tenant, std::string* device) {
  app->add_option("TENANT", *tenant, "The tenant")->required();
  app->add_option("--device", *device,
                  "The device: its place in the daemon's list (gpumemctl devices), or its UUID "
                  "(default: the first on which the tenant has a pool)")
      ->type_name("INDEX|UUID");
}

}  // namespace

void AddPoolListOptions(CLI::App* list, PoolListCommand* command) {
  list->add_option("--tenant", command->tenant, "Only this tenant's")->type_name("NAME");
  list->add_option(
          "--device", command->device,
          "Only on this device: its place in the daemon's list (gpumemctl devices), or its UUID")
      ->type_name("INDEX|UUID");
}

void AddPoolSetOptions(CLI::App* set, PoolSetCommand* command) {
  v1::SetPoolRequest& change = command->request;
  AddPoolName(set, change.mutable_tenant(), change.mutable_device_uuid());
  AddParsed(
      set, "--release-threshold", ParseSize,
      [&change](uint64_t bytes) { change.set_release_threshold_bytes(bytes); },
      "Reserved bytes up to which the driver keeps what is unused")
      ->type_name("BYTES");
  auto add_switch = [&](const char* name, void (v1::SetPoolRequest::*setter)(bool),
                        const char* help) {
    AddParsed(
        set, name, ParseSwitch, [=, &change](bool on) { (change.*setter)(on); }, help)
        ->type_name("on|off");
  };
  add_switch("--reuse-follow-event-dependencies",
             &v1::SetPoolRequest::set_reuse_follow_event_dependencies,
             "Reuse what another stream freed, where an event orders the two");
  add_switch("--reuse-opportunistic", &v1::SetPoolRequest::set_reuse_allow_opportunistic,
             "Reuse what another stream freed, where that is already done");
  add_switch("--reuse-internal-dependencies",
             &v1::SetPoolRequest::set_reuse_allow_internal_dependencies,
             "Reuse what another stream will have freed, and wait for it");
  set->add_flag_callback(
      "--reset-peaks", [&change] { change.set_reset_peaks(true); },
      "Let both peaks start again from the present values");
  set->parse_complete_callback([&change] {
    if (!change.has_release_threshold_bytes() && !change.has_reuse_follow_event_dependencies() &&
        !change.has_reuse_allow_opportunistic() &&
        !change.has_reuse_allow_internal_dependencies() && !change.reset_peaks()) {
      throw CLI::ValidationError(
          "pool set", "nothing to change: name an attribute, such as --release-threshold 1GiB");
    }
  });
}

void AddPoolTrimOptions(CLI::App* trim, PoolTrimCommand* command) {
  v1::TrimPoolRequest& cut = command->request;
  AddPoolName(trim, cut.mutable_tenant(), cut.mutable_device_uuid());
  AddParsed(
      trim, "--to", ParseSize, [&cut](uint64_t bytes) { cut.set_keep_bytes(bytes); },
      "Let the pool keep this much (default: what its segments use)")
      ->type_name("BYTES");
}

}  // namespace gpumem::cli
