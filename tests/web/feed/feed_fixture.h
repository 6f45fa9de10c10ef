// SPDX-License-Identifier: Apache-2.0
// A feed beside a real daemon of the host backend, and a reader of its stream.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/web/feed/feed.h"
#include "gpumem/client.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {

using Json = nlohmann::json;

// Reads a stream as a page does: parses each event, and applies changes to the last snapshot.
class Reader {
 public:
  struct Event {
    std::string name;
    Json data;
    size_t bytes = 0;
  };

  Reader(web::FeedSource& feed, const web::Viewer& viewer);

  // Returns the first event at or after `from` for which `is` is true, as soon as it has come; a
  // failure and an empty one if none comes within a minute.
  Event Await(const std::function<bool(const Event&)>& is, size_t from = 0);
  Event Await(const std::string& name, size_t from = 0);
  // Blocks until the state fulfils `is`; false after a minute.
  bool AwaitState(const std::function<bool(const Json&)>& is);
  // Returns the number of events so far.
  size_t size();
  std::vector<Event> events(size_t from = 0);
  // Returns the last snapshot with all changes since applied.
  Json state();

 private:
  void Take(const std::string& text);
  void Apply(const Json& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  Json state_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<web::Subscription> subscription_;  // last
};

// Returns the key of an object of a list, as the wire document defines it.
Json KeyOf(const std::string& list, const Json& object);

// Returns the document without the numbers and times of documents, its lists sorted by key.
Json Comparable(Json document);

// Returns `json` without members that are null, zero, false, empty or "unspecified", without
// byte_seconds, and with times in place of durations, all as of `now`, rounded to 4 s.
Json Stripped(const Json& json, absl::Time now);

class FeedTest : public ::testing::Test {
 protected:
  void Start(const std::string& config, const std::vector<std::string>& flags = {});

  // Returns what gpumemctl prints, as JSON.
  Json Gpumemctl(const std::string& arguments);
  // Returns the viewer's document.
  Json Document(const web::Viewer& viewer);
  std::unique_ptr<Client> Connect(const std::string& tenant, const std::string& name = "");

  static constexpr web::Viewer kOperator = {.uid = 0, .sees_all = true};

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<web::Feed> feed_;
};

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr web::Viewer kNobody = {.uid = 54321};  // has no processes
// A team of the tenants "one" and "two", and a tenant "stranger" that has nothing to do with it.
extern const char kTeamConfig[];

// Two devices of 64 MiB with those tenants.
class FeedOfDaemon : public FeedTest {
 protected:
  void SetUp() override {
    Start(kTeamConfig, {"--host-devices", "2", "--host-device-bytes", "64MiB"});
  }

  static Segment Acquire(Client& client, const AcquireOptions& options);
};

}  // namespace gpumem::testing
