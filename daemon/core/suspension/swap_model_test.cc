// SPDX-License-Identifier: Apache-2.0
// Random steps of sessions that take turns, with publications among them. What each session was
// promised is counted anew from a plain record of the steps. Nothing of SwapPolicy is used for it
// but the requests that it makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/suspension/swap_policy.h"
#include "daemon/core/suspension/testing/swap_fixture.h"

namespace gpumemd {
namespace swap_model_test {

using Cause = records::SuspensionCause;

constexpr uint64_t kGranules = 10;
const char* const kTenants[] = {"low", "a", "b", "high"};

class SwapTurnsTest : public SwapFixture {
 protected:
  // What a session was promised, and has done.
  struct Promised {
    std::string tenant;
    std::optional<bool> swappable;  // as its only watch says
    bool serves = false;
    bool answers = true;              // to requests: suspends
    absl::Time active;                // its last call for leases
    absl::Time since;                 // it last got or resumed a lease
    std::optional<absl::Time> asked;  // and has had leases ever since
  };
  struct Waits {
    SessionId session{};
    bool publication = false;
  };

  explicit SwapTurnsTest() : SwapFixture(kGranules, /*tier_granules=*/12) {}

  void Begin(uint32_t seed) {
    random.seed(seed);
    for (const char* tenant : kTenants) SetAnyQuota(tenant);
  }
  uint64_t Below(uint64_t n) { return random() % n; }
  bool In100(uint64_t percent) { return Below(100) < percent; }
  SessionId Any() {
    return std::next(promised.begin(), static_cast<ptrdiff_t>(Below(promised.size())))->first;
  }
  // Returns the session's leases of memory of the same tenant, or of that of others.
  std::vector<LeaseId> LeasesOf(SessionId session, bool suspended, bool own = true) {
    std::vector<LeaseId> leases;
    for (LeaseId id : ledger.state().sessions.at(session)->leases) {
      const records::Lease& lease = ledger.state().leases.at(id);
      const std::string& owner = ledger.state().segments.at(lease.segment)->tenant->name;
      if ((owner == promised.at(session).tenant) == own && lease.suspended == suspended) {
        leases.push_back(id);
      }
    }
    return leases;
  }
  void SetAnyQuota(const std::string& tenant) {
    Quota quota = {.priority = tenant == "low"    ? -1
                               : tenant == "high" ? 1
                                                  : 0,
                   .swappable = In100(70),
                   .min_residence = absl::Seconds(Below(2) * 5)};
    if (In100(30)) quota.idle_suspend = absl::Seconds(20 + Below(60));
    if (In100(20)) quota.tier_limit_bytes = (4 + Below(8)) * kGranule;
    quotas[tenant] = quota;
    SetQuota(tenant, quota);
  }
  void Calls(SessionId session) {
    promised.at(session).active = now;
    ledger.swaps().Active(session);
  }

  // --- Steps ---------------------------------------------------------------------------

