// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/sample.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/unique_fd.h"
#include "daemon/core/journal/table.h"
#include "tests/support/child.h"
#include "tests/support/wire.h"

namespace gpumem::soak {
namespace {

constexpr double kKiB = 1024;

// Adds "Rss:     123 kB" and its like of a file in /proc, in bytes.
void AddLines(const std::string& path, const absl::btree_map<std::string, std::string>& names,
              Figures& figures) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::pair<absl::string_view, absl::string_view> split =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const auto name = names.find(split.first);
    if (name == names.end()) continue;
    absl::string_view rest = split.second;
    const double unit = absl::ConsumeSuffix(&rest, " kB") ? kKiB : 1;
    double value;
    if (absl::SimpleAtod(rest, &value)) figures[name->second] += value * unit;
  }
}

}  // namespace

void AddProcess(const std::string& name, pid_t pid, Figures& figures) {
  const std::string proc = absl::StrCat("/proc/", pid);
  AddLines(proc + "/smaps_rollup",
           {{"Rss", name + "_rss"}, {"Pss", name + "_pss"}, {"Anonymous", name + "_anonymous"}},
           figures);
  AddLines(proc + "/status", {{"Threads", name + "_threads"}}, figures);
  if (const int fds = testing::CountFds(pid); fds > 0) figures[name + "_fds"] = fds;
}

std::string ThreadsOf(pid_t pid) {
  absl::btree_map<std::string, int> names;
  std::error_code error;
  const std::string folder = absl::StrCat("/proc/", pid, "/task");
  std::filesystem::directory_iterator thread(folder, error);
  for (; !error && thread != std::filesystem::directory_iterator(); thread.increment(error)) {
    std::ifstream comm(thread->path() / "comm");
    // A thread that has ended meanwhile has no name.
    if (std::string name; std::getline(comm, name)) ++names[name];
  }
  return absl::StrJoin(names, ", ", [](std::string* out, const auto& each) {
    absl::StrAppend(out, each.second, " ", each.first);
  });
}

void AddChildren(const std::string& name, pid_t pid, Figures& figures) {
  figures[name + "_rss"] = figures[name + "_anonymous"] = 0;
  for (const pid_t child : testing::ChildrenOf(pid)) {
    AddLines(absl::StrCat("/proc/", child, "/smaps_rollup"),
             {{"Rss", name + "_rss"}, {"Anonymous", name + "_anonymous"}}, figures);
  }
}

void AddHeap(const std::string& name, pid_t pid, const std::string& prefix, Figures& figures) {
  double bytes;
  if (std::ifstream(absl::StrCat(prefix, ".", pid)) >> bytes) figures[name + "_heap"] = bytes;
}

void AddJournal(pid_t daemon, Figures& figures) {
  const std::string folder = absl::StrCat("/proc/", daemon, "/fd");
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (error || !absl::StartsWith(target, "/memfd:gpumem-journal")) continue;
    const UniqueFd fd(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    struct stat facts;
    if (!fd.valid() || fstat(fd.get(), &facts) != 0) return;
    figures["journal_bytes"] = static_cast<double>(facts.st_blocks) * 512;
    // Most of the file is holes, which read as zeros.
    std::string bytes(static_cast<size_t>(facts.st_size), '\0');
    if (pread(fd.get(), bytes.data(), bytes.size(), 0) != facts.st_size) return;
    const auto contents = gpumemd::ReadJournal(
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
    if (contents.ok()) figures["journal_records"] = static_cast<double>(contents->objects);
    return;
  }
}

void AddState(v1::Admin::Stub& admin, absl::Duration timeout, Figures& figures) {
  v1::GetStatusResponse status;
  v1::ListHoldersResponse holders;
  v1::ListWaitingResponse waiting;
  v1::ListPublicationsResponse publications;
  const auto context = [&] { return testing::ContextWith({}, timeout); };
  if (!admin.GetStatus(context().get(), {}, &status).ok() ||
      !admin.ListHolders(context().get(), {}, &holders).ok() ||
      !admin.ListWaiting(context().get(), {}, &waiting).ok() ||
      !admin.ListPublications(context().get(), {}, &publications).ok()) {
    return;
  }
  double charged = 0;
  for (const v1::Device& device : status.devices()) {
    charged += static_cast<double>(device.charged_bytes());
  }
  figures["generation"] = status.generation();
  figures["sessions"] = status.sessions();
  figures["segments"] = status.segments();
  figures["charged_bytes"] = charged;
  figures["leases"] = holders.leases_size();
  figures["waiting"] = waiting.waiting_size();
  figures["publications"] = publications.publications_size();
}

const std::vector<std::string>& Columns() {
  static const auto* const columns = new std::vector<std::string>{"seconds",
                                                                  "generation",
                                                                  "calm",
                                                                  "daemon_rss",
                                                                  "daemon_pss",
                                                                  "daemon_anonymous",
                                                                  "daemon_heap",
                                                                  "daemon_fds",
                                                                  "daemon_threads",
                                                                  "children_rss",
                                                                  "children_anonymous",
                                                                  "keeper_rss",
                                                                  "keeper_pss",
                                                                  "keeper_anonymous",
                                                                  "keeper_fds",
                                                                  "keeper_threads",
                                                                  "web_rss",
                                                                  "web_pss",
                                                                  "web_anonymous",
                                                                  "web_fds",
                                                                  "web_threads",
                                                                  "journal_bytes",
                                                                  "journal_records",
                                                                  "charged_bytes",
                                                                  "held_bytes",
                                                                  "excess_bytes",
                                                                  "leases",
                                                                  "sessions",
                                                                  "segments",
                                                                  "publications",
                                                                  "waiting",
                                                                  "operations",
                                                                  "faults"};
  return *columns;
}

std::string HeaderLine() { return absl::StrJoin(Columns(), ","); }

std::string LineOf(const Figures& figures) {
  return absl::StrJoin(Columns(), ",", [&](std::string* out, const std::string& column) {
    const auto found = figures.find(column);
    if (found != figures.end()) absl::StrAppendFormat(out, "%.15g", found->second);
  });
}

absl::StatusOr<std::vector<Figures>> ReadTable(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (lines.empty()) return absl::InvalidArgumentError("the table is empty");
  const std::vector<std::string> names = absl::StrSplit(lines[0], ',');
  std::vector<Figures> rows;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<absl::string_view> cells = absl::StrSplit(lines[i], ',');
    if (cells.size() != names.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", i + 1, " has ", cells.size(), " cells, not ", names.size()));
    }
    Figures& row = rows.emplace_back();
    for (size_t k = 0; k < cells.size(); ++k) {
      double value;
      if (cells[k].empty()) continue;
      if (!absl::SimpleAtod(cells[k], &value)) {
        return absl::InvalidArgumentError(absl::StrCat("line ", i + 1, ": ", cells[k]));
      }
      row[names[k]] = value;
    }
    if (!row.contains("seconds")) {
      return absl::InvalidArgumentError(absl::StrCat("line ", i + 1, " has no time"));
    }
  }
  return rows;
}

}  // namespace gpumem::soak
