// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <utility>
#include <vector>

#include "daemon/core/suspension/testing/fixture.h"

namespace gpumemd {
namespace {

// Random steps of three sessions, with copies that fail, holders that die, and daemons that are
// killed at any point: each lease keeps its contents, and nothing is charged without a holder.
TEST_F(SuspensionsTest, EachLeaseKeepsItsContentsThroughRandomSteps) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return random() % n; };
    std::vector<SessionId> sessions;
    std::vector<std::pair<SessionId, std::vector<Move>>> copying;
    std::vector<Operation> resuming;
    for (int i = 0; i < 3; ++i) sessions.push_back(OpenSession(i < 2 ? "team" : "other"));
    for (int step = 0; step < 150; ++step) {
      const size_t who = below(sessions.size());
      const SessionId session = sessions[who];
      const auto& leases = ledger.state().sessions.at(session)->leases;
      std::vector<LeaseId> some;
      for (LeaseId lease : leases) {
        if (below(2) == 0) some.push_back(lease);
      }
      switch (below(10)) {
        case 0:
        case 1:
          if (ledger.state().charged(0) < 6 * kGranule)
            AcquireFilled(session, (1 + below(3)) * kGranule, below(3) == 0 ? "GPU-2" : "GPU-1");
          break;
        case 2: {  // shares one with a session of its tenant
          if (some.empty() || ledger.state().segments.at(SegmentOf(some[0]))->lost) break;
          auto operation =
              ledger.operations().BeginOpen(sessions[below(2)], {Share(session, some[0])});
          if (!operation.ok()) break;
          EXPECT_TRUE(ledger.operations().Commit(*operation).ok());
          expected[operation->items[0].lease] = expected.at(some[0]);
          break;
        }
        case 3:
        case 4: {
          const bool reserves = below(2) == 0;
          uint64_t reservation = 0;
          if (reserves) {
            auto prepared = ledger.suspensions().Prepare(session, some);
            if (prepared.ok()) reservation = prepared->id;
          }
          auto begun = ledger.suspensions().Begin(session, some, reservation);
          if (!begun.ok()) break;
          for (const Move& move : begun->moves) {
            ledger.suspensions().Made(move, {{.offset = next_offset, .bytes = move.bytes}});
            next_offset += move.bytes;
          }
          copying.emplace_back(session, begun->moves);
          break;
        }
        case 5:
          if (copying.empty()) break;
          for (const Move& move : copying.back().second) {
            const bool copied = below(5) != 0;
            if (copied) contents[move.to] = contents.at(move.from);
            ledger.suspensions().Finish(move, copied);
          }
          copying.pop_back();
          break;
        case 6: {
          auto operation = AskResume(session, some);
          if (!Granted(operation)) break;
          FillFrom(**operation);
          resuming.push_back(**operation);
          break;
        }
        case 7:
          if (resuming.empty()) break;
          if (below(3) == 0) {
            ledger.operations().Abort(resuming.back(), /*handed_over=*/below(2) == 0);
          } else {
            EXPECT_TRUE(ledger.operations().Commit(resuming.back()).ok());
          }
          resuming.pop_back();
          break;
        case 8:
          if (!some.empty()) {
            EXPECT_TRUE(ledger.leases().Release(session, {some[0]}).ok());
          }
          break;
        case 9:
          if (below(4) != 0) break;
          Restart();
          copying.clear();
          resuming.clear();
          break;
      }
      if (below(2) == 0) DestroyDoomed();
      ASSERT_TRUE(ledger.CheckInvariants().ok()) << Broken();
      ExpectContents();
      ASSERT_FALSE(HasFailure());
    }
    for (const auto& [session, moves] : copying) {
      for (const Move& move : moves) ledger.suspensions().Finish(move, /*copied=*/false);
    }
    for (const Operation& operation : resuming) ledger.operations().Abort(operation, false);
    for (SessionId session : sessions) ledger.endings().ProcessGone(session);
    DestroyDoomed();
    EXPECT_TRUE(ledger.state().segments.empty());
    expected.clear();
  }
}

}  // namespace
}  // namespace gpumemd
