// SPDX-License-Identifier: Apache-2.0
// Rules of a configuration that ask for facts of Kubernetes' pods.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/config/config.h"
#include "daemon/core/identity/pods.h"
#include "daemon/core/identity/rules.h"

namespace gpumemd {
namespace pod_rules_config_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PodRulesConfigTest, RulesByFactsOfPods) {
  absl::StatusOr<Config> config = ParseConfig(R"(
[[tenant]]
name = "prod"
[[tenant]]
name = "ns-team-b"
[[rule]]
tenant = "prod"
namespace = "team-a"
"label:tier" = "prod*"
"label:app.kubernetes.io/name" = "*"
[[rule]]
tenant = "ns-{namespace}.{label:team}"
"label:team" = "*"
claim = "shared"
[[rule]]
tenant = "ns-{namespace}"
service_account = "run*"
pod_name = "infer-*"
)",
                                              "gpumem.toml", NameLookup());
  ASSERT_TRUE(config.ok()) << config.status();
  std::vector<std::string> descriptions;
  for (const Rule& rule : config->rules) descriptions.push_back(rule.description);
  EXPECT_THAT(
      descriptions,
      ElementsAre("rule 1 (namespace = team-a, label:app.kubernetes.io/name = *, label:tier "
                  "= prod*)",
                  "rule 2 (claim = shared, label:team = *)",
                  "rule 3 (pod_name = infer-*, service_account = run*)"));
  EXPECT_THAT(config->notices, IsEmpty());
  constexpr char kUid[] = "099b88fb-2a99-45ad-af94-d91eb81a87e9";
  const auto tenant = [&](PodFacts pod) {
    pod.uid = kUid;
    PodBook book;
    EXPECT_TRUE(book.Set("test", "1", {pod}).ok());
    const PeerIdentity peer = {
        .uid = 1001, .cgroup = Cgroup::Parse(absl::StrCat("0::/kubepods/pod", kUid, "\n"))};
    const auto none_made = [](absl::string_view) { return false; };
    return MatchTenant(config->rules, peer, "", none_made, *book.known())->tenant;
  };
  EXPECT_EQ(tenant({.name_space = "team-a",
                    .name = "a",
                    .labels = {{"tier", "prod-1"}, {"app.kubernetes.io/name", ""}}}),
            "prod");
  EXPECT_EQ(tenant({.name_space = "team-b",
                    .name = "a",
                    .labels = {{"team", "x"}},
                    .claims = {"other", "shared"}}),
            "ns-team-b.x");
  EXPECT_EQ(tenant({.name_space = "team-b", .name = "infer-1", .service_account = "runner"}),
            "ns-team-b");
}

}  // namespace pod_rules_config_test
}  // namespace gpumemd
