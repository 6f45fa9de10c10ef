// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/cgroup_namespace.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpumemd {
namespace {

std::vector<std::string> PartsOf(absl::string_view path) {
  return absl::StrSplit(path, '/', absl::SkipEmpty());
}

// A field of mountinfo: \040 is a blank, and so on (proc_pid_mountinfo(5)).
std::string Unescape(absl::string_view field) {
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string plain;
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size() && is_octal(field[i + 1]) &&
        is_octal(field[i + 2]) && is_octal(field[i + 3])) {
      plain += static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 +
                                 (field[i + 3] - '0'));
      i += 3;
    } else {
      plain += field[i];
    }
  }
  return plain;
}

using IsWanted = std::function<bool(const std::string& group, const struct stat& found)>;

// The path below `folder`, `depth` folders down, of the group that is wanted; empty: none.
std::string Find(const std::string& folder, size_t depth, const IsWanted& is_wanted) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    struct stat found;
    if (lstat(it->path().c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) continue;
    std::string name = absl::StrCat("/", it->path().filename().string());
    if (depth > 1) {
      const std::string below = Find(it->path().string(), depth - 1, is_wanted);
      if (!below.empty()) return absl::StrCat(name, below);
    } else if (is_wanted(it->path().string(), found)) {
      return name;
    }
  }
  return "";
}

bool HasMember(const std::string& group, pid_t pid) {
  std::ifstream file(group + "/cgroup.procs");
  for (pid_t member; file >> member;) {
    if (member == pid) return true;
  }
  return false;
}

}  // namespace

std::string RootOfCgroupNamespace(absl::string_view mountinfo, pid_t pid) {
  std::vector<std::string> own, machine;
  size_t depth = 0;
  for (absl::string_view line : absl::StrSplit(mountinfo, '\n', absl::SkipEmpty())) {
    // "ID PARENT DEVICE ROOT MOUNT OPTIONS … - TYPE SOURCE SUPEROPTIONS"
    const std::vector<absl::string_view> halves = absl::StrSplit(line, " - ");
    if (halves.size() != 2 || !absl::StartsWith(halves[1], "cgroup2 ")) continue;
    const std::vector<absl::string_view> mount = absl::StrSplit(halves[0], ' ');
    if (mount.size() < 5) continue;
    const std::vector<std::string> root = PartsOf(Unescape(mount[3]));
    if (root.empty()) {
      own.push_back(Unescape(mount[4]));
    } else if (root.size() >= depth && std::count(root.begin(), root.end(), "..") ==
                                           static_cast<std::ptrdiff_t>(root.size())) {
      // Those that show most are the machine's.
      if (root.size() > depth) machine.clear();
      machine.push_back(Unescape(mount[4]));
      depth = root.size();
    }
  }
  const auto find = [&](const IsWanted& is_wanted) {
    for (const std::string& folder : machine) {
      std::string found = Find(folder, depth, is_wanted);
      if (!found.empty()) return found;
    }
    return std::string();
  };
  for (const std::string& folder : own) {
    struct stat wanted;
    if (stat(folder.c_str(), &wanted) != 0) continue;
    std::string found = find([&](const std::string&, const struct stat& group) {
      return group.st_ino == wanted.st_ino && group.st_dev == wanted.st_dev;
    });
    if (!found.empty()) return found;
  }
  return find(
      [pid](const std::string& group, const struct stat&) { return HasMember(group, pid); });
}

std::string FromMachineRoot(absl::string_view text, absl::string_view namespace_root) {
  if (namespace_root.empty()) return std::string(text);
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (std::string& line : lines) {
    absl::string_view path = line;
    // cgroup v2 is hierarchy 0, without controllers. A group that is gone has no way to it.
    if (!absl::ConsumePrefix(&path, "0::/") || absl::EndsWith(path, " (deleted)")) continue;
    std::vector<std::string> parts = PartsOf(namespace_root);
    std::vector<std::string> way = PartsOf(path);
    const auto down =
        std::find_if(way.begin(), way.end(), [](const std::string& part) { return part != ".."; });
    const auto up = static_cast<size_t>(down - way.begin());
    if (up > parts.size()) continue;
    parts.resize(parts.size() - up);
    parts.insert(parts.end(), down, way.end());
    line = absl::StrCat("0::/", absl::StrJoin(parts, "/"));
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace gpumemd
