#include "client/cli/options/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/showing_options.h"
#include "client/cli/options/values.h"
#include "client/cli/options/worker_options.h"
#include "common/bytes.h"
#include "common/version.h"

namespace gpumem::cli {
namespace {

constexpr char kFooter[] = R"(
Examples:
  gpumemctl devices                       the GPUs and how full they are
  gpumemctl map                           who holds which part of them
  gpumemctl events --follow               what happens there
  gpumemctl doctor                        is all as it should be?
  gpumemctl quota get                     what I may hold, and what I hold
  gpumemctl hold --bytes 1GiB --for 10s   be a worker for ten seconds
  gpumemctl publish llama --file m.bin    load a model once, for every worker
  gpumemctl segments --json               for programs

devices, whoami, hold, quota get without a name, and what is about publications are for
everybody, and so is doctor, which says what it may not see. The others use the admin
socket: they are for root, the user that runs the daemon, and the members of the daemon's
admin group.

With --json the answer is one JSON object on stdout (hold, top and events: one on each line) with
the protocol's field names; sizes are bytes, durations milliseconds, absent limits null.
Errors are then {"error": {"code", "message", "denial"}} on stderr.

Exit codes:
  0  done
  1  the daemon refused, for a reason not named below; or there is a problem (doctor)
  2  the command line makes no sense
  3  no daemon can be reached, or it is going away
  4  not allowed
  5  a quota, or the device, has no room
  6  no such tenant, device, pool, ticket, publication or file
  7  the memory that was held was taken back (hold --revocable)
  8  what is in memory is not what was published (verify, fetch))";

absl::StatusOr<uint64_t> ParseSize(const std::string& text) { return ParseBytes(text); }

class Parser {
 public:
  Parser() {
    app_.name("gpumemctl");
    app_.description("Shows and changes what gpumemd, the owner of this node's GPU memory, does.");
    app_.footer(kFooter);
    app_.set_version_flag("--version", absl::StrCat("gpumemctl ", GPUMEM_VERSION));
    app_.set_help_flag("-h,--help", "Show this help and stop");
    app_.require_subcommand(0, 1);  // none: Parse reports it better than CLI11
    // The options below are also valid after the subcommand.
    app_.fallthrough();
    app_.add_option("--runtime-dir", line_.global.runtime_dir,
                    "The folder of the daemon's sockets (default: $GPUMEM_RUNTIME_DIR, else this "
                    "user's own, else /run/gpumem)")
        ->take_last()
        ->type_name("DIR");
    app_.add_flag("--json", line_.global.json, "Answer in JSON");
    app_.add_flag("--bytes,--exact", line_.global.exact,
                  "Show sizes in bytes instead of GiB and MiB");
    app_.add_flag("--no-color", line_.global.no_color,
                  "No colours (as with NO_COLOR in the environment, or TERM=dumb)");
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
                "\nHere, too: --runtime-dir, --json, --exact, --no-color (gpumemctl --help).");
    // Parents finish after their children: the innermost subcommand is the result.
    sub->final_callback([this, command] {
      if (!make_) make_ = [command] { return Command(*command); };
    });
    return sub;
  }

  void AddShowingCommands() {
    Add(&app_, "status", &status_, "How the daemon is doing.", "Example: gpumemctl status");
    Add(&app_, "devices", &devices_,
        "The devices: kinds, capacity, use, and which GPU reaches which.",
        "Example: gpumemctl devices --exact\n"
        "CONTEXT is the process of the daemon that has a CUDA context on the device: it starts\n"
        "one for segments of kinds mempool and ipc.\nNeeds no privilege.");
    CLI::App* whoami =
        Add(&app_, "whoami", &whoami_, "Which tenant the daemon takes me for, and by which rule.",
            "Example: gpumemctl whoami\nAlso what it knows of this process (uid, groups, cgroup, "
            "and the unit, container, pod\nor Slurm job that follow from it), and why the rules "
            "before did not decide.\nNeeds no privilege.");
    whoami->add_option("--tenant", whoami_.tenant, "Ask to be this tenant")->type_name("NAME");

    CLI::App* ps = Add(&app_, "ps", &ps_, "The sessions: who is connected, and what they hold.",
                       "Example: gpumemctl ps --tenant training\n"
                       "A session is \"lingering\" when it has ended but its process may still map "
                       "memory,\nor has a memory pool open; \"away\" when the daemon that it began "
                       "with is gone, and its "
                       "client\nhas not come back for it: it keeps what it holds.");
    ps->add_option("--tenant", ps_.tenant, "Only this tenant's")->type_name("NAME");

    CLI::App* segments =
        Add(&app_, "segments", &segments_, "The segments and who holds them.",
            "Example: gpumemctl segments --device 0\n"
            "A segment is \"lost\" when the CUDA context that it lived in is gone: who has it\n"
            "open keeps it, and nobody can open it any more.");
    segments->add_option("--tenant", segments_.tenant, "Only this tenant's")->type_name("NAME");
    segments
        ->add_option(
            "--device", segments_.device,
            "Only on this device: its place in the daemon's list (gpumemctl devices), or its "
            "UUID")
        ->type_name("INDEX|UUID");
  }

