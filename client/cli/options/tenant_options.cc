// SPDX-License-Identifier: Apache-2.0
// The commands about tenants that are made at run time: their names, texts and options.
#include "client/cli/options/tenant_options.h"

#include <string>

#include "absl/time/time.h"
#include "client/cli/options/command_set.h"
#include "client/cli/options/common_options.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/quota_options.h"
#include "client/cli/options/values.h"

namespace gpumem::cli {
namespace {

template <typename Request>
void AddName(CLI::App* app, Request* request, const std::string& help) {
  app->add_option_function<std::string>(
         "TENANT", [request](const std::string& name) { request->set_tenant(name); }, help)
      ->required();
}

template <typename Request>
void AddOwner(CLI::App* app, Request* request, const std::string& help) {
  app->add_option_function<std::string>(
         "--owner", [request](const std::string& owner) { request->set_owner(owner); }, help)
      ->type_name("TAG");
}

void AddOwn(CLI::App* app, bool* own) {
  app->add_flag("--own", *own, "As a user, under your own tenant, not as an operator");
}

}  // namespace

void AddTenantCommands(CommandSet* commands) {
  CLI::App* tenant =
      commands
          ->Add<TenantListCommand>(kChanging, "tenant", "Make, change or end tenants at run time.",
                                   "Without a subcommand: same as gpumemctl tenant list.")
          .app;
  tenant->require_subcommand(0, 1);
  const auto list = commands->Add<TenantListCommand>(
      tenant, kCommands, "list", "List the tenants that were made at run time.",
      "Example: gpumemctl tenant list\n"
      "An operator sees all, also those that programs have made under their own. A\n"
      "user sees those under the user's tenant. All tenants: gpumemctl quota list.");
  AddOwn(list.app, &list.command->own);
  const auto create = commands->Add<TenantCreateCommand>(
      tenant, kCommands, "create", "Make a tenant until tenant end.",
      "Examples:\n  gpumemctl tenant create job-17 --owner slurm --limit 20GiB\n"
      "  gpumemctl tenant create job-17 --parent training --guarantee 10GiB\n"
      "  gpumemctl tenant create small --own --limit 4GiB\n"
      "It exists without sessions, and stays over restarts and reloads. Settings that\n"
      "are not named follow [tenant_defaults]; with --parent they are no limit. Rules\n"
      "of the configuration say who is that tenant. The same command once more is no\n"
      "error.\n"
      "Who is no operator, or says --own, makes it under the own tenant, or under the\n"
      "--parent that the rules allow: with less, and without a guarantee. Its name is\n"
      "PARENT:UID.TENANT, and only programs of this user begin in it, by GPUMEM_TENANT\n"
      "or --as.");
  v1::CreateTenantRequest* made = &create.command->request;
  AddName(create.app, made, "Make a tenant of this name");
  create.app
      ->add_option_function<std::string>(
          "--parent", [made](const std::string& parent) { made->set_parent(parent); },
          "Put it under this tenant, whose quota counts it")
      ->type_name("TENANT");
  AddOwner(create.app, made, "Mark it with the name of its owner");
  AddOwn(create.app, &create.command->own);
  AddQuotaKeys(create.app, made->mutable_quota());
  const auto update = commands->Add<TenantUpdateCommand>(
      tenant, kCommands, "update", "Change the quota of a tenant made at run time.",
      "Example: gpumemctl tenant update job-17 --limit 30GiB --clear guarantee\n"
      "A limit below the usage revokes nothing. What quota set has changed stays. A\n"
      "user names a tenant under the own one by its whole name, or as it was created.");
  v1::UpdateTenantRequest* changed = &update.command->request;
  AddName(update.app, changed, "Change this tenant");
  AddOwner(update.app, changed, "Only if this is its owner");
  AddOwn(update.app, &update.command->own);
  AddQuotaKeys(update.app, changed->mutable_quota());
  AddSeveral(
      update.app, "--clear", ParseLimitName,
      [changed](const std::string& field) { changed->add_clear(field); }, "Clear this setting")
      ->type_name("LIMIT");
  update.app->parse_complete_callback([changed] {
    if (changed->quota().ByteSizeLong() == 0 && changed->clear().empty()) {
      throw CLI::ValidationError("tenant update",
                                 "nothing to change: name a limit, such as --limit 40GiB");
    }
  });
  const auto end = commands->Add<TenantEndCommand>(
      tenant, kCommands, "end", "End a tenant made at run time, and those under it.",
      "Example: gpumemctl tenant end job-17 --owner slurm --wait 30s\n"
      "It gets no new session and no new memory, and requests that wait are refused.\n"
      "What it holds stays until it is released: after the wait the command says what\n"
      "that is. Asks for confirmation on a terminal. A user names a tenant under the\n"
      "own one by its whole name, or as it was created.");
  v1::EndTenantRequest* ended = &end.command->request;
  AddName(end.app, ended, "End this tenant");
  AddOwner(end.app, ended, "Only if this is its owner");
  AddOwn(end.app, &end.command->own);
  AddParsed(
      end.app, "--wait", ParseDuration,
      [ended](absl::Duration wait) {
        ended->set_wait_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(wait)));
      },
      "Wait this long for all it holds (0s)")
      ->type_name("TIME");
  AddCaution(end.app, &end.command->caution, /*asks=*/true);
}

}  // namespace gpumem::cli
