// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/pool_options.h"
#include "client/cli/options/quota_options.h"
#include "client/cli/options/showing_options.h"
#include "client/cli/options/values.h"
#include "client/cli/options/worker_options.h"
#include "common/version.h"

namespace gpumem::cli {
namespace {

constexpr char kFooter[] = R"(
Examples:
  gpumemctl devices                       list GPUs and their use
  gpumemctl map                           show who holds which part of them
  gpumemctl events --follow               watch events
  gpumemctl doctor                        check this machine and its daemon
  gpumemctl quota get                     show your limits and usage
  gpumemctl hold --bytes 1GiB --for 10s   hold memory for ten seconds
  gpumemctl publish llama --file m.bin    load a model once, for all workers
  gpumemctl segments --json               print JSON for programs

These commands need no privilege: devices, whoami, hold, doctor, publications,
publish, fetch, verify, unpublish, and quota get without a tenant. The others
use the admin socket: they are for root, the user that runs the daemon, and the
members of the daemon's admin group.

Without --runtime-dir the folder of the daemon's sockets is $GPUMEM_RUNTIME_DIR,
else this user's own, else /run/gpumem.

With --json a command prints one JSON object (hold, top and events: one on each
line) with the protocol's field names. Sizes are bytes, durations milliseconds,
absent limits null. Errors are {"error": {"code", "message", "denial"}} on
stderr.

Exit codes:
  0  success
  1  refused by the daemon for another reason, or doctor found a problem
  2  invalid command line
  3  the daemon is unreachable or is shutting down
  4  permission denied
  5  a quota or the device is exhausted
  6  no such tenant, device, pool, ticket, publication or file
  7  the held memory was revoked (hold --revocable)
  8  the memory differs from what was published (verify, fetch))";

class Parser {
 public:
  Parser() {
    app_.name("gpumemctl");
    app_.description("Show and change what gpumemd, the owner of this node's GPU memory, does.");
    app_.footer(kFooter);
    app_.set_version_flag("--version", absl::StrCat("gpumemctl ", GPUMEM_VERSION),
                          "Show the version and exit");
    app_.set_help_flag("-h,--help", "Show this help and exit");
    app_.require_subcommand(0, 1);  // none: Parse reports it better than CLI11
    // The options below are also valid after the subcommand.
    app_.fallthrough();
    app_.add_option("--runtime-dir", line_.global.runtime_dir,
                    "Find the daemon's sockets in this folder")
        ->take_last()
        ->type_name("DIR");
    app_.add_flag("--json", line_.global.json, "Print JSON");
    app_.add_flag("--bytes,--exact", line_.global.exact, "Print sizes in bytes");
    app_.add_flag("--no-color", line_.global.no_color,
                  "Print no colours (as with NO_COLOR or TERM=dumb)");
    AddShowingCommands();
    AddPublications();
    AddQuota();
    AddPool();
    AddChangingCommands();
    AddTop();
    AddHold();
  }

  CommandLine Parse(std::vector<std::string> arguments) {
    // Also if parsing stops before the flag.
    const bool json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
    std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 expects
    try {
      app_.parse(arguments);
      if (!make_) throw CLI::RequiredError("A subcommand");
      line_.command = make_();
    } catch (const CLI::Success& asked) {  // --help, --version
      std::ostringstream out;
      app_.exit(asked, out, out);
      line_.text = out.str();
    } catch (const CLI::ParseError& error) {
      line_.error = absl::StrReplaceAll(error.what(), {{"\n", " "}});
      line_.global.json = json;
    }
    return std::move(line_);
  }

  const CLI::App& app() const { return app_; }

 private:
  // A subcommand that returns `*command`.
  template <typename C>
  CLI::App* Add(CLI::App* parent, const std::string& name, C* command, const std::string& what,
                const std::string& footer) {
    CLI::App* sub = parent->add_subcommand(name, what);
    sub->footer(footer +
                "\nGlobal options: --runtime-dir, --json, --exact, --no-color (gpumemctl --help)");
    // Parents finish after their children: the innermost subcommand is the result.
    sub->final_callback([this, command] {
      if (!make_) make_ = [command] { return Command(*command); };
    });
    return sub;
  }

