// SPDX-License-Identifier: Apache-2.0
// Claims: who loads contents, who waits, and to whom a claim passes.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/journal/codec.h"
#include "daemon/core/ledger/testing/restart_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace claims_test {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ClaimsTest : public LedgerRestartFixture {
 protected:
  // Begins a call, as one that waits is in one, and asks.
  absl::StatusOr<Admission> Begin(SessionId session, uint64_t request,
                                  const std::string& content_id = "v1",
                                  const std::string& name = "w", bool waits = true) {
    EXPECT_TRUE(ledger.sessions().BeginCall(session).ok());
    auto admission = ledger.operations().BeginAttach(session, {.name = name,
                                                               .request_id = request,
                                                               .waits = waits,
                                                               .claims = true,
                                                               .content_id = content_id});
    if (!admission.ok() || !admission->waiter) ledger.sessions().EndCall(session);
    if (admission.ok() && admission->operation) {
      EXPECT_TRUE(ledger.operations().Commit(*admission->operation).ok());
    }
    return admission;
  }
  bool Claims(SessionId session, uint64_t request, const std::string& content_id = "v1",
              const std::string& name = "w") {
    const auto admission = Begin(session, request, content_id, name);
    EXPECT_TRUE(admission.ok()) << admission.status();
    return admission.ok() && admission->claimed;
  }
  WaiterId Waits(SessionId session, uint64_t request, const std::string& content_id = "v1") {
    const auto admission = Begin(session, request, content_id);
    EXPECT_TRUE(admission.ok() && admission->waiter) << admission.status();
    return admission.ok() ? admission->waiter.value_or(WaiterId{}) : WaiterId{};
  }
  bool Attaches(SessionId session, uint64_t request, const std::string& content_id = "v1",
                const std::string& name = "w") {
    const auto admission = Begin(session, request, content_id, name);
    EXPECT_TRUE(admission.ok()) << admission.status();
    return admission.ok() && admission->operation;
  }
  StatusCode CodeOf(SessionId session, uint64_t request, const std::string& content_id = "v1",
                    const std::string& name = "w", bool waits = true) {
    return Begin(session, request, content_id, name, waits).status().code();
  }
  uint64_t Publish(SessionId session, const std::string& content_id, bool to_any = false) {
    const Operation::Item item = AcquireOne(session, kGranule);
    auto published = ledger.publications().Publish(
        session, {.name = "w", .content_id = content_id, .leases = {item.lease}, .to_any = to_any});
    EXPECT_TRUE(published.ok()) << published.status();
    return published.ok() ? published->version : 0;
  }
  std::vector<WaiterId> Woken() { return Drain(ledger.effects().attachable); }
  size_t ClaimsOf(SessionId session) { return ledger.state().sessions.at(session)->claims.size(); }
};

TEST_F(ClaimsTest, OneSessionLoadsAndTheOthersAttach) {
  const SessionId first = OpenSession("a"), second = OpenSession("a"), third = OpenSession("a");
  EXPECT_TRUE(Claims(first, 1));
  const WaiterId waits = Waits(second, 1), too = Waits(third, 1);
  EXPECT_EQ(ledger.look().GetTenant("a")->waiting, 2u);
  Publish(first, "v1");
  EXPECT_THAT(Woken(), ElementsAre(waits, too));
  EXPECT_EQ(ClaimsOf(first), 0u);
  EXPECT_EQ(ledger.look().GetTenant("a")->waiting, 0u);
  EXPECT_TRUE(Attaches(second, 1));
  EXPECT_TRUE(Attaches(third, 1));
}

