// SPDX-License-Identifier: Apache-2.0
#include "client/cli/process/target.h"

#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpumem::cli {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the words behind "KEY:" in /proc/PID/status; none if there is no such line.
std::vector<std::string> WordsAfter(absl::string_view key, absl::string_view status) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, key) || !absl::ConsumePrefix(&line, ":")) continue;
    return absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  }
  return {};
}

absl::Status Malformed(absl::string_view file) {
  return absl::InternalError(absl::StrCat("/proc/PID/", file, " is not as in proc(5)"));
}

absl::Status Ended(pid_t pid) { return absl::NotFoundError(absl::StrCat("no process ", pid)); }

}  // namespace

absl::StatusOr<TargetFacts> ParseTarget(absl::string_view stat, absl::string_view status,
                                        absl::string_view own_status, pid_t own_pid,
                                        absl::Duration since_boot, int64_t ticks_per_second) {
  // "PID (NAME) STATE PARENT …": the name may have parentheses.
  const size_t name_end = stat.rfind(')');
  if (name_end == absl::string_view::npos) return Malformed("stat");
  const std::vector<absl::string_view> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kState = 0, kParent = 1, kStart = 19;
  TargetFacts facts;
  if (fields.size() <= kStart || !absl::SimpleAtoi(fields[kParent], &facts.parent) ||
      !absl::SimpleAtoi(fields[kStart], &facts.start_ticks)) {
    return Malformed("stat");
  }
  facts.state = fields[kState].front();
  facts.age = since_boot - absl::Seconds(facts.start_ticks) / ticks_per_second;
  for (const std::string& word : WordsAfter("Uid", status)) {
    uint32_t uid = 0;
    if (!absl::SimpleAtoi(word, &uid)) return Malformed("status");
    facts.uids.push_back(uid);
  }
  // From the namespace of /proc down to the one of the process.
  const std::vector<std::string> pids = WordsAfter("NSpid", status);
  if (facts.uids.size() != 4 || pids.empty() || !absl::SimpleAtoi(pids.front(), &facts.pid)) {
    return Malformed("status");
  }
  const std::vector<std::string> own = WordsAfter("NSpid", own_status);
  facts.same_namespace = pids.size() == 1 && own.size() == 1 && own[0] == absl::StrCat(own_pid);
  return facts;
}

absl::StatusOr<Target> Target::Open(pid_t pid) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) return Ended(pid);
  return Target(pid, std::move(pidfd));
}

absl::StatusOr<TargetFacts> Target::Look() const {
  const std::string proc = absl::StrCat("/proc/", pid_);
  const std::string stat = Contents(proc + "/stat"), status = Contents(proc + "/status");
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  // After the reading: what was read is of this process if that has not ended.
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  if (stat.empty() || status.empty() || poll(&ended, 1, 0) != 0) return Ended(pid_);
  absl::StatusOr<TargetFacts> facts =
      ParseTarget(stat, status, Contents("/proc/self/status"), getpid(),
                  absl::DurationFromTimespec(now), sysconf(_SC_CLK_TCK));
  if (facts.ok() && facts->pid != pid_) return Ended(pid_);
  return facts;
}

std::string CommandOf(pid_t pid) {
  std::string name = Contents(absl::StrCat("/proc/", pid, "/comm"));
  absl::StripTrailingAsciiWhitespace(&name);
  return name;
}

uint64_t AvailableHostBytes() {
  const std::vector<std::string> words = WordsAfter("MemAvailable", Contents("/proc/meminfo"));
  uint64_t kib = 0;
  return !words.empty() && absl::SimpleAtoi(words.front(), &kib) ? kib << 10 : 0;
}

}  // namespace gpumem::cli