  void AddPublications() {
    CLI::App* list =
        Add(&app_, "publications", &publications_, "The publications that this user may attach to.",
            "Example: gpumemctl publications\n"
            "A publication keeps its segments, and stays when its publisher ends, "
            "unless it is\nephemeral. Who published it is told to its own tenant.\n"
            "Needs no privilege.");
    list->add_option("--of", publications_.of_tenant, "Only this tenant's")->type_name("TENANT");
    CLI::App* publish = Add(
        &app_, "publish", &publish_,
        "Load files into memory under a name, for every worker to attach to.",
        "Examples:\n  gpumemctl publish llama --file model.safetensors\n"
        "  gpumemctl publish llama --file shards/*.safetensors --device 1\n"
        "Each file becomes a segment, in the order given, and the memory stays until it is "
        "unpublished.\nUnder a name that is there it becomes the next version: both take memory "
        "until the older\none's last holder ends. Needs no privilege.");
    AddPublishOptions(publish, &publish_);
    CLI::App* fetch = Add(&app_, "fetch", &fetch_, "Write what a publication holds to files.",
                          "Examples:\n  gpumemctl fetch llama --out model.safetensors\n"
                          "  gpumemctl fetch training/llama --out shards/\n"
                          "  gpumemctl fetch llama --out - | sha256sum\n"
                          "Checks it as verify does. Of a publication that gpumemctl did not make, "
                          "each segment\nis a file. Into a folder no file is written whose name "
                          "begins with '.', unless\n--allow-dotfiles is given: the publisher chose "
                          "the names. Needs no privilege.");
    AddFetchOptions(fetch, &fetch_);
    CLI::App* verify =
        Add(&app_, "verify", &verify_, "Compare the bytes in memory with what was published.",
            "Example: gpumemctl verify llama\n"
            "Reads them back from the device and compares their checksums, which xxh128sum also\n"
            "prints for the files. Needs no privilege.");
    AddVerifyOptions(verify, &verify_);
    CLI::App* unpublish =
        Add(&app_, "unpublish", &unpublish_, "End a publication; who has it attached keeps it.",
            "Examples:\n  gpumemctl unpublish weights             my own tenant's\n"
            "  gpumemctl unpublish training/weights    any tenant's, as an operator");
    unpublish->add_option("NAME", unpublish_.name, "The publication")->required();
  }