TEST_F(ClaimsTest, OtherContentsUnderTheNameAreNotAttachedTo) {
  const SessionId first = OpenSession("a"), second = OpenSession("a");
  Publish(first, "v1");
  EXPECT_TRUE(Attaches(second, 1, "v1"));
  EXPECT_TRUE(Claims(second, 2, "v2"));
  EXPECT_TRUE(Claims(first, 1, "v3")) << "other contents are another claim";
  const WaiterId waits = Waits(first, 2, "v2");
  Publish(first, "");
  Publish(first, "v1");
  Publish(first, "v3");
  EXPECT_THAT(Woken(), IsEmpty());
  EXPECT_EQ(ClaimsOf(first), 0u);
  EXPECT_EQ(ClaimsOf(second), 1u);
  Publish(second, "v2");
  EXPECT_THAT(Woken(), ElementsAre(waits));
  // It is replaced before the session attaches.
  Publish(second, "v4");
  EXPECT_TRUE(Claims(first, 2, "v2"));
  EXPECT_TRUE(Claims(first, 3, std::string("v") + '\0' + "1"));
}

TEST_F(ClaimsTest, PassesToTheNextInOrderOfArrival) {
  const SessionId first = OpenSession("a"), second = OpenSession("a"), third = OpenSession("a");
  EXPECT_TRUE(Claims(first, 7));
  const WaiterId waits = Waits(second, 1), last = Waits(third, 1), again = Waits(second, 2);
  ledger.publications().claims().Release(first, 7);
  EXPECT_THAT(Woken(), ElementsAre(waits));
  EXPECT_TRUE(Claims(second, 1)) << "it is its claim";
  EXPECT_EQ(CodeOf(first, 8, "v1", "w", /*waits=*/false), StatusCode::kDeadlineExceeded);
  // A later request of the session waits as any other.
  ledger.endings().ProcessGone(second);
  EXPECT_THAT(Woken(), ElementsAre(again, last));
  EXPECT_TRUE(Claims(third, 1));
  ledger.endings().SocketClosed(third);
  EXPECT_THAT(Woken(), IsEmpty());
  EXPECT_TRUE(Claims(first, 9)) << "no session waits, and none has it";
}

TEST_F(ClaimsTest, PublishingWithoutTheClaimLeavesIt) {
  const SessionId first = OpenSession("a"), second = OpenSession("a"), third = OpenSession("a");
  EXPECT_TRUE(Claims(first, 1));
  const WaiterId waits = Waits(second, 1);
  Publish(third, "v1");
  EXPECT_THAT(Woken(), ElementsAre(waits));
  EXPECT_TRUE(Attaches(second, 1));
  EXPECT_EQ(ClaimsOf(first), 1u);
  EXPECT_TRUE(Claims(first, 1)) << "the request once more";
  EXPECT_EQ(Publish(first, "v1"), 2u);
  EXPECT_EQ(ClaimsOf(first), 0u);
}

TEST_F(ClaimsTest, StaysInsideItsTenant) {
  const SessionId own = OpenSession("a"), other = OpenSession("b");
  EXPECT_EQ(CodeOf(other, 1, "v1", "a/w"), StatusCode::kNotFound);
  EXPECT_TRUE(Claims(own, 1, "v1", "a/w"));
  EXPECT_EQ(CodeOf(other, 1, "v1", "a/w"), StatusCode::kNotFound);
  EXPECT_TRUE(Claims(other, 1)) << "the name in its tenant";
  Publish(own, "v1");
  EXPECT_EQ(CodeOf(other, 2, "v1", "a/w"), StatusCode::kNotFound) << "it may not attach";
  Publish(own, "v1", /*to_any=*/true);
  EXPECT_TRUE(Attaches(other, 2, "v1", "a/w"));
  EXPECT_EQ(CodeOf(other, 3, "v2", "a/w"), StatusCode::kNotFound);
}

TEST_F(ClaimsTest, ARepeatedRequestGetsItsClaimAgain) {
  const SessionId session = OpenSession("a");
  EXPECT_TRUE(Claims(session, 1));
  EXPECT_TRUE(Claims(session, 1));
  EXPECT_EQ(ClaimsOf(session), 1u);
  EXPECT_EQ(CodeOf(session, 1, "v2"), StatusCode::kInvalidArgument);
  const WaiterId waits = Waits(session, 2);
  EXPECT_EQ(CodeOf(session, 2), StatusCode::kInvalidArgument) << "two waits of one number";
  ledger.publications().claims().Release(session, 1);
  EXPECT_THAT(Woken(), ElementsAre(waits));
  EXPECT_TRUE(Claims(session, 2));
}

