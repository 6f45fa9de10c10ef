// SPDX-License-Identifier: Apache-2.0
#include "tests/web/feed/feed_fixture.h"

#include <array>
#include <cstdio>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace gpumem::testing {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
const char* const kLists[] = {"devices", "tenants",   "sessions",    "segments",
                              "leases",  "published", "publications"};

}  // namespace

Json KeyOf(const std::string& list, const Json& object) {
  const auto text = [&](const char* name) { return object.value(name, std::string()); };
  if (list == "devices") return object.at("device_uuid");
  if (list == "tenants") return object.at("usage").at("tenant");
  if (list == "sessions") return object.at("session_id");
  if (list == "segments") return object.at("segment_id");
  if (list == "leases") return object.at("lease_id");
  const std::string name = absl::StrCat(text("tenant"), "/", text("name"));
  if (list == "published") return absl::StrCat(name, "/", object.at("version").get<uint64_t>());
  return name;
}

Json Comparable(Json document) {
  document.erase("number");
  document.erase("time_ms");
  for (const char* list : kLists) {
    std::map<Json, Json> sorted;
    for (const Json& object : document[list]) sorted[KeyOf(list, object)] = object;
    document[list] = Json::array();
    for (auto& [key, object] : sorted) document[list].push_back(std::move(object));
  }
  return document;
}

Json Stripped(const Json& json, absl::Time now) {
  if (json.is_array()) {
    Json result = Json::array();
    for (const Json& each : json) result.push_back(Stripped(each, now));
    return result;
  }
  if (!json.is_object()) return json;
  static const std::map<std::string, std::pair<std::string, int>> kTimes = {
      {"age_ms", {"since_ms", -1}},
      {"idle_ms", {"idle_since_ms", -1}},
      {"uptime_ms", {"started_ms", -1}},
      {"expires_in_ms", {"expires_at_ms", 1}}};
  Json result = Json::object();
  for (const auto& [name, value] : json.items()) {
    if (name == "byte_seconds") continue;
    const auto time = kTimes.find(name);
    if (time != kTimes.end()) {
      if (name == "expires_in_ms" && value == 0) continue;
      result[time->second.first] =
          absl::ToUnixMillis(now) + time->second.second * value.get<int64_t>();
      continue;
    }
    Json stripped = Stripped(value, now);
    const bool is_default =
        stripped.is_null() || stripped == 0 || stripped == false || stripped == "unspecified" ||
        (stripped.is_string() && stripped.get_ref<const std::string&>().empty()) ||
        (stripped.is_structured() && stripped.empty());
    if (!is_default) result[name] = std::move(stripped);
  }
  return result;
}

Reader::Reader(web::FeedSource& feed, const web::Viewer& viewer) {
  subscription_ = feed.Subscribe(viewer, [this](const web::Message& text) { Take(*text); });
}

void Reader::Take(const std::string& text) {
  absl::MutexLock lock(&mutex_);
  // Parsed strictly: an event is two lines and an empty one.
  ASSERT_TRUE(absl::EndsWith(text, "\n\n")) << text;
  const std::vector<std::string> parts = absl::StrSplit(text.substr(0, text.size() - 2), "\n\n");
  for (const std::string& part : parts) {
    const std::vector<std::string> lines = absl::StrSplit(part, '\n');
    ASSERT_EQ(lines.size(), 2u) << part;
    ASSERT_TRUE(absl::StartsWith(lines[0], "event: ")) << part;
    ASSERT_TRUE(absl::StartsWith(lines[1], "data: ")) << part;
    ASSERT_FALSE(absl::StrContains(part, "\r"));
    Event event{.name = lines[0].substr(7),
                .data = Json::parse(lines[1].substr(6), nullptr, /*allow_exceptions=*/false),
                .bytes = part.size()};
    ASSERT_FALSE(event.data.is_discarded()) << part;
    static const std::set<std::string> kNames = {"snapshot", "change", "tick", "event", "daemon"};
    EXPECT_TRUE(kNames.contains(event.name)) << part;
    if (event.name == "snapshot") state_ = event.data;
    if (event.name == "change") Apply(event.data);
    events_.push_back(std::move(event));
  }
}