  void AddQuota() {
    CLI::App* quota = Add(&app_, "quota", &quota_get_, "Show or change what a tenant may hold.",
                          "Without a subcommand: the same as gpumemctl quota get.");
    quota->require_subcommand(0, 1);
    CLI::App* get = Add(quota, "get", &quota_get_, "A tenant's limits and what it holds.",
                        "Examples:\n  gpumemctl quota get            my own; needs no privilege\n"
                        "  gpumemctl quota get training");
    get->add_option("TENANT", quota_get_.tenant, "The tenant (default: the caller's own)");
    Add(quota, "list", &quota_list_, "All tenants, one on each line.",
        "Example: gpumemctl quota list");

    AddQuotaUnset(quota);
    CLI::App* set = Add(
        quota, "set", &quota_set_, "Change what a tenant may have, at once and until quota unset.",
        "Examples:\n  gpumemctl quota set training --limit 40GiB --max-sessions 16\n"
        "  gpumemctl quota set training --device 1=10GiB --clear total-limit\n"
        "  gpumemctl quota set serving --guarantee 20GiB --priority 10\n"
        "What is set goes before the configuration, also after a restart or a reload; what is\n"
        "not set follows the configuration. A limit below what is used takes nothing away: the\n"
        "tenant gets nothing more until it is below.");
    set->add_option_function<std::string>(
           "TENANT", [this](const std::string& name) { quota_set_.request.set_tenant(name); },
           "The tenant")
        ->required();
    v1::Quota* limits = quota_set_.request.mutable_quota();
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
    add_bytes("--limit", &v1::Quota::set_limit_bytes, "Bytes on any one device");
    add_bytes("--total-limit", &v1::Quota::set_total_limit_bytes, "Bytes over all devices");
    add_bytes("--pinned-limit", &v1::Quota::set_pinned_limit_bytes,
              "Bytes of pinned host memory, which no other limit in bytes counts");
    add_bytes("--max-retained", &v1::Quota::set_max_retained_bytes,
              "Released bytes on any one device that stay with the tenant for reuse");
    add_count("--max-segments", &v1::Quota::set_max_segments, "Segments at one time");
    add_count("--max-sessions", &v1::Quota::set_max_sessions, "Sessions at one time");
    add_count("--max-in-flight", &v1::Quota::set_max_in_flight, "Calls being answered at one time");
    AddSeveral(
        set, "--device", ParseDeviceBytes,
        [limits](const DeviceBytes& of) {
          v1::DeviceLimit& limit = *limits->add_devices();
          limit.set_device_uuid(of.device);
          limit.set_limit_bytes(of.bytes);
        },
        "Bytes on one device")
        ->type_name("DEVICE=BYTES");
    AddQuotaSettings(set, limits);
    AddSeveral(
        set, "--clear", ParseLimitName,
        [this](const std::string& field) { quota_set_.request.add_clear(field); },
        absl::StrCat("Let there be none, whatever the configuration says (", LimitNames(), ")"))
        ->type_name("LIMIT");
    set->parse_complete_callback([this] {
      const v1::SetQuotaRequest& request = quota_set_.request;
      if (request.quota().ByteSizeLong() == 0 && request.clear().empty()) {
        throw CLI::ValidationError("quota set",
                                   "nothing to change: name a limit, such as --limit 40GiB");
      }
    });
  }

  // The settings of quota set that are not limits.
  static void AddQuotaSettings(CLI::App* set, v1::Quota* quota) {
    AddParsed(
        set, "--guarantee", ParseSize, [=](uint64_t bytes) { quota->set_guarantee_bytes(bytes); },
        "Bytes on any one GPU that the tenant can always get")
        ->type_name("BYTES");
    AddSeveral(
        set, "--device-guarantee", ParseDeviceBytes,
        [quota](const DeviceBytes& of) {
          v1::DeviceGuarantee& guarantee = *quota->add_guarantees();
          guarantee.set_device_uuid(of.device);
          guarantee.set_guarantee_bytes(of.bytes);
        },
        "The same on one GPU")
        ->type_name("DEVICE=BYTES");
    set->add_option_function<int32_t>(
           "--priority", [=](int32_t priority) { quota->set_priority(priority); },
           "Among those that wait: the higher first (-1000 to 1000)")
        ->type_name("N");
    set->add_option_function<uint32_t>(
           "--max-waiting", [=](uint32_t count) { quota->set_max_waiting(count); },
           "Requests that wait for memory at one time")
        ->type_name("N");
    set->add_option_function<uint32_t>(
           "--max-publications", [=](uint32_t count) { quota->set_max_publications(count); },
           "Publications at one time")
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
    add_switch("scrub", &v1::Quota::set_scrub, "Never reuse memory with what was in it before",
               "Reuse memory inside the tenant as it is");
    add_switch("revocable", &v1::Quota::set_revocable, "All leases may be taken back",
               "Only leases that are asked for so may be taken back");
    AddParsed(
        set, "--parent",
        [](const std::string&) -> absl::StatusOr<std::string> {
          return absl::InvalidArgumentError(
              "the tenant that another one is under is said in the configuration (parent = …); "
              "write it there, then gpumemctl reload");
        },
        [](const std::string&) {}, "")
        ->group("");  // hidden: it exists to report this error
    AddParsed(
        set, "--kind", ParseWireKind, [=](v1::Kind kind) { quota->set_kind(kind); },
        "Of requests that name none")
        ->type_name(KindWords());
    AddParsed(
        set, "--release", ParseRelease,
        [=](v1::ReleasePolicy policy) { quota->set_release(policy); },
        "Whether who releases memory is believed, or it stays charged until the process is gone")
        ->type_name("trust|on-exit");
  }