TEST_F(ClaimsTest, AReleasedRequestGetsNoClaimLater) {
  const SessionId first = OpenSession("a"), second = OpenSession("a");
  ledger.publications().claims().Release(first, 1);
  EXPECT_EQ(CodeOf(first, 1), StatusCode::kCancelled);
  EXPECT_TRUE(Claims(first, 2));
  const WaiterId waits = Waits(second, 5);
  ledger.publications().claims().Release(second, 5);
  ledger.publications().claims().Release(second, 5);
  EXPECT_THAT(Woken(), ElementsAre(waits));
  EXPECT_EQ(CodeOf(second, 5), StatusCode::kCancelled);
  ledger.publications().claims().Release(second, 2);  // another session's number
  EXPECT_EQ(ClaimsOf(first), 1u);
  // Of one that was refused, it may be repeated.
  ledger.publications().claims().Refused(first, 2);
  EXPECT_EQ(ClaimsOf(first), 0u);
  EXPECT_TRUE(Claims(first, 2));
}

TEST_F(ClaimsTest, TheOldestReleasedRequestsAreForgotten) {
  const SessionId session = OpenSession("a");
  for (uint64_t request = 1; request <= 65; ++request) {
    ledger.publications().claims().Release(session, request);
  }
  EXPECT_EQ(CodeOf(session, 2), StatusCode::kCancelled);
  EXPECT_EQ(CodeOf(session, 65), StatusCode::kCancelled);
  EXPECT_TRUE(Claims(session, 1)) << "it counts as a new request";
}