  void Open() {
    if (promised.size() == 8) return;
    const std::string tenant = kTenants[Below(std::size(kTenants))];
    const SessionId session = OpenSession(tenant);
    promised[session] = {.tenant = tenant, .answers = In100(80), .active = now, .since = now};
    if (In100(85)) Serve(session);
  }
  // Begins, or ends, the watch of the session.
  void Serve(SessionId session) {
    Promised& of = promised.at(session);
    if (of.serves) {
      ledger.suspension_requests().RemoveWatch(session, of.swappable);
    } else {
      of.swappable = In100(20) ? std::optional(In100(50)) : std::nullopt;
      ledger.suspension_requests().AddWatch(session, of.swappable);
    }
    of.serves = !of.serves;
  }
  // Asks for new memory, or for what the session has suspended.
  void AskFor(SessionId session) {
    const std::vector<LeaseId> suspended = LeasesOf(session, true);
    AcquireSpec spec = {.device_uuid = "GPU-1", .bytes = (1 + Below(6)) * kGranule, .waits = true};
    if (!suspended.empty() && In100(70)) spec = {.waits = true, .resumes = suspended};
    Enter(session, spec);
  }
  void Enter(SessionId session, const AcquireSpec& spec) {
    Calls(session);
    auto admission = ledger.admission().BeginAcquire(session, spec);
    if (!admission.ok()) return;  // it is too large, or is waited for already
    if (admission->waiter) {
      waiting[*admission->waiter] = {session, spec.publication.has_value()};
      return;
    }
    Finish(*admission->operation);
    if (!spec.publication) promised.at(session).since = now;
  }
  void GiveUp() {
    if (waiting.empty()) return;
    const auto it = std::next(waiting.begin(), static_cast<ptrdiff_t>(Below(waiting.size())));
    ledger.admission().EndWait(it->first, /*expired=*/In100(50)).IgnoreError();
    waiting.erase(it);
  }
  // Suspends all that the session maps, if the tier has room.
  void SuspendAll(SessionId session) {
    const std::vector<LeaseId> leases = LeasesOf(session, false);
    if (leases.empty()) return;
    Calls(session);
    auto begun = ledger.suspensions().Begin(session, leases, /*reservation=*/0);
    if (!begun.ok()) {
      if (absl::IsResourceExhausted(begun.status())) ledger.swaps().Refused(session);
      return;
    }
    Carry(begun->moves, /*copied=*/true);
    ledger.swaps().Suspended(session);
    NoteLeft(session);
  }
  // A session that maps nothing any more has done what it was asked for.
  void NoteLeft(SessionId session) {
    if (LeasesOf(session, /*suspended=*/false).empty()) promised.at(session).asked.reset();
  }
  void Carry(const std::vector<Suspensions::Move>& moves, bool copied) {
    for (const Suspensions::Move& move : moves) {
      ledger.suspensions().Made(move, {{.offset = 0, .bytes = move.bytes}});
      ledger.suspensions().Finish(move, copied);
    }
  }
  void ReleaseOne(SessionId session, bool suspended) {
    const std::vector<LeaseId> leases = LeasesOf(session, suspended);
    if (leases.empty()) return;
    EXPECT_TRUE(ledger.leases().Release(session, {leases.front()}).ok());
    NoteLeft(session);
  }
  void End(SessionId session) {
    std::erase_if(waiting, [&](const auto& each) { return each.second.session == session; });
    ledger.endings().ProcessGone(session);
    promised.erase(session);
  }
  // Publishes one lease, and mostly leaves it to the publication.
  void PublishOne(SessionId session) {
    const std::vector<LeaseId> leases = LeasesOf(session, false);
    if (leases.empty() || ledger.state().publications.size() == 3) return;
    const std::string name = absl::StrCat("p", Below(2));
    const auto published = ledger.publications().Publish(
        session, {.name = name, .leases = {leases.front()}, .to_any = true});
    if (published.ok() && In100(80)) {
      EXPECT_TRUE(ledger.leases().Release(session, {leases.front()}).ok());
      NoteLeft(session);
    }
  }
  std::optional<PublicationId> AnyPublication() {
    const auto& all = ledger.state().publications;
    if (all.empty()) return std::nullopt;
    return std::next(all.begin(), static_cast<ptrdiff_t>(Below(all.size())))->first;
  }
  void SuspendPublication(PublicationId id) {
    const auto moves = ledger.suspensions().BeginPublication(id);
    if (moves.ok()) Carry(*moves, /*copied=*/In100(90));
  }
  // Attaches. If the publication is suspended, waits for memory to bring it back.
  void Attach(SessionId session, PublicationId id) {
    const records::Publication& of = ledger.state().publications.at(id);
    const auto attach = ledger.operations().BeginAttach(
        session, {.name = absl::StrCat(of.tenant->name, "/", of.name)});
    if (!attach.ok()) return;
    if (attach->suspended) return Enter(session, {.waits = true, .publication = id});
    Calls(session);
    EXPECT_TRUE(ledger.operations().Commit(*attach->operation).ok());
    if (of.tenant->name == promised.at(session).tenant) promised.at(session).since = now;
  }