  void AddShowingCommands() {
    Add(&app_, "status", &status_, "Show the state of the daemon.", "Example: gpumemctl status");
    Add(&app_, "devices", &devices_, "List devices: kinds, capacity, use, peer access.",
        "Example: gpumemctl devices --exact\n"
        "CONTEXT is the daemon's process with a CUDA context on the device. The daemon\n"
        "starts one for segments of kinds mempool and ipc.\nNeeds no privilege.");
    CLI::App* whoami =
        Add(&app_, "whoami", &whoami_, "Show your tenant and the rule that decides it.",
            "Example: gpumemctl whoami\n"
            "Shows also the facts that the daemon has about this process (uid, groups,\n"
            "cgroup, and the unit, container, pod or Slurm job derived from it), and why the\n"
            "rules before that one did not match.\nNeeds no privilege.");
    whoami->add_option("--tenant", whoami_.tenant, "Request this tenant")->type_name("NAME");

    CLI::App* ps =
        Add(&app_, "ps", &ps_, "List sessions and what they hold.",
            "Example: gpumemctl ps --tenant training\n"
            "A session is \"lingering\" if it has ended, but its process may still map memory\n"
            "or have a memory pool open. It is \"away\" if the daemon has restarted and\n"
            "its client has not reconnected: it keeps what it holds.");
    ps->add_option("--tenant", ps_.tenant, "Show only this tenant")->type_name("NAME");

    CLI::App* segments =
        Add(&app_, "segments", &segments_, "List segments and their holders.",
            "Example: gpumemctl segments --device 0\n"
            "A segment is \"lost\" if its CUDA context is gone: sessions that have it open\n"
            "keep it, and no other session can open it.");
    segments->add_option("--tenant", segments_.tenant, "Show only this tenant")->type_name("NAME");
    segments
        ->add_option("--device", segments_.device, "Show only this device (see gpumemctl devices)")
        ->type_name("INDEX|UUID");
  }

  void AddPublications() {
    CLI::App* list =
        Add(&app_, "publications", &publications_, "List publications that you may attach to.",
            "Example: gpumemctl publications\n"
            "A publication keeps its segments, and outlives its publisher unless it is\n"
            "ephemeral. Only its own tenant sees the publisher.\n"
            "Needs no privilege.");
    list->add_option("--of", publications_.of_tenant, "Show only this tenant")->type_name("TENANT");
    CLI::App* publish =
        Add(&app_, "publish", &publish_, "Load files into memory as a publication.",
            "Examples:\n  gpumemctl publish llama --file model.safetensors\n"
            "  gpumemctl publish llama --file shards/*.safetensors --device 1\n"
            "Each file becomes a segment, in the given order. The memory stays until it is\n"
            "unpublished. An existing name gets a new version: both versions take memory\n"
            "until the last holder of the older one ends.\n"
            "DEVICE is a UUID or its beginning, a PCI bus id, an ordinal as this process sees\n"
            "it (CUDA_VISIBLE_DEVICES), or most-free. The default is the first visible device\n"
            "that has the kind.\n"
            "Needs no privilege.");
    AddPublishOptions(publish, &publish_);
    CLI::App* fetch =
        Add(&app_, "fetch", &fetch_, "Write the contents of a publication to files.",
            "Examples:\n  gpumemctl fetch llama --out model.safetensors\n"
            "  gpumemctl fetch training/llama --out shards/\n"
            "  gpumemctl fetch llama --out - | sha256sum\n"
            "Verifies the bytes, too. If gpumemctl did not publish it, each segment becomes a\n"
            "file. The publisher chose the names: one that begins with '.' is written into\n"
            "a folder only with --allow-dotfiles.\n"
            "Needs no privilege.");
    AddFetchOptions(fetch, &fetch_);
    CLI::App* verify =
        Add(&app_, "verify", &verify_, "Check the memory of a publication for changes.",
            "Example: gpumemctl verify llama\n"
            "Reads the bytes back from the device and compares their checksums. xxh128sum\n"
            "prints the same checksums for the files.\n"
            "Needs no privilege.");
    AddVerifyOptions(verify, &verify_);
    CLI::App* unpublish =
        Add(&app_, "unpublish", &unpublish_, "End a publication; attached sessions keep it.",
            "Examples:\n  gpumemctl unpublish weights             of your own tenant\n"
            "  gpumemctl unpublish training/weights    of any tenant, as an operator");
    unpublish->add_option("NAME", unpublish_.name, "End this publication ([TENANT/]NAME)")
        ->required();
  }