  void AddQuotaUnset(CLI::App* quota) {
    CLI::App* unset = Add(quota, "unset", &quota_unset_, "Take back what quota set changed.",
                          "Examples:\n  gpumemctl quota unset training            all of it\n"
                          "  gpumemctl quota unset training --limit    the limit alone\n"
                          "The quota is again as the configuration says.");
    v1::UnsetQuotaRequest& request = quota_unset_.request;
    unset
        ->add_option_function<std::string>(
            "TENANT", [&request](const std::string& name) { request.set_tenant(name); },
            "The tenant")
        ->required();
    for (const auto& [option, field] : LimitFields()) {
      unset
          ->add_flag_callback(
              "--" + option, [&request, field = field] { request.add_fields(field); },
              "Only what --" + option + " changed, and others that are named")
          ->disable_flag_override();
    }
  }

  void AddPool() {
    CLI::App* pool =
        Add(&app_, "pool", &pool_list_, "Show or change the driver's memory pools (kind mempool).",
            "Without a subcommand: the same as gpumemctl pool list.\n"
            "A tenant has a pool on a device while it has segments of kind mempool there.");
    pool->require_subcommand(0, 1);
    CLI::App* list =
        Add(pool, "list", &pool_list_, "The pools, one on each line.",
            "Example: gpumemctl pool list --tenant training\n"
            "RESERVED is taken from the device, USED by segments. The driver keeps what\n"
            "is unused up to THRESHOLD, and reserves no more than MAX.");
    list->add_option("--tenant", pool_list_.tenant, "Only this tenant's")->type_name("NAME");
    list->add_option(
            "--device", pool_list_.device,
            "Only on this device: its place in the daemon's list (gpumemctl devices), or its UUID")
        ->type_name("INDEX|UUID");

    v1::SetPoolRequest& change = pool_set_.request;
    CLI::App* set =
        Add(pool, "set", &pool_set_, "Change a pool's attributes, until the daemon ends.",
            "Examples:\n  gpumemctl pool set training --release-threshold 4GiB\n"
            "  gpumemctl pool set training --device 1 --reuse-opportunistic off --reset-peaks\n"
            "The attributes are CUDA's (cudaMemPoolAttr). They hold at once, and for the tenant's\n"
            "later pools on the device.");
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

    v1::TrimPoolRequest& cut = pool_trim_.request;
    CLI::App* trim = Add(pool, "trim", &pool_trim_,
                         "Give reserved bytes that no segment uses back to the driver.",
                         "Example: gpumemctl pool trim training --to 1GiB");
    AddPoolName(trim, cut.mutable_tenant(), cut.mutable_device_uuid());
    AddParsed(
        trim, "--to", ParseSize, [&cut](uint64_t bytes) { cut.set_keep_bytes(bytes); },
        "Let the pool keep this much (default: what its segments use)")
        ->type_name("BYTES");
  }

  static void AddPoolName(CLI::App* app, std::string* tenant, std::string* device) {
    app->add_option("TENANT", *tenant, "The tenant")->required();
    app->add_option("--device", *device,
                    "The device: its place in the daemon's list (gpumemctl devices), or its UUID "
                    "(default: the first on which the tenant has a pool)")
        ->type_name("INDEX|UUID");
  }