  void Step() {
    if (promised.empty()) return Open();
    const SessionId session = Any();
    const std::optional<PublicationId> publication = AnyPublication();
    switch (Below(20)) {
      case 0:
      case 1:
        return Open();
      case 2:
        return Serve(session);
      case 3:
      case 4:
      case 5:
      case 6:
        return AskFor(session);
      case 7:
        return GiveUp();
      case 8:
        return SuspendAll(session);
      case 9:
        return ReleaseOne(session, In100(30));
      case 10:
        if (In100(40)) End(session);
        return;
      case 11:
        return PublishOne(session);
      case 12:
        if (publication && In100(30)) ledger.publications().End(*publication);
        return;
      case 13:
      case 14:
        if (publication) SuspendPublication(*publication);
        return;
      case 15:
      case 16:
        if (publication) Attach(session, *publication);
        return;
      case 17:
        if (In100(30)) SetAnyQuota(kTenants[Below(std::size(kTenants))]);
        return;
      default:
        now += absl::Seconds(Below(40));
        ledger.admission().RunSwaps();
    }
  }

  // --- Promises ------------------------------------------------------------------------

  // Serves waiters, and checks whom the policy has asked since the last call.
  void Follow() {
    const size_t before = granted.size();
    Settle();
    // Some may have been asked, and then granted what they wait for.
    for (SessionId session : Asked()) CheckAsked(session);
    for (size_t i = before; i < granted.size(); ++i) {
      const auto it = waiting.find(granted[i]);
      ASSERT_NE(it, waiting.end());
      if (!it->second.publication) promised.at(it->second.session).since = now;
      waiting.erase(it);
    }
    for (auto it = waiting.begin(); it != waiting.end();) {  // refused since: a smaller quota
      it = ledger.state().waiters.contains(it->first) ? std::next(it) : waiting.erase(it);
    }
    CheckCounts();
  }
  void CheckAsked(SessionId session) {
    SCOPED_TRACE(absl::StrCat("session ", ToInt(session)));
    auto it = promised.find(session);
    if (it == promised.end()) return;  // ended in the same step
    Promised& of = it->second;
    const Quota& quota = quotas.at(of.tenant);
    const auto* const request = ledger.suspension_requests().Find(session);
    if (request == nullptr || request->until != now + kGrace) return;  // over in the same step
    ++asked;
    EXPECT_EQ(request->action, records::SuspensionAction::kSuspend);
    EXPECT_TRUE(of.serves) << "it serves no requests";
    EXPECT_TRUE(of.swappable.value_or(quota.swappable)) << "it is not swappable";
    EXPECT_FALSE(LeasesOf(session, /*suspended=*/false).empty()) << "it maps nothing";
    EXPECT_TRUE(!of.asked || *of.asked + kBackOff <= now) << "it was asked already";
    of.asked = now;
    if (request->cause == Cause::kIdle) {
      EXPECT_GT(quota.idle_suspend, absl::ZeroDuration());
      EXPECT_GE(now, of.active + quota.idle_suspend) << "it is not idle for long";
      return;
    }
    EXPECT_GE(now, of.since + quota.min_residence) << "it has not been there for long";
    EXPECT_TRUE(std::any_of(waiting.begin(), waiting.end(), [&](const auto& waiter) {
      if (waiter.second.session == session) return false;
      // A publication is brought back for the tenant that made it.
      if (waiter.second.publication) return true;
      return quotas.at(promised.at(waiter.second.session).tenant).priority >= quota.priority;
    })) << "no other request of that priority waits";
  }
  void CheckCounts() {
    uint64_t open = 0;
    for (const auto& [session, of] : promised) {
      const auto* const request = ledger.suspension_requests().Find(session);
      open += request != nullptr && request->cause != Cause::kOperator ? 1 : 0;
    }
    EXPECT_EQ(counts().asked_for_waiters + counts().asked_idle,
              counts().suspended + counts().ignored + counts().refused + counts().gone + open);
  }
  // Lets the sessions that are asked answer, or not.
  void Answer() {
    for (const auto& [session, of] : std::map(promised)) {
      const auto* const request = ledger.suspension_requests().Find(session);
      if (request != nullptr && of.answers && In100(70)) SuspendAll(session);
    }
  }
  // Checks that a request of the highest priority gets all of the device in the end, if all that
  // hold it can be swapped out and answer.
  void CheckTurn() {
    while (!waiting.empty()) GiveUp();
    for (const char* tenant : kTenants) {
      quotas[tenant] = Swappable(/*priority=*/0, absl::Seconds(5));
      SetQuota(tenant, quotas[tenant]);
    }
    while (!ledger.state().publications.empty()) {
      ledger.publications().End(ledger.state().publications.begin()->first);
    }
    for (auto& [session, of] : promised) {
      of.answers = true;
      while (!LeasesOf(session, true).empty()) ReleaseOne(session, true);
      const std::vector<LeaseId> foreign = LeasesOf(session, false, /*own=*/false);
      EXPECT_TRUE(ledger.leases().Release(session, foreign).ok());
      if (of.serves) ledger.suspension_requests().RemoveWatch(session, of.swappable);
      of.serves = true;
      of.swappable.reset();
      ledger.suspension_requests().AddWatch(session);
    }
    Follow();
    const SessionId last = OpenSession("last");
    promised[last] = {.tenant = "last", .active = now, .since = now};
    quotas["last"] = Swappable(/*priority=*/2);
    SetQuota("last", quotas["last"]);
    Enter(last, {.device_uuid = "GPU-1", .bytes = kGranules * kGranule, .waits = true});
    for (int i = 0; i < 40 && !waiting.empty(); ++i) {
      Follow();
      for (const auto& [session, of] : std::map(promised)) {
        if (ledger.suspension_requests().Find(session) != nullptr) SuspendAll(session);
      }
      Follow();
      now += absl::Seconds(5);
      ledger.admission().RunSwaps();
    }
    EXPECT_TRUE(waiting.empty()) << "it is not served";
  }