  void AddQuota() {
    CLI::App* quota = Add(&app_, "quota", &quota_get_, "Show or change the quota of a tenant.",
                          "Without a subcommand: same as gpumemctl quota get.");
    quota->require_subcommand(0, 1);
    CLI::App* get = Add(quota, "get", &quota_get_, "Show the limits and the usage of a tenant.",
                        "Examples:\n  gpumemctl quota get            your own; needs no privilege\n"
                        "  gpumemctl quota get training");
    get->add_option("TENANT", quota_get_.tenant, "Show this tenant (default: your own)");
    Add(quota, "list", &quota_list_, "List all tenants with limits and usage.",
        "Example: gpumemctl quota list");

    AddQuotaUnset(quota);
    CLI::App* set =
        Add(quota, "set", &quota_set_, "Change the quota of a tenant until quota unset.",
            "Examples:\n  gpumemctl quota set training --limit 40GiB --max-sessions 16\n"
            "  gpumemctl quota set training --device 1=10GiB --clear total-limit\n"
            "  gpumemctl quota set serving --guarantee 20GiB --priority 10\n"
            "These settings override the configuration, also after a restart or a reload.\n"
            "Other settings follow the configuration. A limit below the usage revokes\n"
            "nothing: the tenant gets nothing new until its usage is below the limit.\n"
            "LIMIT is the name of a setting, such as total-limit.");
    AddQuotaSetOptions(set, &quota_set_);
  }

  void AddQuotaUnset(CLI::App* quota) {
    CLI::App* unset = Add(quota, "unset", &quota_unset_, "Undo changes made by quota set.",
                          "Examples:\n  gpumemctl quota unset training            all settings\n"
                          "  gpumemctl quota unset training --limit    only the limit\n"
                          "The settings follow the configuration again.");
    AddQuotaUnsetOptions(unset, &quota_unset_);
  }

  void AddPool() {
    CLI::App* pool =
        Add(&app_, "pool", &pool_list_, "Show or change CUDA memory pools (kind mempool).",
            "Without a subcommand: same as gpumemctl pool list.\n"
            "A tenant has a pool on a device while it has segments of kind mempool there.");
    pool->require_subcommand(0, 1);
    CLI::App* list =
        Add(pool, "list", &pool_list_, "List the memory pools.",
            "Example: gpumemctl pool list --tenant training\n"
            "RESERVED bytes are taken from the device, USED bytes are in segments. The driver\n"
            "keeps unused bytes up to THRESHOLD, and reserves at most MAX.");
    AddPoolListOptions(list, &pool_list_);

    CLI::App* set =
        Add(pool, "set", &pool_set_, "Change attributes of a pool until gpumemd stops.",
            "Examples:\n  gpumemctl pool set training --release-threshold 4GiB\n"
            "  gpumemctl pool set training --device 1 --reuse-opportunistic off --reset-peaks\n"
            "The attributes are those of cudaMemPoolAttr. They apply at once, and to later\n"
            "pools of the tenant on the device.");
    AddPoolSetOptions(set, &pool_set_);

    CLI::App* trim = Add(pool, "trim", &pool_trim_, "Return unused bytes of a pool to the driver.",
                         "Example: gpumemctl pool trim training --to 1GiB");
    AddPoolTrimOptions(trim, &pool_trim_);
  }

  void AddChangingCommands() {
    CLI::App* trim = Add(&app_, "trim", &trim_, "Return retained segments to the driver.",
                         "Example: gpumemctl trim --tenant training --keep 1GiB\n"
                         "A retained segment was released, and is kept for reuse by its tenant.");
    trim->add_option("--tenant", trim_.tenant, "Trim only this tenant")->type_name("NAME");
    trim->add_option("--device", trim_.device, "Trim only this device (see gpumemctl devices)")
        ->type_name("INDEX|UUID");
    AddParsed(trim, "--keep", ParseSize, Into(&trim_.keep_bytes),
              "Keep this much per tenant and device (default: 0)")
        ->type_name("BYTES");

    CLI::App* drain = Add(&app_, "drain", &drain_, "Admit no new sessions or requests.",
                          "Examples:\n  gpumemctl drain            before maintenance\n"
                          "  gpumemctl drain --resume   afterwards\n"
                          "Sessions keep what they hold.");
    drain->add_flag("--resume", drain_.resume, "Admit new sessions and requests again");

    Add(&app_, "reload", &reload_, "Reload the configuration file of the daemon.",
        "Example: gpumemctl reload\n"
        "Applies tenants, rules and quotas, and prints the differences. If the file has a\n"
        "mistake, the configuration in force stays. Changes by quota set stay, too.\n"
        "SIGHUP does the same.");
  }

