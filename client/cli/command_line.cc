#include "client/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/bytes.h"
#include "common/version.h"

namespace gpumem::cli {
namespace {

constexpr char kFooter[] = R"(
Examples:
  gpumemctl devices                       the GPUs and how full they are
  gpumemctl quota get                     what I may hold, and what I hold
  gpumemctl hold --bytes 1GiB --for 10s   be a worker for ten seconds
  gpumemctl segments --json               for programs

devices, whoami, hold and quota get without a name are for everybody. The others use the
admin socket: they are for root, the user that runs the daemon, and the members of the
daemon's admin group.

With --json the answer is one JSON object on stdout (hold and top: one on each line) with
the protocol's field names; sizes are bytes, durations milliseconds, absent limits null.
Errors are then {"error": {"code", "message", "denial"}} on stderr.

Exit codes:
  0  done
  1  the daemon refused, for a reason not named below
  2  the command line makes no sense
  3  no daemon can be reached, or it is going away
  4  not allowed
  5  a quota, or the device, has no room
  6  no such tenant, device or ticket)";

// Adds an option whose text `parse` turns into a value.
template <typename Out, typename Parse>
CLI::Option* AddParsed(CLI::App* app, const std::string& name, Out* out, Parse parse,
                       const std::string& help) {
  return app->add_option_function<std::string>(
      name,
      [name, out, parse](const std::string& text) {
        auto value = parse(text);
        if (!value.ok()) throw CLI::ValidationError(name, std::string(value.status().message()));
        *out = *std::move(value);
      },
      help);
}

absl::StatusOr<absl::Duration> ParsePositiveDuration(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration <= absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a duration (expected one such as 10s, 1m30s, 500ms)"));
  }
  return duration;
}

absl::StatusOr<uint64_t> ParseSegmentSize(const std::string& text) {
  absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  if (bytes.ok() && *bytes == 0) {
    return absl::InvalidArgumentError("a segment has at least one byte");
  }
  return bytes;
}

// The limits of a Quota as options ("total-limit") and as fields ("total_limit_bytes").
const std::map<std::string, std::string>& LimitFields() {
  static const auto& fields =
      *new std::map<std::string, std::string>{{"limit", "limit_bytes"},
                                              {"total-limit", "total_limit_bytes"},
                                              {"max-segments", "max_segments"},
                                              {"max-sessions", "max_sessions"},
                                              {"max-in-flight", "max_in_flight"},
                                              {"max-retained", "max_retained_bytes"},
                                              {"device", "devices"}};
  return fields;
}

std::string LimitNames() {
  return absl::StrJoin(LimitFields(), ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first);
  });
}

absl::StatusOr<std::string> ParseLimitName(const std::string& text) {
  for (const auto& [option, field] : LimitFields()) {
    if (text == option || text == field) return field;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a limit (expected one of ", LimitNames(), ")"));
}

absl::StatusOr<v1::DeviceLimit> ParseDeviceLimit(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == 0 || equals == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not a device's limit (expected DEVICE=BYTES such as 0=10GiB)"));
  }
  absl::StatusOr<uint64_t> bytes = ParseBytes(text.substr(equals + 1));
  if (!bytes.ok()) return bytes.status();
  v1::DeviceLimit limit;
  limit.set_device_uuid(text.substr(0, equals));
  limit.set_limit_bytes(*bytes);
  return limit;
}

class Parser {
 public:
  Parser() {
    app_.name("gpumemctl");
    app_.description("Shows and changes what gpumemd, the owner of this node's GPU memory, does.");
    app_.footer(kFooter);
    app_.set_version_flag("--version", absl::StrCat("gpumemctl ", GPUMEM_VERSION));
    app_.set_help_flag("-h,--help", "Show this help and stop");
    app_.require_subcommand(0, 1);  // none: see Parse, which says it better than CLI11
    // The options below may also stand after the subcommand.
    app_.fallthrough();
    app_.add_option("--runtime-dir", line_.global.runtime_dir,
                    "The folder of the daemon's sockets (default: $GPUMEM_RUNTIME_DIR, else this "
                    "user's own, else /run/gpumem)")
        ->take_last()
        ->type_name("DIR");
    app_.add_flag("--json", line_.global.json, "Answer in JSON");
    app_.add_flag("--exact", line_.global.exact, "Show sizes in bytes instead of GiB and MiB");
    AddShowingCommands();
    AddQuota();
    AddChangingCommands();
    AddTop();
    AddHold();
  }

