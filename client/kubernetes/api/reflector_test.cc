// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/reflector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/kubernetes/api/cluster_view.h"
#include "client/kubernetes/api/testing/fake_api_server.h"

namespace gpumem::kubernetes {
namespace reflector_test {

constexpr absl::Duration kPatience = absl::Seconds(60);

std::string ClaimText(int number, int mib, const std::string& pool = "node-1") {
  return absl::StrCat(R"({"metadata": {"name": "c)", number, R"(", "namespace": "team"}, "status": {
          "allocation": {"devices": {"results": [{"driver": "gpumem.dev", "pool": ")",
                      pool, R"(", "device": "gpu-0", "consumedCapacity": {"memory": ")", mib,
                      R"(Mi"}}]}}}})");
}

class ReflectorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("token", "token\n");
    Write("ca", certificate_.certificate);
    StartServer();
  }
  ~ReflectorTest() override {
    view_ = nullptr;
    unlink(Path("token").c_str());
    unlink(Path("ca").c_str());
  }
  static std::string Path(const std::string& name) {
    return absl::StrCat(testing::TempDir(), "/reflector_", name);
  }
  static void Write(const std::string& name, const std::string& text) {
    std::ofstream(Path(name), std::ios::trunc) << text;
  }
  void StartServer() {
    server_ = std::make_unique<FakeApiServer>(certificate_, port_, &store_);
    port_ = server_->port();
  }
  void Connect(absl::Duration silence = absl::Minutes(2)) {
    view_ = std::make_unique<ClusterView>(ViewOptions{.api_server = {.host = "127.0.0.1",
                                                                     .port = port_,
                                                                     .token_file = Path("token"),
                                                                     .ca_file = Path("ca"),
                                                                     .timeout = kPatience,
                                                                     .silence = silence},
                                                      .driver = "gpumem.dev",
                                                      .node = "node-1",
                                                      .pool = "node-1"});
  }
  // Returns the MiB of the claims that are known, by name.
  std::map<std::string, uint64_t> Known() const {
    std::map<std::string, uint64_t> known;
    (void)view_->Read([&](const ClusterView::State& state) {
      for (const Claim& claim : state.claims)
        known[claim.name] = claim.shares.begin()->second >> 20;
    });
    return known;
  }
  absl::Status Stale() const {
    absl::Status stale;
    const absl::Status known =
        view_->Read([&](const ClusterView::State& state) { stale = state.stale; });
    return known.ok() ? stale : known;
  }
  bool WaitFor(const std::map<std::string, uint64_t>& wanted) const {
    return WaitUntil([&] { return Known() == wanted; });
  }
  template <typename Condition>
  bool WaitUntil(Condition condition) const {
    const absl::Time end = absl::Now() + kPatience;
    while (!condition()) {
      if (absl::Now() > end) return false;
      view_->WaitForChange(view_->changes(), absl::Now() + absl::Milliseconds(5));
    }
    return true;
  }
  int Count(bool watches) const {
    int count = 0;
    for (const auto& request : server_->Requests()) {
      const bool claims = request.path.ends_with("resourceclaims");
      if (claims && request.watch == watches) ++count;
    }
    return count;
  }

  const Certificate certificate_ = MakeCertificate("localhost", "127.0.0.1");
  FakeStore store_;
  int port_ = 0;
  std::unique_ptr<FakeApiServer> server_;
  std::unique_ptr<ClusterView> view_;
};

TEST_F(ReflectorTest, ChangesAreSeenWithoutAnotherList) {
  store_.SetClaims({ClaimText(1, 10), ClaimText(2, 20), ClaimText(9, 5, "node-2"), "{}"});
  server_->SetPart(2);
  Connect();
  ASSERT_TRUE(view_->WaitFresh(absl::Now() + kPatience).ok());
  EXPECT_EQ(Known(), (std::map<std::string, uint64_t>{{"c1", 10}, {"c2", 20}}));
  store_.SetClaims({ClaimText(1, 10), ClaimText(2, 21), ClaimText(3, 30)});
  EXPECT_TRUE(WaitFor({{"c1", 10}, {"c2", 21}, {"c3", 30}}));
  store_.SetClaims({ClaimText(3, 30), ClaimText(8, 1, "node-2")});
  EXPECT_TRUE(WaitFor({{"c3", 30}}));
  EXPECT_EQ(Count(/*watches=*/false), 2) << "two parts";
  EXPECT_EQ(Count(/*watches=*/true), 1);
  EXPECT_TRUE(Stale().ok());
}

TEST_F(ReflectorTest, ABrokenWatchGoesOnFromItsVersion) {
  store_.SetClaims({ClaimText(1, 10)});
  Connect();
  ASSERT_TRUE(view_->WaitFresh(absl::Now() + kPatience).ok());
  ASSERT_TRUE(WaitUntil([&] { return Count(/*watches=*/true) == 1; }));
  server_->EndWatches(503);
  ASSERT_TRUE(WaitUntil([&] { return !Stale().ok(); }));
  EXPECT_TRUE(absl::IsUnavailable(Stale())) << Stale();
  store_.SetClaims({ClaimText(2, 20)});
  EXPECT_EQ(Known(), (std::map<std::string, uint64_t>{{"c1", 10}})) << "stale, but not forgotten";
  EXPECT_TRUE(absl::IsUnavailable(view_->WaitFresh(absl::Now() + kPatience)));
  server_->EndWatches();
  EXPECT_TRUE(WaitFor({{"c2", 20}}));
  EXPECT_TRUE(WaitUntil([&] { return Stale().ok(); }));
  EXPECT_EQ(Count(/*watches=*/false), 1) << "it does not list again";
}

