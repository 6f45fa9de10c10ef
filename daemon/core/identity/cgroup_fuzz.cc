// SPDX-License-Identifier: Apache-2.0
// Texts of /proc/PID/cgroup, and the rules that ask them. The text's first line is the group at the
// root of the daemon's cgroup namespace, unless it is empty.
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/testing/fuzz/input.h"
#include "daemon/core/identity/cgroup.h"
#include "daemon/core/identity/rules.h"
#include "daemon/transport/peer/cgroup_namespace.h"

namespace gpumemd {
namespace {

std::vector<Rule> Rules() {
  const auto asks = [](CgroupFact fact, const char* pattern, const char* tenant) {
    return Rule{.tenant = tenant, .facts = {{fact, pattern}}};
  };
  return {asks(CgroupFact::kSlurmJob, "4?", "job-{slurm_job}-{slurm_step}"),
          asks(CgroupFact::kQos, "best*", "pod-{pod}"),
          asks(CgroupFact::kContainer, "[0-7]*", "{container}"),
          asks(CgroupFact::kUnit, "infer@*.service", "{unit}"),
          asks(CgroupFact::kSlice, "user-*", "{slice}"),
          {.tenant = "named", .cgroup = "/a/*"},
          {.tenant = "user-{uid}"}};
}

void CheckFacts(const Cgroup& cgroup) {
  for (size_t i = 0; i < kCgroupFacts; ++i) {
    const auto fact = static_cast<CgroupFact>(i);
    const auto& answers = cgroup.Answers(fact);
    FUZZ_CHECK(cgroup.unknown().empty() || answers.empty());
    FUZZ_CHECK(cgroup.Ambiguity(fact).empty() == (answers.size() < 2));
    FUZZ_CHECK(answers.size() == 1 || cgroup.Values(fact).empty());
    if (fact != CgroupFact::kSlice && fact != CgroupFact::kSlurmStep) (void)cgroup.Value(fact);
  }
  for (const std::string& id : cgroup.Values(CgroupFact::kContainer)) FUZZ_CHECK(id.size() == 64);
  for (const std::string& pod : cgroup.Values(CgroupFact::kPod)) FUZZ_CHECK(!pod.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  std::string root(text.substr(0, line));
  text.remove_prefix(line == absl::string_view::npos ? size : line + 1);
  const std::string from_root = FromMachineRoot(text, root);
  FUZZ_CHECK(!root.empty() || from_root == text);

  PeerIdentity peer{.pid = 1, .uid = 1000, .gid = 1000, .cgroup = Cgroup::Parse(from_root)};
  CheckFacts(peer.cgroup);
  static const std::vector<Rule>& rules = *new std::vector<Rule>(Rules());
  const absl::StatusOr<TenantMatch> match = MatchTenant(rules, peer, "");
  FUZZ_CHECK(match.ok());
  FUZZ_CHECK(!match->tenant.empty() && match->tenant.size() <= 63);
  for (const char c : match->tenant) {
    FUZZ_CHECK(absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("._-", c));
  }
  (void)MatchTenant(rules, peer, "job-42-0");
  return 0;
}

}  // namespace gpumemd
