// SPDX-License-Identifier: Apache-2.0
// gpumem-slurm: what Slurm does on a node before and after a job that has GPU memory. The plug-in
// runs it; so can the scripts that slurm.conf names as Prolog and Epilog.
//
// Exit codes: 0 done, 1 failed (Slurm drains the node), 2 wrong arguments.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/slurm/arguments.h"
#include "client/slurm/job.h"
#include "client/slurm/placement.h"
#include "client/slurm/tenant.h"
#include "common/version.h"

namespace gpumem::slurm {
namespace {

constexpr char kHelp[] =
    "Usage: gpumem-slurm COMMAND [KEY=VALUE...]\n"
    "\n"
    "  prolog  Make the tenant job-ID, with the GPU memory that Slurm has allocated\n"
    "  epilog  End it and wait for its memory; drain the node if it does not come back\n"
    "  account Write the peak and the byte-seconds of the job's memory into its\n"
    "          AdminComment, while it runs\n"
    "  suspend Suspend the job's memory on this node, then the job (scontrol suspend)\n"
    "  resume  Resume the job, then its memory\n"
    "  suspend-memory, resume-memory\n"
    "          The same without the job: on each node of a job that has several\n"
    "  sweep   End tenants of jobs that Slurm does not have on this node any more\n"
    "  gres    Print the lines of slurm.conf and gres.conf for this node\n"
    "\n"
    "  job=ID           The job ($SLURM_JOB_ID)\n"
    "  user=UID         The job's user, who may ask what it has used ($SLURM_JOB_UID)\n"
    "  node=NAME        Slurm's name of this node ($SLURMD_NODENAME)\n"
    "  gres=NAME        The GRES that counts MiB: gpumem (the default) or shard\n"
    "  option=TEXT      The value of --gpumem\n"
    "  max_priority=N   The highest priority that a job may ask for (0)\n"
    "  parent=TENANT    Put the jobs' tenants under this one\n"
    "  patience=TIME    How long to wait for the daemon, and for memory (30s)\n"
    "  state_dir=DIR    Keep the GPUs chosen for a job in this folder (/run/gpumem-slurm)\n"
    "  background=1     Return at once; sweep now and again for two minutes\n"
    "  runtime_dir=DIR  The folder of the daemon's sockets\n";

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
  std::string wrong = ParseArguments(argc, argv, &arguments);
  if (wrong.empty() && command == "gres") return PrintGres(arguments);
  if (wrong.empty() && command == "sweep") return SweepNode(arguments);
  if (wrong.empty() && arguments.job == 0) wrong = "no job is named: job=ID, or $SLURM_JOB_ID";
  for (const bool memory_only : {false, true}) {
    const std::string suffix = memory_only ? "-memory" : "";
    if (wrong.empty() && command == "suspend" + suffix) return Suspend(arguments, memory_only);
    if (wrong.empty() && command == "resume" + suffix) return Resume(arguments, memory_only);
  }
  if (wrong.empty() && arguments.node_name.empty()) {
    wrong = "no node is named: node=NAME, or $SLURMD_NODENAME";
  }
  if (wrong.empty() && command == "prolog") return Prolog(arguments);
  if (wrong.empty() && command == "epilog") return Epilog(arguments);
  if (wrong.empty() && command == "account") return Account(arguments);
  if (wrong.empty())
    wrong = absl::StrCat("unknown command \"", command, "\"; see gpumem-slurm help");
  Say(wrong);
  return 2;
}

}  // namespace
}  // namespace gpumem::slurm

int main(int argc, char** argv) { return gpumem::slurm::Main(argc, argv); }