  void AddTop() {
    CLI::App* top =
        Add(&app_, "top", &top_, "Show devices, tenants and sessions live.",
            "Examples:\n  gpumemctl top                              q quits, ? lists the keys\n"
            "  gpumemctl top --by process --sort age\n"
            "  gpumemctl top --iterations 1 --json | jq .\n"
            "The largest are first. --sort count: by segments, leases or tenants; --sort age,\n"
            "with --by process: the youngest first.");
    AddTopOptions(top, &top_);
    CLI::App* map =
        Add(&app_, "map", &map_, "Draw the memory of the devices by tenant.",
            "Examples:\n  gpumemctl map\n  gpumemctl map --device 0 --rows 8\n"
            "The number of letters of a tenant is in proportion to its bytes: capital letters\n"
            "are leased, small ones retained (released, kept for reuse), and '~' lingering\n"
            "(the lease has ended, but a process may still map the memory).");
    AddMapOptions(map, &map_);
    CLI::App* describe =
        Add(&app_, "describe", &describe_, "Show all facts about one object.",
            "Examples:\n  gpumemctl describe tenant training\n  gpumemctl describe segment 12\n"
            "  gpumemctl describe lease 33\n  gpumemctl describe training/llama\n"
            "WHAT is tenant, session, lease, segment, publication or device, and a name or\n"
            "number. The type may be left out if the name is unambiguous.");
    AddDescribeOptions(describe, &describe_);
    CLI::App* events =
        Add(&app_, "events", &events_, "Show past or current events of the broker.",
            "Examples:\n  gpumemctl events                          past events\n"
            "  gpumemctl events --follow --tenant a      new events, until Ctrl-C\n"
            "  gpumemctl events --follow --json --event denied --event revoked\n"
            "Events are grants, denials, releases, revocations, reclaims, sessions, and\n"
            "changes of quotas and the configuration. docs/reference/audit.md lists them.\n"
            "With --json each line is an object.");
    AddEventsOptions(events, &events_);
    Add(&app_, "doctor", &doctor_, "Check this machine and its daemon.",
        "Example: sudo gpumemctl doctor\n"
        "Names problems and their remedies. Works without a daemon and without privilege,\n"
        "and then says what it could not see. The exit code is 1 if there is a problem;\n"
        "warnings leave it at 0.");
  }

  void AddHold() {
    CLI::App* hold =
        Add(&app_, "hold", &hold_, "Hold memory as a worker process.",
            "Examples:\n  gpumemctl hold --bytes 1GiB --for 10s\n"
            "  gpumemctl hold --bytes 64MiB --count 4 --device most-free --tenant training\n"
            "  gpumemctl hold --bytes 64MiB --kind ipc --show-handle\n"
            "  gpumemctl hold --open TICKET --read-only\n"
            "  gpumemctl hold --bytes 40GiB --wait 1h --revocable\n"
            "Prints each segment with its ticket, with which another process of the tenant\n"
            "can open it. Reports on stderr if a segment is lost (gpumemctl segments --help).\n"
            "Ends after --for, or on SIGINT or SIGTERM.\n"
            "DEVICE is a UUID or its beginning, a PCI bus id, an ordinal as this process sees\n"
            "it (CUDA_VISIBLE_DEVICES), or most-free. The default is the first visible device\n"
            "that has the kind.\n"
            "Revocable memory may be idle memory that is guaranteed to other tenants. When\n"
            "the daemon revokes it, hold releases it and exits with 7.\n"
            "Needs no privilege.");
    AddHoldOptions(hold, &hold_);
  }

  CLI::App app_;
  CommandLine line_;
  std::function<Command()> make_;
  StatusCommand status_;
  DevicesCommand devices_;
  WhoamiCommand whoami_;
  QuotaGetCommand quota_get_;
  QuotaListCommand quota_list_;
  QuotaSetCommand quota_set_;
  QuotaUnsetCommand quota_unset_;
  PsCommand ps_;
  SegmentsCommand segments_;
  PublicationsCommand publications_;
  PublishCommand publish_;
  FetchCommand fetch_;
  VerifyCommand verify_;
  UnpublishCommand unpublish_;
  PoolListCommand pool_list_;
  PoolSetCommand pool_set_;
  PoolTrimCommand pool_trim_;
  TrimCommand trim_;
  DrainCommand drain_;
  ReloadCommand reload_;
  TopCommand top_;
  MapCommand map_;
  DescribeCommand describe_;
  DoctorCommand doctor_;
  EventsCommand events_;
  HoldCommand hold_;
};

}  // namespace

CommandLine ParseCommandLine(const std::vector<std::string>& arguments) {
  return Parser().Parse(arguments);
}

void WithParser(absl::FunctionRef<void(const CLI::App&)> use) { use(Parser().app()); }

}  // namespace gpumem::cli
