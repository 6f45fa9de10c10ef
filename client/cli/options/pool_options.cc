// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/pool_options.h"

#include <cstdint>
#include <string>

#include "client/cli/options/parsed_options.h"
#include "client/cli/options/values.h"

namespace gpumem::cli {
namespace {

void AddPoolName(CLI::App* app, std::string* tenant, std::string* device) {
  app->add_option("TENANT", *tenant, "Select the pool of this tenant")->required();
  app->add_option("--device", *device, "Select this device (default: first with a pool)")
      ->type_name("DEVICE");
}

}  // namespace

void AddPoolSetOptions(CLI::App* set, PoolSetCommand* command) {
  v1::SetPoolRequest& change = command->request;
  AddPoolName(set, change.mutable_tenant(), change.mutable_device_uuid());
  AddParsed(
      set, "--release-threshold", ParseSize,
      [&change](uint64_t bytes) { change.set_release_threshold_bytes(bytes); },
      "Keep unused bytes up to this many reserved")
      ->type_name("BYTES");
  auto add_switch = [&](const char* name, void (v1::SetPoolRequest::*setter)(bool),
                        const char* help) {
    AddParsed(
        set, name, ParseSwitch, [=, &change](bool on) { (change.*setter)(on); }, help)
        ->type_name("on|off");
  };
  add_switch("--reuse-follow-event-dependencies",
             &v1::SetPoolRequest::set_reuse_follow_event_dependencies,
             "Reuse other streams' memory ordered by events");
  add_switch("--reuse-opportunistic", &v1::SetPoolRequest::set_reuse_allow_opportunistic,
             "Reuse other streams' memory if their work is done");
  add_switch("--reuse-internal-dependencies",
             &v1::SetPoolRequest::set_reuse_allow_internal_dependencies,
             "Reuse other streams' memory after a wait");
  set->add_flag_callback(
      "--reset-peaks", [&change] { change.set_reset_peaks(true); },
      "Reset both peaks to the current values");
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
      "Keep this much reserved (default: bytes in use)")
      ->type_name("BYTES");
}

}  // namespace gpumem::cli
