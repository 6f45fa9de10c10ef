// SPDX-License-Identifier: Apache-2.0
// gpumem-slurm: what Slurm does on a node before and after a job that has GPU memory. The plug-in
// runs it; so can the scripts that slurm.conf names as Prolog and Epilog.
//
// Exit codes: 0 done, 1 failed (Slurm drains the node), 2 wrong arguments.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/slurm/controller.h"
#include "client/slurm/gres.h"
#include "client/slurm/placement.h"
#include "client/slurm/spank/option.h"
#include "client/slurm/tenant.h"
#include "common/bytes.h"
#include "common/endpoints.h"
#include "common/version.h"

namespace gpumem::slurm {
namespace {

constexpr char kHelp[] =
    "Usage: gpumem-slurm prolog|epilog|gres [KEY=VALUE...]\n"
    "\n"
    "  prolog  Make the tenant job-ID, with the GPU memory that Slurm has allocated\n"
    "  epilog  End it and wait for its memory; drain the node if it does not come back\n"
    "  gres    Print the lines of slurm.conf and gres.conf for this node\n"
    "\n"
    "  job=ID           The job ($SLURM_JOB_ID)\n"
    "  node=NAME        Slurm's name of this node ($SLURMD_NODENAME)\n"
    "  gres=NAME        The GRES that counts MiB: gpumem (the default) or shard\n"
    "  option=TEXT      The value of --gpumem\n"
    "  max_priority=N   The highest priority that a job may ask for (0)\n"
    "  parent=TENANT    Put the jobs' tenants under this one\n"
    "  patience=TIME    How long to wait for the daemon, and for memory (30s)\n"
    "  state_dir=DIR    Keep the GPUs chosen for a job in this folder (/run/gpumem-slurm)\n"
    "  runtime_dir=DIR  The folder of the daemon's sockets\n";

struct Arguments {
  uint32_t job = 0;
  std::string node_name;
  std::string gres = "gpumem";
  std::string option;
  int max_priority = 0;
  std::string state_dir;
  Node node;
};

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Prints words for slurmd's log.
void Say(absl::string_view words) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(words.size()), words.data());
}

// Returns the mistake, in words; empty: none.
std::string Parse(int argc, char** argv, Arguments* arguments) {
  std::map<std::string, std::string> values = {{"job", Environment("SLURM_JOB_ID")},
                                               {"node", Environment("SLURMD_NODENAME")},
                                               {"gres", "gpumem"},
                                               {"option", ""},
                                               {"max_priority", "0"},
                                               {"parent", ""},
                                               {"patience", "30s"},
                                               {"state_dir", "/run/gpumem-slurm"},
                                               {"runtime_dir", DaemonRuntimeDir()}};
  for (int i = 2; i < argc; ++i) {
    const std::pair<std::string, std::string> words =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const auto value = values.find(words.first);
    if (value == values.end()) return absl::StrCat("unknown argument \"", argv[i], "\"");
    value->second = words.second;
  }
  if (!values["job"].empty() && !absl::SimpleAtoi(values["job"], &arguments->job)) {
    return absl::StrCat("job=", values["job"], ": no number");
  }
  arguments->node_name = values["node"];
  arguments->gres = values["gres"];
  arguments->state_dir = values["state_dir"];
  arguments->option = values["option"];
  if (!absl::SimpleAtoi(values["max_priority"], &arguments->max_priority)) {
    return absl::StrCat("max_priority=", values["max_priority"], ": no number");
  }
  arguments->node.parent = values["parent"];
  arguments->node.runtime_dir = values["runtime_dir"];
  if (!absl::ParseDuration(values["patience"], &arguments->node.patience) ||
      arguments->node.patience < absl::ZeroDuration()) {
    return absl::StrCat("patience=", values["patience"], ": no time (such as 30s)");
  }
  return "";
}

std::string TenantOf(uint32_t job) { return absl::StrCat("job-", job); }

// The file from which the plug-in knows the job's GPUs.
std::string StateFile(const Arguments& arguments) {
  return absl::StrCat(arguments.state_dir, "/", TenantOf(arguments.job));
}

bool WriteChosenGpus(const Arguments& arguments, const std::string& gpus) {
  // Processes of the job's user read it.
  if (mkdir(arguments.state_dir.c_str(), 0755) != 0 && errno != EEXIST) return false;
  std::ofstream file(StateFile(arguments), std::ios::trunc);
  file << gpus << "\n";
  file.close();
  return file.good();
}

