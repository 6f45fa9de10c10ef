// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/arguments.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/endpoints.h"

namespace gpumem::slurm {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string ParseArguments(int argc, char** argv, Arguments* arguments) {
  std::map<std::string, std::string> values = {{"job", Environment("SLURM_JOB_ID")},
                                               {"user", Environment("SLURM_JOB_UID")},
                                               {"node", Environment("SLURMD_NODENAME")},
                                               {"gres", "gpumem"},
                                               {"option", ""},
                                               {"max_priority", "0"},
                                               {"background", "0"},
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
  if (uint32_t user = 0; !values["user"].empty()) {
    if (!absl::SimpleAtoi(values["user"], &user)) {
      return absl::StrCat("user=", values["user"], ": no number");
    }
    arguments->user = user;
  }
  arguments->node_name = values["node"];
  arguments->gres = values["gres"];
  arguments->state_dir = values["state_dir"];
  arguments->option = values["option"];
  arguments->background = values["background"] == "1";
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

void Say(absl::string_view words) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(words.size()), words.data());
}

}  // namespace gpumem::slurm