  CommandLine Parse(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants it
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
      // What CLI11 read before it stopped; the rest may hold the flag as well.
      line_.global.json |=
          std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
    }
    return std::move(line_);
  }

 private:
  // A subcommand that answers with `*command`.
  template <typename C>
  CLI::App* Add(CLI::App* parent, const std::string& name, C* command, const std::string& what,
                const std::string& footer) {
    CLI::App* sub = parent->add_subcommand(name, what);
    sub->footer(footer + "\nHere, too: --runtime-dir, --json, --exact (gpumemctl --help).");
    // Parents finish after their children: the innermost subcommand is the one meant.
    sub->final_callback([this, command] {
      if (!make_) make_ = [command] { return Command(*command); };
    });
    return sub;
  }

  void AddShowingCommands() {
    Add(&app_, "status", &status_, "How the daemon is doing.", "Example: gpumemctl status");
    Add(&app_, "devices", &devices_, "The devices, their capacity and how much is handed out.",
        "Example: gpumemctl devices --exact\nNeeds no privilege.");
    CLI::App* whoami =
        Add(&app_, "whoami", &whoami_, "Which tenant the daemon takes me for, and by which rule.",
            "Example: gpumemctl whoami\nNeeds no privilege.");
    whoami->add_option("--tenant", whoami_.tenant, "Ask to be this tenant")->type_name("NAME");

    CLI::App* ps = Add(&app_, "ps", &ps_, "The sessions: who is connected, and what they hold.",
                       "Example: gpumemctl ps --tenant training\n"
                       "A session is \"lingering\" when it has ended but its process may still map "
                       "memory.");
    ps->add_option("--tenant", ps_.tenant, "Only this tenant's")->type_name("NAME");

    CLI::App* segments = Add(&app_, "segments", &segments_, "The segments and who holds them.",
                             "Example: gpumemctl segments --device 0");
    segments->add_option("--tenant", segments_.tenant, "Only this tenant's")->type_name("NAME");
    segments->add_option("--device", segments_.device, "Only on this device")
        ->type_name("INDEX|UUID");
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

    CLI::App* set =
        Add(quota, "set", &quota_set_,
            "Change limits, at once, until the daemon restarts or reloads its configuration.",
            "Examples:\n  gpumemctl quota set training --limit 40GiB --max-sessions 16\n"
            "  gpumemctl quota set training --device 1=10GiB --clear total-limit\n"
            "A limit below what is used takes nothing away: the tenant gets nothing more until it "
            "is below.");
    set->add_option_function<std::string>(
           "TENANT", [this](const std::string& name) { quota_set_.request.set_tenant(name); },
           "The tenant")
        ->required();
    v1::Quota* limits = quota_set_.request.mutable_quota();
    auto add_bytes = [&](const char* name, void (v1::Quota::*setter)(uint64_t), const char* help) {
      set->add_option_function<std::string>(
             name,
             [=](const std::string& text) {
               absl::StatusOr<uint64_t> bytes = ParseBytes(text);
               if (!bytes.ok()) {
                 throw CLI::ValidationError(name, std::string(bytes.status().message()));
               }
               (limits->*setter)(*bytes);
             },
             help)
          ->type_name("BYTES");
    };
    auto add_count = [&](const char* name, void (v1::Quota::*setter)(uint32_t), const char* help) {
      set->add_option_function<uint32_t>(
             name, [=](uint32_t count) { (limits->*setter)(count); }, help)
          ->type_name("N");
    };
    add_bytes("--limit", &v1::Quota::set_limit_bytes, "Bytes on any one device");
    add_bytes("--total-limit", &v1::Quota::set_total_limit_bytes, "Bytes over all devices");
    add_bytes("--max-retained", &v1::Quota::set_max_retained_bytes,
              "Released bytes on any one device that stay with the tenant for reuse");
    add_count("--max-segments", &v1::Quota::set_max_segments, "Segments at one time");
    add_count("--max-sessions", &v1::Quota::set_max_sessions, "Sessions at one time");
    add_count("--max-in-flight", &v1::Quota::set_max_in_flight, "Calls waiting at one time");
    set->add_option_function<std::vector<std::string>>(
           "--device",
           [limits](const std::vector<std::string>& texts) {
             for (const std::string& text : texts) {
               absl::StatusOr<v1::DeviceLimit> limit = ParseDeviceLimit(text);
               if (!limit.ok()) {
                 throw CLI::ValidationError("--device", std::string(limit.status().message()));
               }
               *limits->add_devices() = *std::move(limit);
             }
           },
           "Bytes on one device; may be given several times")
        ->type_name("DEVICE=BYTES")
        ->allow_extra_args(false);
    set->add_option_function<std::vector<std::string>>(
           "--clear",
           [this](const std::vector<std::string>& texts) {
             for (const std::string& text : texts) {
               absl::StatusOr<std::string> field = ParseLimitName(text);
               if (!field.ok()) {
                 throw CLI::ValidationError("--clear", std::string(field.status().message()));
               }
               quota_set_.request.add_clear(*field);
             }
           },
           absl::StrCat("Remove a limit (", LimitNames(), "); may be given several times"))
        ->type_name("LIMIT")
        ->allow_extra_args(false);
    set->parse_complete_callback([this] {
      const v1::SetQuotaRequest& request = quota_set_.request;
      if (request.quota().ByteSizeLong() == 0 && request.clear().empty()) {
        throw CLI::ValidationError("quota set",
                                   "nothing to change: name a limit, such as --limit 40GiB");
      }
    });
  }

  void AddChangingCommands() {
    CLI::App* trim = Add(&app_, "trim", &trim_,
                         "Give retained segments (released, kept for reuse) back to the driver.",
                         "Example: gpumemctl trim --tenant training --keep 1GiB");
    trim->add_option("--tenant", trim_.tenant, "Only this tenant's")->type_name("NAME");
    trim->add_option("--device", trim_.device, "Only on this device")->type_name("INDEX|UUID");
    AddParsed(
        trim, "--keep", &trim_.keep_bytes, [](const std::string& t) { return ParseBytes(t); },
        "Let each tenant keep this much on each device (default: nothing)")
        ->type_name("BYTES");

    CLI::App* drain = Add(&app_, "drain", &drain_,
                          "Admit no new sessions and requests; holders keep what they have.",
                          "Examples:\n  gpumemctl drain            before maintenance\n"
                          "  gpumemctl drain --resume   afterwards");
    drain->add_flag("--resume", drain_.resume, "Admit again");
  }

  void AddTop() {
    CLI::App* top =
        Add(&app_, "top", &top_, "Devices, tenants and sessions, live, the largest first.",
            "Examples:\n  gpumemctl top                              q quits\n"
            "  gpumemctl top --iterations 1 --json | jq .   one look, for programs");
    AddParsed(top, "--interval", &top_.interval, ParsePositiveDuration,
              "Time between two looks (default: 1s)")
        ->type_name("TIME");
    top->add_option("--iterations", top_.iterations, "Look so often, then stop")->type_name("N");
  }

  void AddHold() {
    CLI::App* hold = Add(&app_, "hold", &hold_,
                         "Be a worker: acquire segments, hold them for a time, release them.",
                         "Examples:\n  gpumemctl hold --bytes 1GiB --for 10s\n"
                         "  gpumemctl hold --bytes 64MiB --count 4 --device 1 --tenant training\n"
                         "Prints each segment with its ticket, by which another process of the "
                         "tenant can open it. Ends on time, or on SIGINT or SIGTERM.\n"
                         "Needs no privilege.");
    AddParsed(hold, "--bytes", &hold_.bytes, ParseSegmentSize,
              "The size of each segment, rounded up to what the device can do")
        ->type_name("BYTES")
        ->required();
    hold->add_option("--device", hold_.device, "The device (default: the first)")
        ->type_name("INDEX|UUID");
    hold->add_option("--count", hold_.count, "How many segments (default: 1)")
        ->type_name("N")
        ->check(CLI::Range(1, 253));
    AddParsed(hold, "--for", &hold_.duration, ParsePositiveDuration,
              "How long (default: until a signal)")
        ->type_name("TIME");
    hold->add_option("--tenant", hold_.tenant, "Ask to be this tenant")->type_name("NAME");
    hold->add_flag("--fill", hold_.fill, "Write to every byte");
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
  PsCommand ps_;
  SegmentsCommand segments_;
  TrimCommand trim_;
  DrainCommand drain_;
  TopCommand top_;
  HoldCommand hold_;
};

}  // namespace

CommandLine ParseCommandLine(const std::vector<std::string>& arguments) {
  return Parser().Parse(arguments);
}

}  // namespace gpumem::cli
