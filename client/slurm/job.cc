// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/job.h"

#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/slurm/controller.h"
#include "client/slurm/gres.h"
#include "client/slurm/placement.h"
#include "client/slurm/spank/option.h"
#include "client/slurm/state.h"
#include "client/slurm/sweep.h"
#include "client/slurm/tenant.h"
#include "common/bytes.h"
#include "common/endpoints.h"

namespace gpumem::slurm {
namespace {

// The pause before a background sweep looks for the last time, 127 s after the first look. With the
// default patience few prologs outlive their slurmd for longer. Tenants that do stay until a prolog
// lacks room.
constexpr absl::Duration kLastPause = absl::Seconds(64);

int Failed(const Arguments& arguments, const absl::Status& why) {
  Say(absl::StrCat(TenantOf(arguments.job), ": ", why.message()));
  return 1;
}

// Slurm has started a job that fits on the node, and on no one GPU. Its failure would drain the
// node: the job goes back to the queue instead, and until then may have no memory.
int NoOneGpu(const Arguments& arguments, const absl::Status& why) {
  const auto made = MakeTenant(arguments.node, TenantOf(arguments.job), JobGres(),
                               Terms{.guarantee_mib = 0}, arguments.user);
  if (!made.ok()) return Failed(arguments, made.status());
  // A smaller one may have room later; one that is larger than each GPU never has.
  const absl::Status given = GiveBack(arguments.job, absl::IsOutOfRange(why));
  if (!given.ok()) return Failed(arguments, given);
  Say(absl::StrCat(TenantOf(arguments.job), ": ", why.message(), ": given back to Slurm"));
  return 0;
}

// Returns "; peak SIZE on DEVICE, ...; NUMBER GiB-hours on DEVICE, ..."; empty: it has used none.
std::string InWords(const std::vector<Use>& uses) {
  std::vector<std::string> peaks, sums;
  for (const Use& use : uses) {
    peaks.push_back(absl::StrCat(FormatBytes(use.peak_bytes), " on ", use.device_uuid));
    if (!use.byte_seconds) continue;
    sums.push_back(
        absl::StrCat(FormatGibHours(*use.byte_seconds), " GiB-hours on ", use.device_uuid));
  }
  return absl::StrCat(peaks.empty() ? "" : "; peak ", absl::StrJoin(peaks, ", "),
                      sums.empty() ? "" : "; ", absl::StrJoin(sums, ", "));
}

// True if there is, or was, a daemon on this node.
bool HasSocket(const Node& node) {
  return access(SocketPath(node.runtime_dir, kAdminSocket).c_str(), F_OK) == 0;
}

// True if slurmctld says that the job has asked for no GPU memory.
bool AsksForNoMemory(const Arguments& arguments) {
  const absl::StatusOr<bool> asks = AsksForGres(arguments.job, arguments.gres);
  return asks.ok() && !*asks;
}

// Returns what the job has on this node. Waits for a slurmctld that restarts.
// Statuses as GresOfJob.
absl::StatusOr<std::string> WaitForGres(const Arguments& arguments) {
  const absl::Time deadline = absl::Now() + arguments.node.patience;
  while (true) {
    absl::StatusOr<std::string> details = GresOfJob(arguments.job, arguments.node_name);
    if (!absl::IsUnavailable(details.status()) || absl::Now() >= deadline) return details;
    absl::SleepFor(absl::Seconds(1));
  }
}

// Waits twice as long as another one of the job's programs may take.
absl::StatusOr<JobLock> Lock(const Arguments& arguments) {
  return JobLock::Take(arguments.state_dir, arguments.job,
                       absl::Now() + 2 * arguments.node.patience + absl::Seconds(1));
}

// Returns how many tenants it has ended.
size_t SweepAndSay(const Arguments& arguments) {
  std::string node = arguments.node_name;
  const auto is_here = [&node](uint32_t job) -> absl::StatusOr<bool> {
    if (node.empty()) {
      absl::StatusOr<std::string> name = NameOfThisNode();
      if (!name.ok()) return name.status();
      node = *std::move(name);
    }
    return IsOnNode(job, node);
  };
  const auto swept = Sweep(arguments.node, arguments.state_dir, is_here);
  const std::string words =
      swept.ok()
          ? absl::StrCat("ended tenants whose jobs are gone: ", absl::StrJoin(*swept, ", "))
          : absl::StrCat("cannot look for tenants whose jobs are gone: ", swept.status().message());
  if (swept.ok() && swept->empty()) return 0;
  // Nodes without a GPU have no gpumemd.
  if (!swept.ok() && arguments.background) return 0;
  if (arguments.background) {
    syslog(LOG_INFO, "%s", words.c_str());
  } else {
    Say(words);
  }
  return swept.ok() ? swept->size() : 0;
}

}  // namespace

int Prolog(const Arguments& arguments) {
  const auto lock = Lock(arguments);
  if (!lock.ok()) return Failed(arguments, lock.status());
  const absl::StatusOr<std::string> details = WaitForGres(arguments);
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
  const auto make = [&] {
    return MakeTenant(arguments.node, TenantOf(arguments.job), gres, terms, arguments.user);
  };
  auto devices = make();
  // Leftovers of dead jobs may have the room.
  if ((absl::IsFailedPrecondition(devices.status()) || absl::IsAborted(devices.status()) ||
       absl::IsResourceExhausted(devices.status())) &&
      SweepAndSay(arguments) > 0) {
    devices = make();
  }
  if (absl::IsAborted(devices.status()) || absl::IsOutOfRange(devices.status())) {
    return NoOneGpu(arguments, devices.status());
  }
  if (!devices.ok()) return Failed(arguments, devices.status());
  // Of GPUs that Slurm has chosen it tells the job itself.
  if (gres.gpus.empty()) {
    const absl::Status written =
        WriteGpus(arguments.state_dir, arguments.job, absl::StrJoin(*devices, ","));
    if (!written.ok()) return Failed(arguments, written);
  }
  Say(absl::StrCat(TenantOf(arguments.job), ": ", FormatBytes(gres.mib * kMiB), " on ",
                   absl::StrJoin(*devices, ", ")));
  return 0;
}

int Epilog(const Arguments& arguments) {
  const absl::Time begin = absl::Now();
  const auto lock = Lock(arguments);
  if (!lock.ok()) return Failed(arguments, lock.status());
  unlink(GpusFile(arguments.state_dir, arguments.job).c_str());
  // A node without a daemon: its jobs do not wait for one.
  if (!HasSocket(arguments.node) && AsksForNoMemory(arguments)) return 0;
  const absl::StatusOr<Ended> ended = EndTenant(arguments.node, TenantOf(arguments.job));
  if (ended.ok() && ended->left.empty()) {
    if (ended->existed) {
      Say(absl::StrCat(TenantOf(arguments.job), ": its memory was back after ",
                       absl::ToInt64Milliseconds(absl::Now() - begin), " ms",
                       InWords(ended->uses)));
    }
    return 0;
  }
  if (absl::IsUnavailable(ended.status()) && AsksForNoMemory(arguments)) return 0;
  const std::string reason =
      absl::StrCat(TenantOf(arguments.job), ": ",
                   ended.ok() ? ended->left : std::string(ended.status().message()));
  Say(reason);
  const absl::Status drained = DrainNode(arguments.node_name, absl::StrCat("gpumem: ", reason));
  if (drained.ok()) return 0;
  Say(drained.message());
  return 1;  // Slurm drains it then
}

int Account(const Arguments& arguments) {
  if (!HasSocket(arguments.node)) return 0;
  // The end of the step waits for this.
  Node node = arguments.node;
  node.patience = std::min(node.patience, absl::Seconds(2));
  const auto uses = UsesOf(node, TenantOf(arguments.job));
  if (absl::IsNotFound(uses.status())) return 0;
  if (!uses.ok()) return Failed(arguments, uses.status());
  std::vector<std::string> peaks, sums;
  for (const Use& use : *uses) {
    peaks.push_back(absl::StrCat(use.device_uuid, ":", use.peak_bytes));
    if (use.byte_seconds) sums.push_back(absl::StrCat(use.device_uuid, ":", *use.byte_seconds));
  }
  std::vector<std::pair<std::string, std::string>> comment = {
      {absl::StrCat("gpumem_peak_", arguments.node_name, "="), absl::StrJoin(peaks, ",")}};
  if (!sums.empty()) {
    comment.emplace_back(absl::StrCat("gpumem_byte_seconds_", arguments.node_name, "="),
                         absl::StrJoin(sums, ","));
  }
  const absl::Status noted = SetAdminComment(arguments.job, comment);
  return noted.ok() ? 0 : Failed(arguments, noted);
}

int SweepNode(const Arguments& arguments) {
  if (!arguments.background) {
    SweepAndSay(arguments);
    return 0;
  }
  // Before any thread. It is no child of slurmd then, which waits for this process alone.
  if (daemon(0, 0) != 0) return 1;
  openlog("gpumem-slurm", LOG_PID, LOG_DAEMON);
  for (absl::Duration pause = absl::Seconds(1);; pause *= 2) {
    SweepAndSay(arguments);
    if (pause > kLastPause) return 0;
    absl::SleepFor(pause);
  }
}

}  // namespace gpumem::slurm
