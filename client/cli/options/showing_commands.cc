// SPDX-License-Identifier: Apache-2.0
// The commands that show the state: their names, texts and options.
#include "client/cli/options/command_set.h"
#include "client/cli/options/common_options.h"
#include "client/cli/options/showing_options.h"

namespace gpumem::cli {
namespace {

void AddTables(CommandSet* commands) {
  commands->Add<StatusCommand>(kShowing, "status", "Show the state of the daemon.",
                               "Example: gpumemctl status");
  commands->Add<DevicesCommand>(
      kShowing, "devices", "List devices: kinds, capacity, use, peer access.",
      "Example: gpumemctl devices --exact\n"
      "INDEX is the daemon's number of the device. It means the same in every command,\n"
      "whatever CUDA_VISIBLE_DEVICES says. UUIDs stay the same over restarts.\n"
      "CONTEXT is the daemon's process with a CUDA context on the device. The daemon\n"
      "starts one for segments of kinds mempool and ipc.\nNeeds no privilege.");
  const auto ps = commands->Add<PsCommand>(
      kShowing, "ps", "List sessions and what they hold.",
      "Example: gpumemctl ps --tenant training\n"
      "A session is \"lingering\" if it has ended, but its process may still map memory\n"
      "or have a memory pool open. It is \"away\" if the daemon has restarted and\n"
      "its client has not reconnected: it keeps what it holds. SUSPENDED bytes are the\n"
      "part of LEASED in the host tier, DEMOTED bytes the part in host memory at the\n"
      "same addresses; the columns are left out where there are none.");
  AddTenantFilter(ps.app, &ps.command->tenant);
  const auto segments = commands->Add<SegmentsCommand>(
      kShowing, "segments", "List segments and their holders.",
      "Example: gpumemctl segments --device 0\n"
      "A segment is \"lost\" if its CUDA context is gone: sessions that have it open\n"
      "keep it, and no other session can open it.");
  AddTenantFilter(segments.app, &segments.command->tenant);
  AddDeviceFilter(segments.app, &segments.command->device);
}

void AddUsage(CommandSet* commands) {
  const auto usage = commands->Add<UsageCommand>(
      kShowing, "usage", "Show what a job or a tenant has used over time.",
      "Examples:\n  gpumemctl usage --job 17\n  gpumemctl usage training\n"
      "GIB-HOURS are the bytes charged, summed over time; with --exact, byte-seconds.\n"
      "The last 1,000 jobs that have ended are known, too, until the daemon restarts.\n"
      "ID is the job's number ($SLURM_JOB_ID). Each element of an array has one:\n"
      "sacct -X -j 17_3 -o JobIDRaw. A user may ask for the own tenant and for the own\n"
      "jobs, an operator for all tenants.");
  AddUsageOptions(usage.app, usage.command);
}

void AddPictures(CommandSet* commands) {
  const auto top = commands->Add<TopCommand>(
      kShowing, "top", "Show devices, tenants and sessions live.",
      "Examples:\n  gpumemctl top                              q quits, ? lists the keys\n"
      "  gpumemctl top --by process --sort age\n"
      "  gpumemctl top --iterations 1 --json | jq .\n"
      "The largest are first. --sort count: by segments, leases or tenants; --sort age,\n"
      "with --by process: the youngest first. SUSPENDED bytes are in the host tier,\n"
      "DEMOTED bytes in host memory at the same addresses.");
  AddTopOptions(top.app, top.command);
  const auto map = commands->Add<MapCommand>(
      kShowing, "map", "Draw the memory of the devices by tenant.",
      "Examples:\n  gpumemctl map\n  gpumemctl map --device 0 --rows 8\n"
      "The number of letters of a tenant is in proportion to its bytes: capital letters\n"
      "are leased, small ones retained (released, kept for reuse), and '~' lingering\n"
      "(the lease has ended, but a process may still map the memory). Tenants after the\n"
      "26th share '*'. The host tier is drawn like a device.");
  AddMapOptions(map.app, map.command);
}

void AddTrace(CommandSet* commands) {
  CLI::App* trace =
      commands
          ->Add<TraceShowCommand>(
              kShowing, "trace", "Record where requests spend their time.",
              "The files are traces in Perfetto's format: open them at https://ui.perfetto.dev.\n"
              "A worker with GPUMEM_TRACE_FILE in its environment writes its own trace.")
          .app;
  trace->require_subcommand(1);
  const auto on = commands->Add<TraceCommand>(
      trace, kCommands, "on", "Record a trace of the daemon.",
      "Examples:\n  gpumemctl trace on --seconds 5 --out acquires.pftrace\n"
      "  gpumemctl trace on --out both.pftrace --with /tmp/worker.pftrace\n"
      "Then prints the medians of the calls by step. Ctrl-C ends the trace early. There\n"
      "is one trace at a time. Needs the admin socket.");
  AddTraceOptions(on.app, on.command);
  const auto show = commands->Add<TraceShowCommand>(
      trace, kCommands, "show", "Summarize traces: medians of calls by step.",
      "Example: gpumemctl trace show acquires.pftrace worker.pftrace\n"
      "START is the time from the begin of the call to that of the step. Steps are\n"
      "indented below those that contain them. Needs no daemon.");
  AddTraceShowOptions(show.app, show.command);
}

}  // namespace

void AddShowingCommands(CommandSet* commands) {
  AddTables(commands);
  AddUsage(commands);
  AddPictures(commands);
  const auto describe = commands->Add<DescribeCommand>(
      kShowing, "describe", "Show all facts about one object.",
      "Examples:\n  gpumemctl describe tenant training\n  gpumemctl describe segment 12\n"
      "  gpumemctl describe lease 33\n  gpumemctl describe training/llama\n"
      "WHAT is tenant, session, lease, segment, publication or device, and a name or\n"
      "number. The type may be left out if the name is unambiguous.");
  AddDescribeOptions(describe.app, describe.command);
  const auto events = commands->Add<EventsCommand>(
      kShowing, "events", "Show past or current events of the broker.",
      "Examples:\n  gpumemctl events --since 10m              past events\n"
      "  gpumemctl events --follow --tenant a      new events, until Ctrl-C\n"
      "  gpumemctl events --follow --json --event denied --event revoked\n"
      "Events are grants, denials, releases, revocations, reclaims, sessions, and\n"
      "changes of quotas and the configuration. docs/reference/audit.md lists them.\n"
      "With --json each line is an object.");
  AddEventsOptions(events.app, events.command);
  AddTrace(commands);
  commands->Add<DoctorCommand>(
      kShowing, "doctor", "Check this machine and its daemon.",
      "Example: sudo gpumemctl doctor\n"
      "Names problems and their remedies. Works without a daemon and without privilege,\n"
      "and then says what it could not see. The exit code is 9 if there is a problem;\n"
      "warnings leave it at 0.");
  const auto web = commands->Add<WebCommand>(
      kShowing, "web", "Print a link to this node's page in a browser.",
      "Example: gpumemctl web\n"
      "Open the link by hand, or paste it: in a command line, as of xdg-open, other\n"
      "users can read it, and use it first.\n"
      "The link logs you in. It works once, for 60 seconds, on this machine. If\n"
      "gpumem-web listens on no port, the command of ssh is printed that leads your\n"
      "browser to its socket. Without --socket it is this user's own, else\n"
      "/run/gpumem-web/web.sock.\nNeeds no privilege.");
  web.app->add_option("--socket", web.command->socket, "Ask the gpumem-web at this socket")
      ->type_name("PATH");
}

}  // namespace gpumem::cli
