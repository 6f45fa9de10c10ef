// SPDX-License-Identifier: Apache-2.0
#include "client/cli/effects/session_effects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/bytes.h"

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::SessionInfo* AddSession(v1::ListSessionsResponse* sessions, uint64_t number,
                            const std::string& tenant, uint64_t leased) {
  v1::SessionInfo* session = sessions->add_sessions();
  session->set_session_id(number);
  session->set_state(v1::SessionInfo::STATE_LIVE);
  session->set_tenant(tenant);
  session->set_pid(static_cast<int>(number) + 22);
  session->set_leases(leased > 0 ? 2 : 0);
  session->set_leased_bytes(leased);
  return session;
}

void AddTenant(v1::ListTenantsResponse* tenants, const std::string& name,
               const std::string& parent) {
  v1::TenantInfo* tenant = tenants->add_tenants();
  tenant->mutable_usage()->set_tenant(name);
  tenant->mutable_quota()->set_parent(parent);
}

std::vector<uint64_t> NumbersOf(const absl::StatusOr<std::vector<v1::SessionInfo>>& sessions) {
  std::vector<uint64_t> numbers;
  EXPECT_TRUE(sessions.ok()) << sessions.status();
  if (!sessions.ok()) return numbers;
  for (const v1::SessionInfo& each : *sessions) numbers.push_back(each.session_id());
  return numbers;
}

TEST(SessionEffectsTest, NameTheSession) {
  v1::ListSessionsResponse sessions;
  v1::SessionInfo* const session = AddSession(&sessions, 12, "a", kGiB);
  const auto suspend = SessionMoveEffects(SessionMove::kSuspend, 12, "", sessions, false);
  ASSERT_TRUE(suspend.ok()) << suspend.status();
  EXPECT_TRUE(suspend->takes);
  EXPECT_THAT(suspend->lines,
              ElementsAre("session 12 (tenant a, pid 34) is asked to suspend what can be suspended "
                          "of 2 leases, 1.00 GiB",
                          "it stops its use of that memory until gpumemctl resume"));
  const auto resume = SessionMoveEffects(SessionMove::kResume, 12, "", sessions, false);
  ASSERT_TRUE(resume.ok()) << resume.status();
  EXPECT_FALSE(resume->takes);
  EXPECT_THAT(
      resume->lines,
      ElementsAre("session 12 (tenant a, pid 34) is asked to bring its suspended memory back"));
  const auto demote = SessionMoveEffects(SessionMove::kDemote, 12, "kv", sessions, false);
  ASSERT_TRUE(demote.ok()) << demote.status();
  EXPECT_TRUE(demote->takes);
  EXPECT_THAT(demote->lines,
              ElementsAre("session 12 (tenant a, pid 34) is asked to demote what can be demoted "
                          "with tag kv of 2 leases, 1.00 GiB",
                          "it reads that memory over PCIe until gpumemctl promote"));
  const auto promote = SessionMoveEffects(SessionMove::kPromote, 12, "kv", sessions, false);
  ASSERT_TRUE(promote.ok()) << promote.status();
  EXPECT_FALSE(promote->takes);
  EXPECT_THAT(promote->lines, ElementsAre("session 12 (tenant a, pid 34) is asked to bring its "
                                          "demoted memory with tag kv back"));
  const auto of = [&](uint64_t number) {
    return SessionMoveEffects(SessionMove::kSuspend, number, "", sessions, false).status();
  };
  EXPECT_TRUE(absl::IsNotFound(of(13)));
  session->set_state(v1::SessionInfo::STATE_LINGERING);
  EXPECT_TRUE(absl::IsNotFound(of(12)));
}

TEST(SessionEffectsTest, OfATenantEachSessionHasALine) {
  v1::ListSessionsResponse sessions;
  AddSession(&sessions, 1, "a", kGiB);
  AddSession(&sessions, 2, "b", kMiB);
  const std::vector<v1::SessionInfo> all(sessions.sessions().begin(), sessions.sessions().end());
  EXPECT_THAT(SessionsMoveEffects(SessionMove::kSuspend, "", all, false).lines,
              ElementsAre("session 1 (tenant a, pid 23) is asked to suspend what can be suspended "
                          "of 2 leases, 1.00 GiB",
                          "session 2 (tenant b, pid 24) is asked to suspend what can be suspended "
                          "of 2 leases, 1.00 MiB",
                          "each stops its use of that memory until gpumemctl resume"));
  EXPECT_EQ(SessionsMoveEffects(SessionMove::kDemote, "", all, false).lines.back(),
            "each reads that memory over PCIe until gpumemctl promote");
  const Effects none = SessionsMoveEffects(SessionMove::kSuspend, "", {}, false);
  EXPECT_THAT(none.lines, IsEmpty());
  EXPECT_FALSE(none.takes);
}

TEST(SessionEffectsTest, OfATenantAreThoseBelowItWithSomethingToMove) {
  v1::ListTenantsResponse tenants;
  AddTenant(&tenants, "team", "");
  AddTenant(&tenants, "lab", "team");
  AddTenant(&tenants, "student", "lab");
  AddTenant(&tenants, "other", "");
  v1::ListSessionsResponse sessions;
  AddSession(&sessions, 1, "team", kGiB);
  AddSession(&sessions, 2, "lab", kGiB);
  AddSession(&sessions, 3, "student", kGiB)->set_suspended_bytes(kGiB);
  AddSession(&sessions, 4, "student", kGiB)->set_demoted_bytes(kMiB);
  AddSession(&sessions, 5, "other", kGiB)->set_suspended_bytes(kMiB);
  AddSession(&sessions, 6, "lab", 0)->set_serves_suspension(true);
  v1::SessionInfo* const dead = AddSession(&sessions, 7, "lab", kGiB);
  dead->set_state(v1::SessionInfo::STATE_LINGERING);
  AddSession(&sessions, 8, "lab", kGiB)->set_demoted_bytes(kGiB);
  const auto of = [&](SessionMove move, const std::string& tenant) {
    return NumbersOf(SessionsToMove(move, tenant, tenants, sessions));
  };
  EXPECT_THAT(of(SessionMove::kSuspend, "team"), ElementsAre(1, 2, 4));
  EXPECT_THAT(of(SessionMove::kDemote, "lab"), ElementsAre(2, 4));
  EXPECT_THAT(of(SessionMove::kResume, "lab"), ElementsAre(3, 6));
  EXPECT_THAT(of(SessionMove::kPromote, "team"), ElementsAre(4, 8));
  EXPECT_THAT(of(SessionMove::kPromote, "other"), IsEmpty());
  EXPECT_TRUE(
      absl::IsNotFound(SessionsToMove(SessionMove::kSuspend, "none", tenants, sessions).status()));
}

TEST(SessionEffectsTest, AListOfTenantsInACircleIsNoTrap) {
  v1::ListTenantsResponse tenants;
  AddTenant(&tenants, "a", "b");
  AddTenant(&tenants, "b", "a");
  AddTenant(&tenants, "c", "");
  v1::ListSessionsResponse sessions;
  AddSession(&sessions, 1, "a", kGiB);
  EXPECT_THAT(NumbersOf(SessionsToMove(SessionMove::kSuspend, "c", tenants, sessions)), IsEmpty());
}

}  // namespace
}  // namespace gpumem::cli
