// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/latency/process_stats.h"

#include <sched.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace gpumem::bench {
namespace {

// Calls `take` with the name and the value of each line of each thread's status.
void ForEachLine(pid_t pid,
                 const std::function<void(absl::string_view name, absl::string_view value)>& take) {
  std::error_code error;
  std::filesystem::directory_iterator threads(absl::StrCat("/proc/", pid, "/task"), error);
  for (; !error && threads != std::filesystem::directory_iterator(); threads.increment(error)) {
    // A thread may have ended: then there are no lines.
    std::ifstream status(threads->path() / "status");
    for (std::string line; std::getline(status, line);) {
      const std::pair<absl::string_view, absl::string_view> split =
          absl::StrSplit(line, absl::MaxSplits(':', 1));
      take(split.first, absl::StripAsciiWhitespace(split.second));
    }
  }
}

}  // namespace

uint64_t ContextSwitches(pid_t pid) {
  uint64_t sum = 0;
  ForEachLine(pid, [&](absl::string_view name, absl::string_view value) {
    uint64_t count = 0;
    const bool counts = name == "voluntary_ctxt_switches" || name == "nonvoluntary_ctxt_switches";
    if (counts && absl::SimpleAtoi(value, &count)) sum += count;
  });
  return sum;
}

std::string AllowedCpus(pid_t pid) {
  std::set<std::string> lists;
  ForEachLine(pid, [&](absl::string_view name, absl::string_view value) {
    if (name == "Cpus_allowed_list") lists.emplace(value);
  });
  return absl::StrJoin(lists, " and ");
}

absl::Status RunOnCpus(absl::string_view list) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last >= CPU_SETSIZE) {
      return absl::InvalidArgumentError(absl::StrCat("not a list of CPUs: ", list));
    }
    for (int cpu = first; cpu <= last; ++cpu) CPU_SET(cpu, &set);
  }
  if (sched_setaffinity(0, sizeof set, &set) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::ErrnoToStatus(errno, "sched_setaffinity").message());
}

}  // namespace gpumem::bench