int Prolog(const Arguments& arguments) {
  absl::StatusOr<std::string> details = GresOfJob(arguments.job, arguments.node_name);
  if (!details.ok()) {
    Say(details.status().message());
    return 1;
  }
  const JobGres gres = ParseGres(*details, arguments.gres);
  if (gres.mib == 0) {
    if (!arguments.option.empty()) {
      Say("the job asked for --gpumem, and has no GRES: slurmctld lacks gpumem's job_submit "
          "script");
    }
    return 0;
  }
  Terms terms;
  Option option;
  // The plug-in has checked it where the job was submitted, which is the user's machine.
  if (!arguments.option.empty() && ParseOption(arguments.option, &option).empty()) {
    terms.guarantee_mib = option.guarantee_mib;
    terms.priority = std::min(option.priority, arguments.max_priority);
  }
  const auto devices = MakeTenant(arguments.node, TenantOf(arguments.job), gres, terms);
  if (!devices.ok()) {
    Say(absl::StrCat(TenantOf(arguments.job), ": ", devices.status().message()));
    return 1;
  }
  // Of GPUs that Slurm has chosen it tells the job itself.
  if (gres.gpus.empty() && !WriteChosenGpus(arguments, absl::StrJoin(*devices, ","))) {
    Say(absl::StrCat(StateFile(arguments), ": ", strerror(errno)));
    return 1;
  }
  Say(absl::StrCat(TenantOf(arguments.job), ": ", FormatBytes(gres.mib * kMiB), " on ",
                   absl::StrJoin(*devices, ", ")));
  return 0;
}

int Epilog(const Arguments& arguments) {
  unlink(StateFile(arguments).c_str());
  const absl::Time begin = absl::Now();
  const absl::StatusOr<Ended> ended = EndTenant(arguments.node, TenantOf(arguments.job));
  if (ended.ok() && ended->left.empty()) {
    if (ended->existed) {
      Say(absl::StrCat(TenantOf(arguments.job), ": its memory was back after ",
                       absl::ToInt64Milliseconds(absl::Now() - begin), " ms"));
    }
    return 0;
  }
  if (absl::IsUnavailable(ended.status())) {
    // A node without a daemon, and a job that has nothing of it.
    const auto details = GresOfJob(arguments.job, arguments.node_name);
    if (details.ok() && ParseGres(*details, arguments.gres).mib == 0) return 0;
  }
  const std::string reason =
      absl::StrCat(TenantOf(arguments.job), ": ",
                   ended.ok() ? ended->left : std::string(ended.status().message()));
  Say(reason);
  const absl::Status drained = DrainNode(arguments.node_name, absl::StrCat("gpumem: ", reason));
  if (drained.ok()) return 0;
  Say(drained.message());
  return 1;  // Slurm drains it then
}

int PrintGres(const Arguments& arguments) {
  const auto devices = Devices(arguments.node);
  if (!devices.ok()) {
    Say(devices.status().message());
    return 1;
  }
  const std::string node = arguments.node_name.empty() ? "NODE" : arguments.node_name;
  std::fputs(ConfigurationLines(node, arguments.gres, Gpus(*devices)).c_str(), stdout);
  return 0;
}

int Main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "--version") {
    std::puts("gpumem-slurm " GPUMEM_VERSION);
    return 0;
  }
  if (command == "help" || command == "--help" || command == "-h") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  Arguments arguments;
  std::string wrong = Parse(argc, argv, &arguments);
  if (wrong.empty() && command == "gres") return PrintGres(arguments);
  if (wrong.empty() && arguments.job == 0) wrong = "no job is named: job=ID, or $SLURM_JOB_ID";
  if (wrong.empty() && arguments.node_name.empty()) {
    wrong = "no node is named: node=NAME, or $SLURMD_NODENAME";
  }
  if (wrong.empty() && command == "prolog") return Prolog(arguments);
  if (wrong.empty() && command == "epilog") return Epilog(arguments);
  if (wrong.empty())
    wrong = absl::StrCat("unknown command \"", command, "\"; see gpumem-slurm help");
  Say(wrong);
  return 2;
}

}  // namespace
}  // namespace gpumem::slurm

int main(int argc, char** argv) { return gpumem::slurm::Main(argc, argv); }
