// SPDX-License-Identifier: Apache-2.0
// What viewers of a feed may see, beside a real daemon.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/web/feed/feed_fixture.h"

namespace gpumem {
namespace {

using testing::FeedOfDaemon;
using testing::Json;
using testing::kMiB;
using testing::kNobody;
using testing::kTeamConfig;
using testing::Reader;

TEST_F(FeedOfDaemon, ShowsOthersSumsAlone) {
  const auto one = Connect("one", "SECRET"), stranger = Connect("stranger", "SECRET");
  const Segment held = Acquire(*one, {.bytes = 4 * kMiB});
  const Segment other = Acquire(*stranger, {.bytes = 2 * kMiB});
  Reader reader(*feed_, kNobody), operators(*feed_, kOperator);
  reader.Await("snapshot");
  operators.Await("event");
  const Json document = Document(kNobody);
  EXPECT_EQ(document["viewer"]["sees"], "own");
  for (const char* list : {"sessions", "segments", "leases", "publications", "published"}) {
    EXPECT_TRUE(document[list].empty()) << list;
  }
  ASSERT_EQ(document["tenants"].size(), 1u);
  EXPECT_EQ(document["tenants"][0]["usage"]["tenant"], "(others)");
  EXPECT_EQ(document["tenants"][0]["usage"]["devices"][0]["leased_bytes"], 6 * kMiB);
  EXPECT_THAT((*feed_->Snapshot(kNobody))->c_str(), ::testing::Not(::testing::HasSubstr("SECRET")));
  for (const auto& event : reader.events()) EXPECT_NE(event.name, "event") << event.data;
  EXPECT_TRUE(absl::IsNotFound(feed_->History(kNobody, "", {"one"}).status()));

  // The user of this process sees the tenants of its sessions, without being an operator.
  const Json own = Document({.uid = getuid()});
  EXPECT_EQ(own["segments"].size(), 2u);
  EXPECT_EQ(own["tenants"].size(), 4u) << "with the team and its other tenant";
  daemon_->Reconfigure(absl::StrCat(kTeamConfig, "[privacy]\nholders = \"none\"\n"));
  EXPECT_TRUE(
      testing::Eventually([&] { return Document({.uid = getuid()})["viewer"]["sees"] == "none"; }));
  EXPECT_EQ(Document({.uid = getuid()})["tenants"].size(), 2u);
  // The stream's view is another now.
  EXPECT_TRUE(
      reader.AwaitState([](const Json& state) { return state["viewer"]["sees"] == "none"; }));
}

TEST_F(FeedOfDaemon, NamesCannotBreakTheStream) {
  Reader reader(*feed_, kOperator);
  reader.Await("snapshot");
  const std::string names[] = {"a\n\nevent: snapshot\ndata: {}\n\n", "</script>", "\"\\\r\n",
                               "\x1b[31m\x7f", "gr\xc3\xbc\xc3\x9f\xe2\x80\xae"};
  std::vector<std::unique_ptr<Client>> clients;
  for (const std::string& name : names) {
    auto client = daemon_->Connect("one", name);
    if (client.ok()) clients.push_back(*std::move(client));
  }
  ASSERT_FALSE(clients.empty());
  EXPECT_TRUE(reader.AwaitState(
      [&](const Json& state) { return state["sessions"].size() == clients.size(); }));
  EXPECT_EQ(Document(kOperator)["sessions"].size(), clients.size());
}

TEST_F(FeedOfDaemon, HasTheHistoryOfVisibleTenants) {
  const auto one = Connect("one"), stranger = Connect("stranger");
  const Segment held = Acquire(*one, {.bytes = 4 * kMiB});
  // The daemon takes a sample each 10 s.
  const auto has_points = [&](const web::Viewer& viewer, const std::string& tenant) {
    const auto text = feed_->History(viewer, "", {});
    EXPECT_TRUE(text.ok()) << text.status();
    if (!text.ok()) return true;
    const Json history = Json::parse(*text);
    EXPECT_EQ(history["interval_ms"], 10'000);
    for (const Json& series : history["series"]) {
      if (series["tenant"] != tenant) continue;
      for (const Json& point : series["points"]) {
        if (point.size() == 6 && point[1] == held.size() && point[5] == held.size()) return true;
      }
    }
    return false;
  };
  const web::Viewer own = {.uid = getuid()};
  EXPECT_TRUE(testing::Eventually([&] { return has_points(kOperator, "one"); }, absl::Seconds(60)));
  EXPECT_TRUE(has_points(own, "one"));
  EXPECT_FALSE(has_points(kNobody, "one"));
  const auto named = feed_->History(own, held.device_uuid(), {"one"});
  ASSERT_TRUE(named.ok()) << named.status();
  const Json series = Json::parse(*named)["series"];
  ASSERT_EQ(series.size(), 1u);
  EXPECT_EQ(series[0]["device_uuid"], held.device_uuid());
  EXPECT_TRUE(absl::IsNotFound(feed_->History(kOperator, "", {"nobody"}).status()));
  EXPECT_TRUE(absl::IsNotFound(feed_->History(kNobody, "", {"one"}).status()));
}

TEST_F(FeedOfDaemon, AsksNoHistoryOfNoTenants) {
  const auto one = Connect("one");
  const Segment held = Acquire(*one, {.bytes = 4 * kMiB});
  ASSERT_TRUE(feed_->Snapshot(kNobody).ok());
  // The feed has its connection for the state; another one is not possible.
  for (const char* const name : {kAdminSocket, kViewSocket}) {
    std::filesystem::rename(daemon_->Socket(name), std::string(daemon_->Socket(name)) + ".aside");
  }
  const auto none = feed_->History(kNobody, "", {});
  ASSERT_TRUE(none.ok()) << none.status();
  const Json history = Json::parse(*none);
  EXPECT_TRUE(history["series"].empty());
  EXPECT_EQ(history["interval_ms"], 10'000);
  EXPECT_NEAR(history["now_ms"].get<double>(), static_cast<double>(absl::ToUnixMillis(absl::Now())),
              60'000);
  EXPECT_LT(history["since_ms"], history["now_ms"]);
  EXPECT_TRUE(absl::IsNotFound(feed_->History(kNobody, "", {"one"}).status()));
  EXPECT_FALSE(feed_->History({.uid = getuid()}, "", {}).ok());
  for (const char* const name : {kAdminSocket, kViewSocket}) {
    std::filesystem::rename(std::string(daemon_->Socket(name)) + ".aside", daemon_->Socket(name));
  }
}

TEST_F(FeedOfDaemon, MeasuresForHistoriesOnceASecond) {
  const auto one = Connect("one");
  const absl::Time begin = absl::Now();
  std::set<int64_t> measured;
  for (int i = 0; i < 30; ++i) {
    const auto text = feed_->History(kOperator, "", {});
    ASSERT_TRUE(text.ok()) << text.status();
    measured.insert(Json::parse(*text)["now_ms"].get<int64_t>());
  }
  const absl::Duration took = absl::Now() - begin;
  // And for each sample.
  EXPECT_LE(static_cast<int64_t>(measured.size()),
            2 + took / absl::Seconds(1) + 1 + took / absl::Seconds(10));
  // A tenant that is made meanwhile is found all the same.
  EXPECT_TRUE(feed_->History(kOperator, "", {"stranger"}).ok());
}

TEST_F(FeedOfDaemon, NeedsOneOfTheTwoSockets) {
  for (const char* const gone : {kAdminSocket, kViewSocket}) {
    const std::filesystem::path path = daemon_->Socket(gone), aside = path.string() + ".aside";
    std::filesystem::rename(path, aside);
    web::Feed feed({.runtime_dir = daemon_->runtime_dir()});
    EXPECT_TRUE(feed.Snapshot(kOperator).ok()) << "without " << gone;
    Reader reader(feed, kOperator);
    reader.Await("event");
    std::filesystem::rename(aside, path);
  }
}

// A viewer is no operator: no path, and no advice to use sudo.
TEST_F(FeedOfDaemon, SaysWhyThereIsNoState) {
  web::Feed nowhere({.runtime_dir = daemon_->runtime_dir() + "/nowhere"});
  const absl::Status none = nowhere.Snapshot(kNobody).status();
  EXPECT_EQ(none, absl::UnavailableError(
                      "gpumemd does not run. An administrator starts it: systemctl start gpumemd"));
}

TEST_F(FeedOfDaemon, TellsUsersWhoAreTooMany) {
  constexpr uid_t kMost = 64;
  feed_ = std::make_unique<web::Feed>(web::Feed::Options{
      .runtime_dir = daemon_->runtime_dir(), .has_account = [](uid_t) { return true; }});
  std::vector<std::unique_ptr<Reader>> readers;
  for (uid_t uid = 1000; uid < 1000 + kMost; ++uid) {
    readers.push_back(std::make_unique<Reader>(*feed_, web::Viewer{.uid = uid}));
    readers.back()->Await("snapshot");
  }
  Reader late(*feed_, kNobody);
  const Json told = late.Await("daemon").data;
  EXPECT_EQ(told["state"], "lost");
  EXPECT_THAT(told["message"].get<std::string>(), ::testing::HasSubstr("too many users"));
  EXPECT_TRUE(absl::IsResourceExhausted(feed_->Snapshot(kNobody).status()));
  Reader(*feed_, kOperator).Await("snapshot");
  readers.clear();
  // Their views are forgotten after some seconds.
  late.Await("snapshot");
  EXPECT_EQ(late.events()[1].data["state"], "ok");
}

TEST_F(FeedOfDaemon, SaysThatThereIsNoRoomForItsEvents) {
  const auto channel = grpc::CreateChannel("unix:" + std::string(daemon_->Socket(kViewSocket)),
                                           grpc::InsecureChannelCredentials());
  const auto stub = v1::Admin::NewStub(channel);
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::EventRecord>> reader;
  };
  v1::WatchEventsRequest request;
  request.set_past(true);
  request.set_follow(true);
  std::vector<std::unique_ptr<Stream>> streams;
  v1::EventRecord record;
  for (int i = 0; i < 16; ++i) {
    auto& stream = *streams.emplace_back(std::make_unique<Stream>());
    stream.reader = stub->WatchEvents(&stream.context, request);
    ASSERT_TRUE(stream.reader->Read(&record)) << i;
  }
  const auto is = [](const std::string& name) {
    return [name](const Reader::Event& event) {
      return event.name == "event" && event.data["event"] == name;
    };
  };
  Reader operators(*feed_, kOperator), nobody(*feed_, kNobody);
  for (Reader* each : {&operators, &nobody}) {
    EXPECT_THAT(each->Await(is("events-unavailable")).data["text"].get<std::string>(),
                ::testing::HasSubstr("too many readers"));
  }
  const auto one = Connect("one");
  const Segment held = Acquire(*one, {.bytes = kMiB});
  for (const auto& stream : streams) stream->context.TryCancel();
  streams.clear();
  operators.Await(is("started"));
  operators.Await(is("granted"));
  int notices = 0;
  for (const auto& event : operators.events()) notices += is("events-unavailable")(event) ? 1 : 0;
  EXPECT_EQ(notices, 1);
}

// The state that says who may see an event is read after it.
TEST_F(FeedOfDaemon, ShowsTheFirstEventsOfANewTenant) {
  Reader reader(*feed_, {.uid = getuid()});
  reader.Await("snapshot");
  reader.Await("tick", reader.size());  // the stream of events goes on
  const auto one = Connect("one", "first");
  const Segment held = Acquire(*one, {.bytes = kMiB});
  reader.Await([](const Reader::Event& event) {
    return event.name == "event" && event.data["event"] == "granted" &&
           event.data.value("tenant", "") == "one";
  });
}

// A user has thousands of uids for containers.
TEST_F(FeedOfDaemon, UidsWithoutAccountLeaveRoomForUsers) {
  constexpr uid_t kMost = 16, kOfContainers = 700'000;
  std::vector<std::unique_ptr<Reader>> readers;
  for (uid_t uid = kOfContainers; uid < kOfContainers + kMost; ++uid) {
    readers.push_back(std::make_unique<Reader>(*feed_, web::Viewer{.uid = uid}));
    readers.back()->Await("snapshot");
  }
  EXPECT_TRUE(absl::IsResourceExhausted(feed_->Snapshot(kNobody).status()));
  EXPECT_TRUE(feed_->Snapshot({.uid = 0}).ok()) << "the system has this user";
}

}  // namespace
}  // namespace gpumem