TEST_F(ReflectorTest, AVersionThatIsTooOldHasItListAgain) {
  store_.SetClaims({ClaimText(1, 10)});
  Connect();
  ASSERT_TRUE(view_->WaitFresh(absl::Now() + kPatience).ok());
  server_->EndWatches(410);
  ASSERT_TRUE(WaitUntil([&] { return Count(/*watches=*/false) >= 2; }));
  server_->EndWatches();
  store_.SetClaims({ClaimText(2, 20)});
  EXPECT_TRUE(WaitFor({{"c2", 20}}));
  // The same as an event.
  const int lists = Count(/*watches=*/false);
  store_.Compact();
  store_.SetClaims({ClaimText(3, 30)});
  EXPECT_TRUE(WaitFor({{"c3", 30}}));
  EXPECT_GT(Count(/*watches=*/false), lists);
}

TEST_F(ReflectorTest, AnAccountThatMayNotWatchLists) {
  store_.SetClaims({ClaimText(1, 10)});
  server_->EndWatches(403);
  Connect();
  ASSERT_TRUE(WaitUntil([&] { return absl::IsPermissionDenied(Stale()); }));
  store_.SetClaims({ClaimText(2, 20)});
  EXPECT_TRUE(WaitFor({{"c2", 20}}));
}

TEST_F(ReflectorTest, EventsThatMakeNoSenseHaveItListAgain) {
  store_.SetClaims({ClaimText(1, 10)});
  Connect();
  ASSERT_TRUE(view_->WaitFresh(absl::Now() + kPatience).ok());
  server_->SpoilWatches("{\"type\": \"?\"}\n");
  ASSERT_TRUE(WaitUntil([&] { return absl::IsInvalidArgument(Stale()); }));
  server_->SpoilWatches("");
  store_.SetClaims({ClaimText(2, 20)});
  EXPECT_TRUE(WaitFor({{"c2", 20}}));
  server_->SpoilWatches(std::string(1 << 20, ' '));  // a line without an end
  ASSERT_TRUE(WaitUntil([&] { return absl::IsResourceExhausted(Stale()); }));
  server_->SpoilWatches("");
  ASSERT_TRUE(WaitUntil([&] { return view_->WaitFresh(absl::Now() + kPatience).ok(); }));
  EXPECT_TRUE(WaitFor({{"c2", 20}}));
}

TEST_F(ReflectorTest, SilenceEndsAWatch) {
  store_.SetClaims({ClaimText(1, 10)});
  Connect(/*silence=*/absl::Milliseconds(200));
  ASSERT_TRUE(WaitUntil([&] { return Count(/*watches=*/true) >= 2; }));
  store_.SetClaims({ClaimText(2, 20)});
  EXPECT_TRUE(WaitFor({{"c2", 20}}));
}

TEST_F(ReflectorTest, NothingIsKnownBeforeTheFirstList) {
  server_ = nullptr;
  Connect();
  EXPECT_TRUE(absl::IsUnavailable(view_->WaitFresh(absl::Now() + kPatience)));
  EXPECT_TRUE(absl::IsUnavailable(view_->Read([](const ClusterView::State&) { FAIL(); })));
  StartServer();
  ASSERT_TRUE(WaitUntil([&] { return view_->WaitFresh(absl::Now() + kPatience).ok(); }));
}

TEST_F(ReflectorTest, ItEndsDuringACall) {
  for (int i = 0; i < 20; ++i) {
    Connect();
    if (i % 2 == 0) {
      ASSERT_TRUE(view_->WaitFresh(absl::Now() + kPatience).ok());
    }
    const absl::Time begin = absl::Now();
    view_ = nullptr;
    EXPECT_LT(absl::Now() - begin, kPatience / 2);
  }
}

// Claims change while watches end, the API server is restarted, and versions are forgotten.
TEST_F(ReflectorTest, NothingIsMissed) {
  std::mt19937_64 random(9);
  Connect();
  std::map<std::string, uint64_t> wanted;
  for (int step = 0; step < 40; ++step) {
    for (int change = 0; change < 5; ++change) {
      std::vector<std::string> texts;
      wanted.clear();
      for (int claim = 0; claim < 10; ++claim) {
        if (random() % 2 == 0) continue;
        const int mib = 1 + static_cast<int>(random() % 3);
        texts.push_back(ClaimText(claim, mib));
        wanted[absl::StrCat("c", claim)] = static_cast<uint64_t>(mib);
      }
      if (change == 2) {
        switch (random() % 4) {
          case 0:
            server_->EndWatches();
            break;
          case 1:
            store_.Compact();
            break;
          case 2:
            server_ = nullptr;
            StartServer();
            break;
          default:
            break;
        }
      }
      store_.SetClaims(texts);
    }
    // As a pod that starts.
    ASSERT_TRUE(WaitUntil([&] {
      return view_->WaitFresh(absl::Now() + kPatience).ok() && Known() == wanted;
    })) << step;
  }
}

}  // namespace reflector_test
}  // namespace gpumem::kubernetes