void Reader::Apply(const Json& change) {
  EXPECT_EQ(change.at("number"), state_.at("number").get<uint64_t>() + 1);
  for (const char* whole : {"number", "time_ms", "status", "waiting"}) {
    if (change.contains(whole)) state_[whole] = change[whole];
  }
  for (const char* list : kLists) {
    const Json part = change.value(list, Json::object());
    std::map<Json, Json> objects;
    for (const Json& object : state_[list]) objects[KeyOf(list, object)] = object;
    for (const Json& object : part.value("set", Json::array())) {
      objects[KeyOf(list, object)] = object;
    }
    for (const Json& key : part.value("gone", Json::array())) EXPECT_EQ(objects.erase(key), 1u);
    state_[list] = Json::array();
    for (auto& [key, object] : objects) state_[list].push_back(std::move(object));
  }
}

Reader::Event Reader::Await(const std::function<bool(const Event&)>& is, size_t from) {
  absl::MutexLock lock(&mutex_);
  size_t found = from;
  const auto has_come = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (; found < events_.size(); ++found) {
      if (is(events_[found])) return true;
    }
    return false;
  };
  if (mutex_.AwaitWithTimeout(absl::Condition(&has_come), kLong)) return events_[found];
  ADD_FAILURE() << "no such event among " << events_.size();
  return {};
}

Reader::Event Reader::Await(const std::string& name, size_t from) {
  return Await([&](const Event& event) { return event.name == name; }, from);
}

bool Reader::AwaitState(const std::function<bool(const Json&)>& is) {
  absl::MutexLock lock(&mutex_);
  const auto has_come = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return state_.is_object() && is(state_);
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&has_come), kLong);
}

size_t Reader::size() {
  absl::MutexLock lock(&mutex_);
  return events_.size();
}

std::vector<Reader::Event> Reader::events(size_t from) {
  absl::MutexLock lock(&mutex_);
  return {events_.begin() + static_cast<ptrdiff_t>(from), events_.end()};
}

Json Reader::state() {
  absl::MutexLock lock(&mutex_);
  return state_;
}

void FeedTest::Start(const std::string& config, const std::vector<std::string>& flags) {
  auto daemon = DaemonProcess::Start({.config = config, .flags = flags});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  daemon_ = *std::move(daemon);
  feed_ = std::make_unique<web::Feed>(
      web::Feed::Options{.runtime_dir = daemon_->runtime_dir(), .node = "node-1"});
}

Json FeedTest::Gpumemctl(const std::string& arguments) {
  const std::string command = absl::StrCat(ProgramPath("gpumemctl"), " --runtime-dir ",
                                           daemon_->runtime_dir(), " -o json ", arguments);
  FILE* const pipe = popen(command.c_str(), "re");
  std::string text;
  std::array<char, 4096> part;
  while (const size_t size = fread(part.data(), 1, part.size(), pipe)) {
    text.append(part.data(), size);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Json FeedTest::Document(const web::Viewer& viewer) {
  const auto text = feed_->Snapshot(viewer);
  EXPECT_TRUE(text.ok()) << text.status();
  if (!text.ok()) return Json::object();
  return Json::parse(**text, nullptr, /*allow_exceptions=*/false);
}

const char kTeamConfig[] = R"(
[[tenant]]
name = "team"
[[tenant]]
name = "one"
parent = "team"
limit = "32MiB"
guarantee = "8MiB"
[[tenant]]
name = "two"
parent = "team"
limit = "0"
[[tenant]]
name = "stranger"
[[rule]]
tenant = "one"
default = true
[[rule]]
tenant = "two"
default = true
[[rule]]
tenant = "stranger"
default = true
)";

Segment FeedOfDaemon::Acquire(Client& client, const AcquireOptions& options) {
  auto segment = client.Acquire(options);
  EXPECT_TRUE(segment.ok()) << segment.status();
  return *std::move(segment);
}

std::unique_ptr<Client> FeedTest::Connect(const std::string& tenant, const std::string& name) {
  auto client = daemon_->Connect(tenant, name);
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

}  // namespace gpumem::testing
