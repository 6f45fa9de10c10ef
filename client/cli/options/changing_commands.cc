// SPDX-License-Identifier: Apache-2.0
// The commands that change the state of the daemon: their names, texts and options.
#include "client/cli/options/command_set.h"
#include "client/cli/options/common_options.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/pool_options.h"
#include "client/cli/options/quota_options.h"
#include "client/cli/options/tenant_options.h"
#include "client/cli/options/values.h"

namespace gpumem::cli {
namespace {

void AddQuota(CommandSet* commands) {
  CLI::App* quota =
      commands
          ->Add<QuotaGetCommand>(kChanging, "quota", "Show or change the quota of a tenant.",
                                 "Without a subcommand: same as gpumemctl quota get.")
          .app;
  quota->require_subcommand(0, 1);
  const auto get = commands->Add<QuotaGetCommand>(
      quota, kCommands, "get", "Show the limits and the usage of a tenant.",
      "Examples:\n  gpumemctl quota get            your own; needs no privilege\n"
      "  gpumemctl quota get training");
  get.app->add_option("TENANT", get.command->tenant, "Show this tenant (default: your own)");
  commands->Add<QuotaListCommand>(quota, kCommands, "list",
                                  "List all tenants with limits and usage.",
                                  "Example: gpumemctl quota list");
  const auto unset = commands->Add<QuotaUnsetCommand>(
      quota, kCommands, "unset", "Undo changes made by quota set.",
      "Examples:\n  gpumemctl quota unset training            all settings\n"
      "  gpumemctl quota unset training --limit    only the limit\n"
      "The settings follow the configuration again.");
  AddQuotaUnsetOptions(unset.app, unset.command);
  AddCaution(unset.app, &unset.command->caution, /*asks=*/false);
  const auto set = commands->Add<QuotaSetCommand>(
      quota, kCommands, "set", "Change the quota of a tenant until quota unset.",
      "Examples:\n  gpumemctl quota set training --limit 40GiB --max-sessions 16\n"
      "  gpumemctl quota set training --device 1=10GiB --clear total-limit\n"
      "  gpumemctl quota set serving --guarantee 20GiB --priority 10 --dry-run\n"
      "These settings override the configuration, also after a restart or a reload.\n"
      "Other settings follow the configuration. A limit below the usage revokes\n"
      "nothing: the tenant gets nothing new until its usage is below the limit. Such\n"
      "a limit, and a larger guarantee, are confirmed on a terminal.\n"
      "LIMIT is the name of a setting, such as total-limit.");
  AddQuotaSetOptions(set.app, set.command);
  AddCaution(set.app, &set.command->caution, /*asks=*/true);
}

void AddPool(CommandSet* commands) {
  CLI::App* pool =
      commands
          ->Add<PoolListCommand>(
              kChanging, "pool", "Show or change CUDA memory pools (kind mempool).",
              "Without a subcommand: same as gpumemctl pool list.\n"
              "A tenant has a pool on a device while it has segments of kind mempool there.")
          .app;
  pool->require_subcommand(0, 1);
  const auto list = commands->Add<PoolListCommand>(
      pool, kCommands, "list", "List the memory pools.",
      "Example: gpumemctl pool list --tenant training\n"
      "RESERVED bytes are taken from the device, USED bytes are in segments. The driver\n"
      "keeps unused bytes up to THRESHOLD, and reserves at most MAX.");
  AddTenantFilter(list.app, &list.command->tenant);
  AddDeviceFilter(list.app, &list.command->device);
  const auto set = commands->Add<PoolSetCommand>(
      pool, kCommands, "set", "Change attributes of a pool until gpumemd stops.",
      "Examples:\n  gpumemctl pool set training --release-threshold 4GiB\n"
      "  gpumemctl pool set training --device 1 --reuse-opportunistic off --reset-peaks\n"
      "The attributes are those of cudaMemPoolAttr. They apply at once, and to later\n"
      "pools of the tenant on the device.");
  AddPoolSetOptions(set.app, set.command);
  AddCaution(set.app, &set.command->caution, /*asks=*/false);
  const auto trim = commands->Add<PoolTrimCommand>(
      pool, kCommands, "trim", "Return unused bytes of a pool to the driver.",
      "Example: gpumemctl pool trim training --to 1GiB");
  AddPoolTrimOptions(trim.app, trim.command);
  AddCaution(trim.app, &trim.command->caution, /*asks=*/false);
}

// Which sessions a command asks.
struct SessionOptions {
  CLI::Option* session;
  CLI::Option* tenant;
  CLI::Option* tag;
};

template <typename Command>
SessionOptions AddSessions(CLI::App* app, Command* command) {
  return {
      .session = app->add_option("SESSION", command->session,
                                 "The session of this number (see gpumemctl ps)"),
      .tenant = AddTenantFilter(app, &command->tenant)
                    ->description("All sessions of this tenant and those below it"),
      .tag = app->add_option("--tag", command->tag, "Only leases with this tag")->type_name("TAG")};
}

// An empty value is that of an unset variable of a script: it would mean all of something.
void CheckNotEmpty(const CLI::Option* option) {
  if (option->count() > 0 && option->as<std::string>().empty()) {
    throw CLI::ValidationError(option->get_name(), "is empty");
  }
}

// SESSION, --tenant, --publication or --process, and for resume --bytes.
void AddSuspended(const CommandSet::Added<SuspendCommand>& added) {
  SuspendCommand* const command = added.command;
  const SessionOptions sessions = AddSessions(added.app, command);
  CLI::Option* const publication =
      added.app
          ->add_option("--publication", command->publication,
                       "This publication instead (see gpumemctl publications)")
          ->type_name("TENANT/NAME");
  CLI::Option* const process =
      added.app
          ->add_option("--process", command->process,
                       command->resume ? "Resume all of this process, as its owner or root"
                                       : "Suspend all of this process, as its owner or root")
          ->type_name("PID")
          ->check(CLI::Range(1, 1 << 22).description(""));
  if (command->resume) {
    AddParsed(added.app, "--bytes", ParseSegmentSize, Into(&command->bytes),
              "With --process: have this much free on each GPU")
        ->type_name("BYTES");
  }
  added.app->parse_complete_callback([command, sessions, publication, process] {
    const bool whole = process->count() > 0;
    const int asked = (sessions.session->count() > 0) + (sessions.tenant->count() > 0);
    if (whole + asked + (publication->count() > 0) != 1) {
      throw CLI::ValidationError(
          "name one", "SESSION, --tenant TENANT, --publication TENANT/NAME or --process PID");
    }
    for (const CLI::Option* each : {sessions.tenant, sessions.tag, publication}) {
      CheckNotEmpty(each);
    }
    if (sessions.tag->count() > 0 && asked == 0) {
      throw CLI::ValidationError("--tag", "needs SESSION or --tenant");
    }
    if (!whole && command->bytes.has_value()) {
      throw CLI::ValidationError("--bytes", "needs --process");
    }
  });
}

// SESSION or --tenant.
void AddDemoted(const CommandSet::Added<DemoteCommand>& added) {
  const SessionOptions sessions = AddSessions(added.app, added.command);
  added.app->parse_complete_callback([sessions] {
    if ((sessions.session->count() > 0) + (sessions.tenant->count() > 0) != 1) {
      throw CLI::ValidationError("name one", "SESSION or --tenant TENANT");
    }
    CheckNotEmpty(sessions.tenant);
    CheckNotEmpty(sessions.tag);
  });
}

void AddDemotion(CommandSet* commands) {
  const auto demote = commands->Add<DemoteCommand>(
      kChanging, "demote", "Move the memory of sessions to host memory they can still use.",
      "Examples:\n  gpumemctl demote 12              the devices' memory is free\n"
      "  gpumemctl promote 12 --timeout 10m    afterwards\n"
      "  gpumemctl demote 12 --tag weights     the leases with that tag alone\n"
      "  gpumemctl demote --tenant lab         all sessions of the tenant\n"
      "The memory keeps its addresses, and the program works on. Its GPUs read that\n"
      "memory over PCIe, some 70 times slower. For memory that is mostly read, such as\n"
      "weights that are seldom used. Its program must serve such requests\n"
      "(Client::ServeSuspensions with pause and proceed). It takes host memory, which\n"
      "counts against the tenant's pinned limit.\n"
      "--timeout is how long it may take (default: 30s). What is demoted by then stays\n"
      "demoted. Asks for confirmation on a terminal.");
  AddDemoted(demote);
  AddCaution(demote.app, &demote.command->caution, /*asks=*/true);
  const auto promote = commands->Add<DemoteCommand>(
      kChanging, "promote", "Bring demoted memory of sessions back to its devices.",
      "Example: gpumemctl promote 12 --timeout 10m\n"
      "Ends gpumemctl demote. gpumemctl ps shows who has demoted memory. --timeout is\n"
      "how long it may take, with the wait for memory that others hold (default: 30s).");
  promote.command->promote = true;
  AddDemoted(promote);
  AddCaution(promote.app, &promote.command->caution, /*asks=*/false);
}

void AddMaintenance(CommandSet* commands) {
  const auto trim = commands->Add<TrimCommand>(
      kChanging, "trim", "Return retained segments to the driver.",
      "Examples:\n  gpumemctl trim --tenant training --keep 1GiB\n"
      "  gpumemctl trim --dry-run\n"
      "A retained segment was released, and is kept for reuse by its tenant. Asks for\n"
      "confirmation on a terminal.");
  AddTenantFilter(trim.app, &trim.command->tenant)->description("Trim only this tenant");
  AddDeviceFilter(trim.app, &trim.command->device)
      ->description("Trim only this device (see gpumemctl devices)");
  AddParsed(trim.app, "--keep", ParseSize, Into(&trim.command->keep_bytes),
            "Keep this much per tenant and device (default: 0)")
      ->type_name("BYTES");
  AddCaution(trim.app, &trim.command->caution, /*asks=*/true);

  const auto suspend = commands->Add<SuspendCommand>(
      kChanging, "suspend", "Move the memory of sessions or a publication to the host tier.",
      "Examples:\n  gpumemctl suspend 12                    the devices' memory is free\n"
      "  gpumemctl suspend --process 4711        and the process's own memory there\n"
      "  gpumemctl resume 12 --timeout 10m       afterwards\n"
      "  gpumemctl suspend --tenant lab          all sessions of the tenant\n"
      "  gpumemctl suspend --publication training/weights\n"
      "  gpumemctl suspend 12 --tag kv           the leases with that tag alone\n"
      "The process of the session moves all that can be moved, and does not use the\n"
      "memory until gpumemctl resume. Its program must serve such requests\n"
      "(Client::ServeSuspensions), and the daemon must have a host tier with room.\n"
      "--timeout is how long it may take (default: 30s). What is suspended by then\n"
      "stays suspended. Asks for confirmation on a terminal.\n"
      "A publication must be attached nowhere, and comes back when a session attaches.\n"
      "With --process the driver then moves what is left of the process to its host\n"
      "memory, its CUDA contexts included (CUDA 12.8). Its CUDA calls block meanwhile.");
  AddSuspended(suspend);
  AddCaution(suspend.app, &suspend.command->caution, /*asks=*/true);
  const auto resume = commands->Add<SuspendCommand>(
      kChanging, "resume", "Bring memory of sessions or a publication back from the tier.",
      "Examples:\n  gpumemctl resume 12 --timeout 10m\n"
      "  gpumemctl resume --process 4711\n"
      "  gpumemctl resume --publication training/weights\n"
      "Ends gpumemctl suspend. gpumemctl ps shows who has suspended memory. --timeout\n"
      "is how long it may take, with the wait for memory that others hold (default:\n"
      "30s). For a process the GPUs need room for all that it had. --bytes says how\n"
      "much if suspend was another user's command.");
  resume.command->resume = true;
  AddSuspended(resume);
  AddCaution(resume.app, &resume.command->caution, /*asks=*/false);

  AddDemotion(commands);

  const auto drain = commands->Add<DrainCommand>(
      kChanging, "drain", "Admit no new sessions or requests.",
      "Examples:\n  gpumemctl drain      before maintenance\n"
      "  gpumemctl undrain    afterwards\n"
      "Sessions keep what they hold. Asks for confirmation on a terminal.");
  Deprecate(drain.app->add_flag("--resume", drain.command->resume, ""), "gpumemctl undrain");
  AddCaution(drain.app, &drain.command->caution, /*asks=*/true);
  const auto undrain =
      commands->Add<DrainCommand>(kChanging, "undrain", "Admit new sessions and requests again.",
                                  "Example: gpumemctl undrain\nEnds gpumemctl drain.");
  undrain.command->resume = true;
  AddCaution(undrain.app, &undrain.command->caution, /*asks=*/false);

  const auto reload = commands->Add<ReloadCommand>(
      kChanging, "reload", "Reload the configuration file of the daemon.",
      "Examples:\n  gpumemctl reload --dry-run    check the file, and show the differences\n"
      "  gpumemctl reload\n"
      "Applies tenants, rules and quotas, and prints the differences. A notice says if\n"
      "other settings need a restart. If the file has a mistake, the configuration in\n"
      "force stays. Changes by quota set stay, too.\n"
      "SIGHUP does the same. gpumemd --check-config checks a file without a daemon.");
  AddCaution(reload.app, &reload.command->caution, /*asks=*/false);
}

}  // namespace

void AddChangingCommands(CommandSet* commands) {
  AddQuota(commands);
  AddTenantCommands(commands);
  AddPool(commands);
  AddMaintenance(commands);
}

}  // namespace gpumem::cli