TEST_F(ClaimsTest, WaitsEnd) {
  const SessionId first = OpenSession("a"), second = OpenSession("a");
  EXPECT_TRUE(Claims(first, 1));
  const WaiterId expires = Waits(second, 1), cancelled = Waits(second, 2);
  const absl::Status expired = ledger.publications().waiters().EndWait(expires, /*expired=*/true);
  EXPECT_EQ(expired.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      std::string(expired.message()),
      ::testing::StartsWith(absl::StrCat("session ", ToInt(first), " (pid 1) has the claim")));
  EXPECT_EQ(ledger.publications().waiters().EndWait(cancelled, /*expired=*/false).code(),
            StatusCode::kCancelled);
  const WaiterId drained = Waits(second, 3);
  ledger.SetDraining(true);
  EXPECT_THAT(Woken(), ElementsAre(drained));
  EXPECT_EQ(ledger.operations()
                .BeginAttach(second, {.name = "w", .claims = true, .content_id = "v2"})
                .status()
                .code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(ClaimsOf(first), 1u);
}

TEST_F(ClaimsTest, RequestsAreChecked) {
  const SessionId session = OpenSession("a");
  EXPECT_EQ(CodeOf(session, 1, ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(session, 1, std::string(65, 'x')), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(session, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(session, 1, "v1", "two words"), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      ledger.operations()
          .BeginAttach(
              session,
              {.name = "w", .version = 1, .request_id = 1, .claims = true, .content_id = "v1"})
          .status()
          .code(),
      StatusCode::kInvalidArgument);
  EXPECT_TRUE(Claims(session, 1, std::string(64, '\0')));
  const Operation::Item item = AcquireOne(session, kGranule);
  EXPECT_EQ(ledger.publications()
                .Publish(session,
                         {.name = "w", .content_id = std::string(65, 'x'), .leases = {item.lease}})
                .status()
                .code(),
            StatusCode::kInvalidArgument);
}

TEST_F(ClaimsTest, LimitsAreExact) {
  const uint32_t most = ledger.state().bounds.max_claims_per_session;
  ASSERT_EQ(most, 64u);
  const SessionId session = OpenSession("a"), holder = OpenSession("a");
  EXPECT_TRUE(Claims(holder, 1, "held"));
  Waits(session, 1000, "held");
  for (uint32_t i = 1; i < most; ++i) EXPECT_TRUE(Claims(session, i, absl::StrCat("v", i)));
  ExpectDenial(Begin(session, most, "x").status(), Denial::Cause::kDaemonLimit, "a", "", 1, most,
               most);
  ExpectDenial(Begin(session, most, "held").status(), Denial::Cause::kDaemonLimit, "a", "", 1, most,
               most);
  // It comes to the claim for which it waits.
  ledger.publications().claims().Release(holder, 1);
  EXPECT_EQ(ClaimsOf(session), most);
  ledger.publications().claims().Release(session, 1);
  EXPECT_TRUE(Claims(session, most, "x"));

  std::vector<SessionId> others;
  const uint32_t of_tenant = ledger.state().bounds.max_claims_per_tenant;
  for (uint32_t claims = most; claims < of_tenant; ++claims) {
    if (claims % most == 0) others.push_back(OpenSession("a"));
    EXPECT_TRUE(Claims(others.back(), claims, absl::StrCat("t", claims)));
  }
  ExpectDenial(Begin(holder, 2, "y").status(), Denial::Cause::kDaemonLimit, "a", "", 1, of_tenant,
               of_tenant);
  EXPECT_TRUE(Claims(OpenSession("b"), 1, "y"));
  ledger.endings().ProcessGone(others.back());
  EXPECT_TRUE(Claims(holder, 2, "y"));
}

TEST_F(ClaimsTest, OutlivesTheDaemon) {
  const SessionId first = OpenSession("a"), second = OpenSession("a"), dead = OpenSession("a");
  EXPECT_TRUE(Claims(first, 1));
  EXPECT_TRUE(Claims(first, 2, "v2"));
  EXPECT_TRUE(Claims(first, 3, "v3"));
  EXPECT_TRUE(Claims(dead, 1, "v4"));
  Publish(second, "v5");
  Waits(second, 1);
  Restart({.dead = {dead}});
  EXPECT_TRUE(Attaches(second, 1, "v5"));
  EXPECT_EQ(ledger.look().ListPublications("a")->at(0).content_id, "v5");
  EXPECT_TRUE(Claims(second, 2, "v4")) << "its process is gone";
  const WaiterId waits = Waits(second, 1), other = Waits(second, 4, "v3");
  // The client of `first` has one of its claims, and repeats the request of another one.
  ASSERT_TRUE(ledger.sessions().Resume(first, {.pid = 1}).ok());
  ASSERT_TRUE(ledger.reconciliation().Reconcile(first, {}, {1, 2}).ok());
  EXPECT_THAT(Woken(), ElementsAre(other));
  EXPECT_TRUE(Claims(first, 2, "v2"));
  Publish(first, "v1");
  EXPECT_THAT(Woken(), ElementsAre(waits));
  Restart();
  EXPECT_EQ(ClaimsOf(first), 1u);
  EXPECT_EQ(ClaimsOf(second), 2u);
}

TEST_F(ClaimsTest, TheJournalIsOfVersion5OnlyWithThem) {
  const SessionId session = OpenSession("a");
  const auto version = [&] {
    uint8_t highest = 0;
    ledger.Image().ForEach([&](const journal::Object& object) {
      highest = std::max(highest, journal::VersionOf(object));
    });
    return highest;
  };
  Publish(session, "");
  EXPECT_EQ(version(), 1);
  EXPECT_TRUE(Claims(session, 1));
  EXPECT_EQ(version(), 5);
  ledger.publications().claims().Release(session, 1);
  EXPECT_EQ(version(), 1);
  Publish(session, "v1");
  EXPECT_EQ(version(), 5);
  Publish(session, "");
  EXPECT_EQ(version(), 1);
  Restart();  // compares the journal with the state
}

}  // namespace claims_test
}  // namespace gpumemd