  std::mt19937 random;
  std::map<SessionId, Promised> promised;
  std::map<std::string, Quota> quotas;
  std::map<WaiterId, Waits> waiting;
  uint64_t asked = 0;
};

TEST_F(SwapTurnsTest, EachIsAskedAsPromisedThroughRandomSteps) {
#if defined(__SANITIZE_THREAD__)
  constexpr uint32_t kSeeds = 10;  // it takes thirty times as long
#else
  constexpr uint32_t kSeeds = 150;
#endif
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Begin(seed);
    for (int step = 0; step < 300; ++step) {
      Step();
      Follow();
      if (In100(40)) Answer();
      Follow();
      ASSERT_FALSE(HasFailure());
    }
    CheckTurn();
    ASSERT_FALSE(HasFailure());
    while (!promised.empty()) End(promised.begin()->first);
    while (!ledger.state().publications.empty()) {
      ledger.publications().End(ledger.state().publications.begin()->first);
    }
    Pass(absl::Hours(1));
    EXPECT_TRUE(ledger.state().segments.empty() && ledger.state().waiters.empty());
    EXPECT_EQ(ledger.swaps().NextDue(/*awaited=*/false), absl::InfiniteFuture());
    CheckCounts();
  }
  if (kSeeds < 150) return;  // too few for what follows
  EXPECT_GT(asked, 500u) << "the steps test hardly anything";
  for (uint64_t count : {counts().asked_for_waiters, counts().asked_idle, counts().suspended,
                         counts().ignored, counts().refused, counts().gone}) {
    EXPECT_GT(count, 20u) << "a case is hardly ever met";
  }
}

}  // namespace swap_model_test
}  // namespace gpumemd