  void AddChangingCommands() {
    CLI::App* trim = Add(&app_, "trim", &trim_,
                         "Give retained segments (released, kept for reuse) back to the driver.",
                         "Example: gpumemctl trim --tenant training --keep 1GiB");
    trim->add_option("--tenant", trim_.tenant, "Only this tenant's")->type_name("NAME");
    trim->add_option(
            "--device", trim_.device,
            "Only on this device: its place in the daemon's list (gpumemctl devices), or its UUID")
        ->type_name("INDEX|UUID");
    AddParsed(trim, "--keep", ParseSize, Into(&trim_.keep_bytes),
              "Let each tenant keep this much on each device (default: nothing)")
        ->type_name("BYTES");

    CLI::App* drain = Add(&app_, "drain", &drain_,
                          "Admit no new sessions and requests; holders keep what they have.",
                          "Examples:\n  gpumemctl drain            before maintenance\n"
                          "  gpumemctl drain --resume   afterwards");
    drain->add_flag("--resume", drain_.resume, "Admit again");

    Add(&app_, "reload", &reload_,
        "Let the daemon read its configuration file again, and say what is different.",
        "Example: gpumemctl reload\n"
        "Tenants, rules and quotas are taken over, all or nothing: with a mistake in the file, "
        "the\n"
        "configuration in force stays. What quota set changed stays, too. SIGHUP does the same.");
  }

  void AddTop() {
    CLI::App* top =
        Add(&app_, "top", &top_, "Devices, tenants and sessions, live, the largest first.",
            "Examples:\n  gpumemctl top                              q quits, ? shows the keys\n"
            "  gpumemctl top --by process --sort age\n"
            "  gpumemctl top --iterations 1 --json | jq .   one look, for programs");
    AddTopOptions(top, &top_);
    CLI::App* map = Add(&app_, "map", &map_,
                        "The devices as pictures: which tenant holds what, and what is free.",
                        "Examples:\n  gpumemctl map\n  gpumemctl map --device 0 --rows 8\n"
                        "A tenant has as many letters as it has bytes: capital ones for what is "
                        "leased, small ones\nfor what is retained (released, kept for reuse), '~' "
                        "for what lingers (the lease has ended,\na process may still map it).");
    AddMapOptions(map, &map_);
    CLI::App* describe =
        Add(&app_, "describe", &describe_, "All that is known of one thing, and what it refers to.",
            "Examples:\n  gpumemctl describe tenant training\n  gpumemctl describe segment 12\n"
            "  gpumemctl describe lease 33\n  gpumemctl describe training/llama");
    AddDescribeOptions(describe, &describe_);
    CLI::App* events =
        Add(&app_, "events", &events_, "What has happened in the broker, and what happens.",
            "Examples:\n  gpumemctl events                          what the daemon still knows\n"
            "  gpumemctl events --follow --tenant a      from now on, until Ctrl-C\n"
            "  gpumemctl events --follow --json --event denied --event revoked\n"
            "Grants, denials, releases, revocations, reclaims, sessions, and changes of quotas and "
            "the\nconfiguration (docs/audit.md has all of them). With --json, an object on each "
            "line.");
    AddEventsOptions(events, &events_);
    Add(&app_, "doctor", &doctor_, "Check this machine and the daemon on it, and say what to do.",
        "Example: sudo gpumemctl doctor\n"
        "Works without a daemon, and without privilege: then it says what it could not see. The\n"
        "exit code is 1 where there is a problem; warnings leave it at 0.");
  }

  void AddHold() {
    CLI::App* hold = Add(
        &app_, "hold", &hold_,
        "Be a worker: acquire or open segments, hold them for a time, release them.",
        "Examples:\n  gpumemctl hold --bytes 1GiB --for 10s\n"
        "  gpumemctl hold --bytes 64MiB --count 4 --device most-free --tenant training\n"
        "  gpumemctl hold --bytes 64MiB --kind ipc --show-handle\n"
        "  gpumemctl hold --open TICKET --read-only\n"
        "  gpumemctl hold --bytes 40GiB --wait 1h --revocable\n"
        "Prints each segment with its ticket, by which another process of the tenant can open\n"
        "it, and says on stderr when one is lost (gpumemctl segments --help). Ends on time, or\n"
        "on SIGINT or SIGTERM.\n"
        "A device is named by its UUID or the beginning of it, by its PCI bus id, or by its\n"
        "ordinal as this process sees it (CUDA_VISIBLE_DEVICES).\n"
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
