// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/text/table.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

// Returns the daemon's text for one fact about the cgroup.
std::string FactText(const v1::Identity& identity, const std::string& name) {
  if (!identity.cgroup_unknown().empty()) return kNone;
  for (const v1::CgroupFact& fact : identity.facts()) {
    if (fact.name() != name) continue;
    if (!fact.ambiguity().empty()) return absl::StrCat("ambiguous: ", fact.ambiguity());
    return absl::StrJoin(fact.values(), " / ");
  }
  return kNone;
}

std::string CgroupText(const v1::Identity& identity) {
  if (!identity.cgroup_unknown().empty()) {
    return absl::StrCat("unknown: ", identity.cgroup_unknown());
  }
  return identity.cgroup().empty() ? FactText(identity, "cgroup") : identity.cgroup();
}

std::string WhyPassed(const v1::PassedRule& rule) {
  if (rule.condition() == "tenant") {
    return rule.ambiguous() ? "does not count where the cgroup is ambiguous: it is not by uid"
                            : "matches, but names another tenant";
  }
  if (rule.ambiguous()) {
    return absl::StrCat("undecided: what it asks for (", rule.condition(),
                        ") is ambiguous or unknown");
  }
  return absl::StrCat("does not match (", rule.condition(), ")");
}

// Lines of a name and a value, with aligned values.
class Lines {
 public:
  void Add(std::string name, std::string value) {
    width_ = std::max(width_, name.size());
    lines_.emplace_back(std::move(name), std::move(value));
  }
  void AddGap() { lines_.emplace_back(); }
  std::string ToString() const {
    std::string text;
    for (const auto& [name, value] : lines_) {
      if (!name.empty()) {
        // Names of cgroups and tenants are untrusted.
        absl::StrAppend(&text, name, std::string(width_ - name.size() + 2, ' '), Printable(value));
      }
      absl::StrAppend(&text, "\n");
    }
    return text;
  }

 private:
  size_t width_ = 0;
  std::vector<std::pair<std::string, std::string>> lines_;
};

// Adds what Kubernetes' helper has told about the process's pod.
void AddPod(const v1::PodFacts& pod, Lines& lines) {
  lines.Add("namespace", pod.namespace_());
  lines.Add("pod_name", pod.name());
  lines.Add("service_account", OrNone(pod.service_account()));
  lines.Add("claim", OrNone(absl::StrJoin(pod.claims(), ", ")));
  for (const v1::PodLabel& label : pod.labels()) {
    lines.Add(absl::StrCat("label:", label.key()), OrNone(label.value()));
  }
}

}  // namespace

std::string WhoAmIView(const v1::WhoAmIResponse& response, const std::string& daemon) {
  const v1::Identity& identity = response.identity();
  Lines lines;
  lines.Add("tenant", response.tenant());
  if (response.path_size() > 1) lines.Add("path", absl::StrJoin(response.path(), " / "));
  lines.Add("by", response.rule());
  lines.Add("daemon", daemon);
  lines.AddGap();
  lines.Add("pid", absl::StrCat(identity.pid()));
  lines.Add("uid", absl::StrCat(identity.uid()));
  lines.Add("gid", absl::StrCat(identity.gid()));
  lines.Add("groups", OrNone(absl::StrJoin(identity.groups(), ", ")));
  lines.Add("cgroup", CgroupText(identity));
  for (const char* name :
       {"unit", "slice", "user", "container", "pod", "qos", "slurm_job", "slurm_step"}) {
    lines.Add(name, FactText(identity, name));
  }
  if (identity.has_described_pod()) AddPod(identity.described_pod(), lines);
  if (response.passed_size() > 0) lines.AddGap();
  for (const v1::PassedRule& rule : response.passed()) {
    lines.Add(absl::StrCat("rule ", rule.number()), WhyPassed(rule));
  }
  return lines.ToString();
}

}  // namespace gpumem::cli
