// SPDX-License-Identifier: Apache-2.0
// The feed of gpumem-web beside a real daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/web/feed/feed_fixture.h"

namespace gpumem {
namespace {

using testing::Comparable;
using testing::FeedOfDaemon;
using testing::Json;
using testing::KeyOf;
using testing::kMiB;
using testing::kNobody;
using testing::Reader;
using testing::Stripped;

// Expects that `ours` is `theirs` of gpumemctl, by key; times may differ by two seconds.
void ExpectSame(const std::string& list, const Json& ours, const Json& theirs, absl::Time now) {
  ASSERT_EQ(ours.size(), theirs.size()) << list;
  const auto erase_times = [](Json* object, const Json& other) {
    for (const char* time : {"since_ms", "idle_since_ms", "started_ms", "expires_at_ms"}) {
      ASSERT_EQ(object->contains(time), other.contains(time)) << time << " of " << *object;
      if (!object->contains(time)) continue;
      EXPECT_NEAR((*object)[time].get<double>(), other[time].get<double>(), 2000) << time;
      (*object)[time] = other[time];
    }
  };
  for (const Json& raw : theirs) {
    const Json expected = Stripped(raw, now);
    Json found;
    for (const Json& each : ours) {
      if (KeyOf(list, each) == KeyOf(list, expected)) found = Stripped(each, now);
    }
    ASSERT_TRUE(found.is_object()) << "no " << expected << " in " << list;
    erase_times(&found, expected);
    EXPECT_EQ(found, expected) << list;
  }
}

TEST_F(FeedOfDaemon, NumbersAreThoseOfGpumemctl) {
  const auto one = Connect("one", "first"), stranger = Connect("stranger", "second");
  const Segment held = Acquire(*one, {.bytes = 4 * kMiB});
  const Segment pinned = Acquire(*one, {.bytes = kMiB, .kind = Kind::kPinned});
  const Segment other = Acquire(*stranger, {.bytes = 8 * kMiB});
  { const Segment retained = Acquire(*stranger, {.bytes = 2 * kMiB}); }
  const Segment* const published[] = {&other};
  ASSERT_TRUE(stranger
                  ->Publish("weights", published,
                            {.access = PublicationAccess::kAny, .expire_after = absl::Hours(1)})
                  .ok());
  auto attached = one->Attach("stranger/weights");
  ASSERT_TRUE(attached.ok()) << attached.status();
  const CancelToken cancel;
  std::thread waiter([&] {
    (void)one->Acquire({.bytes = 30 * kMiB, .wait = absl::InfiniteDuration(), .cancel = cancel});
  });
  const absl::Cleanup end = [&] {
    cancel.Cancel();
    waiter.join();
  };
  Json seen, ours;
  ASSERT_TRUE(testing::Eventually([&] {
    seen = Document(kOperator);
    return seen["waiting"].size() == 1;
  }));
  // That document may have lists that were read before the request. From now on nothing changes, so
  // that two programs see one state.
  ASSERT_TRUE(testing::Eventually([&] {
    ours = Document(kOperator);
    return ours["time_ms"] != seen["time_ms"];
  }));
  const absl::Time now = absl::Now();
  EXPECT_EQ(ours["schema_version"], 1);
  EXPECT_EQ(ours["viewer"]["sees"], "all");
  Json status = Gpumemctl("status");
  ExpectSame("devices", ours["devices"], status["devices"], now);
  const Json devices = status["devices"];
  status.erase("devices");
  status.erase("schema_version");
  Json our_status = ours["status"], their_status = Stripped(status, now);
  EXPECT_NEAR(our_status["started_ms"].get<double>(), their_status["started_ms"].get<double>(),
              2000);
  their_status["started_ms"] = our_status["started_ms"];
  EXPECT_EQ(our_status, their_status);
  const Json ps = Gpumemctl("ps");
  ExpectSame("sessions", ours["sessions"], ps["sessions"], now);
  ASSERT_EQ(ps["waiting"].size(), 1u);
  Json waiting = Stripped(ps["waiting"][0], now);
  EXPECT_NEAR(ours["waiting"][0]["since_ms"].get<double>(), waiting["since_ms"].get<double>(),
              2000);
  waiting["since_ms"] = ours["waiting"][0]["since_ms"];
  EXPECT_EQ(ours["waiting"][0], waiting);
  ExpectSame("segments", ours["segments"], Gpumemctl("segments")["segments"], now);
  Json tenants = Gpumemctl("quota list")["tenants"];
  for (Json& each : tenants) {
    if (each["usage"]["tenant"] != "two") continue;
    for (Json& device : each["usage"]["devices"]) device.erase("obtainable_bytes");  // it is idle
  }
  ExpectSame("tenants", ours["tenants"], tenants, now);
  Json publications = ours["publications"];
  for (Json& each : publications) {
    // gpumemctl asks as a worker here, who is not told the publisher.
    EXPECT_EQ(each["publisher_client_name"], "second");
    for (const char* member : {"alive", "client_name", "pid", "session_id"}) {
      EXPECT_EQ(each.erase(absl::StrCat("publisher_", member)), 1u);
    }
  }
  ExpectSame("publications", publications, Gpumemctl("publications")["publications"], now);
  ASSERT_EQ(ours["published"].size(), 1u);
  EXPECT_EQ(ours["published"][0]["name"], "weights");
  Json leases = Gpumemctl("describe tenant one")["leases"];
  const Json of_stranger = Gpumemctl("describe tenant stranger");
  for (const Json& each : of_stranger["leases"]) leases.push_back(each);
  ExpectSame("leases", ours["leases"], leases, now);

  const Json overview = Json::parse(feed_->Overview());
  EXPECT_EQ(overview["node"], "node-1");
  EXPECT_EQ(overview["daemon"], "ok");
  EXPECT_EQ(overview["devices"][0]["charged_bytes"], devices[0]["charged_bytes"]);
  EXPECT_EQ(overview["sessions"], 2);
  EXPECT_EQ(overview["waiting"], 1);
}

TEST_F(FeedOfDaemon, ChangesLeadToTheState) {
  Reader reader(*feed_, kOperator);
  reader.Await("snapshot");
  const auto one = Connect("one"), stranger = Connect("stranger");
  std::vector<Segment> segments;
  for (int i = 0; i < 30; ++i) {
    segments.push_back(Acquire(i % 2 == 0 ? *one : *stranger, {.bytes = kMiB}));
    if (i % 3 == 2) segments.erase(segments.begin());
  }
  ASSERT_TRUE(reader.AwaitState([](const Json& state) {
    return state["leases"].size() == 20 && state["sessions"].size() == 2;
  }));
  // The reader's lists may be of different moments until the next query.
  EXPECT_TRUE(testing::Eventually([&] {
    const Json told = Comparable(reader.state()), asked = Comparable(Document(kOperator));
    return told["segments"] == asked["segments"] && told["leases"] == asked["leases"] &&
           told["sessions"] == asked["sessions"];
  }));
  segments.clear();
  EXPECT_TRUE(reader.AwaitState([](const Json& state) { return state["leases"].empty(); }));
  // Nothing happens: a tick comes, and no change before it.
  const size_t quiet = reader.size();
  reader.Await("tick", quiet);
  const size_t ticked = reader.size();
  reader.Await("tick", ticked);
  for (const auto& event : reader.events(ticked)) EXPECT_EQ(event.name, "tick") << event.data;
}

TEST_F(FeedOfDaemon, EventsComeWithThePast) {
  const auto one = Connect("one", "early");
  const Segment held = Acquire(*one, {.bytes = kMiB});
  Reader first(*feed_, kOperator);
  const auto granted = [](const std::string& tenant) {
    return [tenant](const Reader::Event& event) {
      return event.name == "event" && event.data["event"] == "granted" &&
             event.data.value("tenant", "") == tenant;
    };
  };
  const Json past = first.Await(granted("one")).data;
  EXPECT_EQ(past["fields"]["bytes"], held.size());
  EXPECT_EQ(past["fields"]["client"], "early");
  EXPECT_NEAR(past["time_ms"].get<double>(), static_cast<double>(absl::ToUnixMillis(absl::Now())),
              60'000);
  Reader second(*feed_, kOperator);
  second.Await(granted("one"));
  const auto stranger = Connect("stranger");
  const Segment later = Acquire(*stranger, {.bytes = kMiB});
  first.Await(granted("stranger"));
  second.Await(granted("stranger"));
  for (Reader* each : {&first, &second}) {
    // None twice, and none missing.
    uint64_t last = 0;
    for (const auto& event : each->events()) {
      if (event.name != "event") continue;
      EXPECT_EQ(event.data["number"], last + 1);
      last = event.data["number"];
    }
  }
}

TEST_F(FeedOfDaemon, ComesBackWithTheNextDaemon) {
  Reader reader(*feed_, kOperator);
  reader.Await("snapshot");
  reader.Await("event");
  daemon_->child().Signal(SIGKILL);
  daemon_->child().Wait();
  const auto lost = reader.Await("daemon");
  EXPECT_EQ(lost.data["state"], "lost");
  EXPECT_NE(lost.data["message"], "");
  EXPECT_TRUE(absl::IsUnavailable(feed_->Snapshot(kOperator).status()));
  EXPECT_EQ(Json::parse(feed_->Overview())["daemon"], "lost");
  EXPECT_TRUE(absl::IsUnavailable(feed_->History(kOperator, "", {}).status()));
  // One that comes while there is no daemon is told so first.
  Reader late(*feed_, kOperator);
  late.Await("daemon");
  EXPECT_EQ(late.events()[0].name, "daemon");

  const size_t before = reader.size();
  ASSERT_TRUE(daemon_->RunAgain().ok());
  for (Reader* each : {&reader, &late}) {
    const size_t from = each == &reader ? before : 1;
    EXPECT_EQ(each->Await("daemon", from).data["state"], "ok");
    each->Await("snapshot", from);
    const Json started = each->Await("event", from).data;
    EXPECT_EQ(started["event"], "started");
    EXPECT_EQ(started["number"], 1);
  }
  const auto one = Connect("one");
  EXPECT_TRUE(reader.AwaitState([](const Json& state) { return state["sessions"].size() == 1; }));
  EXPECT_EQ(Document(kOperator)["sessions"].size(), 1u);
}

TEST_F(FeedOfDaemon, EndsWithSubscribersAndWithoutThem) {
  for (int i = 0; i < 20; ++i) {
    std::vector<std::unique_ptr<Reader>> readers;
    for (int j = 0; j < 5; ++j) {
      readers.push_back(std::make_unique<Reader>(*feed_, j % 2 == 0 ? kOperator : kNobody));
    }
    if (i % 2 == 0) readers.back()->Await("snapshot");
    readers.clear();
    if (i % 3 == 0) {
      feed_ = std::make_unique<web::Feed>(
          web::Feed::Options{.runtime_dir = daemon_->runtime_dir(), .node = "node-1"});
    }
  }
}

}  // namespace
}  // namespace gpumem
