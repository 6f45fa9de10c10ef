// SPDX-License-Identifier: Apache-2.0
// gpumemd's metrics for Prometheus, and access to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/http_get.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::HttpGet;
using testing::KeptDaemon;
using ::testing::Not;

constexpr char kDevice[] = "HOST-00000000-0000-0000-0000-000000000000";

// Returns the address of metrics in a daemon's log; empty if it serves none.
std::string UrlIn(const std::string& log) {
  const std::string words = "metrics: ";
  const size_t at = log.rfind(words);
  if (at == std::string::npos) return "";
  return log.substr(at + words.size(), log.find('\n', at) - at - words.size());
}

// A page, by series: {"gpumem_sessions{tenant=\"a\"}", 1}.
std::map<std::string, double> SeriesOf(const std::string& page) {
  std::map<std::string, double> series;
  for (absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (line[0] == '#' || !absl::SimpleAtod(line.substr(space + 1), &value)) continue;
    series[std::string(line.substr(0, space))] = value;
  }
  return series;
}

class Metrics : public ::testing::Test {
 protected:
  void Start(const std::string& metrics, const std::string& more = "") {
    auto daemon = DaemonProcess::Start(
        {.config = absl::StrCat("[daemon]\nbackend = \"host\"\n[metrics]\n", metrics, "\n", more)});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    url_ = UrlIn(daemon_->Log());
  }
  std::string Page() {
    auto answer = HttpGet(url_);
    EXPECT_OK(answer);
    EXPECT_EQ(answer.ok() ? answer->code : 0, 200);
    return answer.ok() ? answer->body : "";
  }
  double Value(const std::string& series) {
    const auto all = SeriesOf(Page());
    const auto found = all.find(series);
    return found == all.end() ? -1 : found->second;
  }
  void ExpectSoon(const std::string& series, double value) {
    EXPECT_TRUE(Eventually([&] { return Value(series) == value; }))
        << series << " is " << Value(series) << ", not " << value;
  }
  static std::string OnDevice(const char* name, const char* tenant, const char* more = "") {
    return absl::StrCat(name, "{tenant=\"", tenant, "\",device=\"", kDevice, "\"", more, "}");
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::string url_;
};

constexpr char kTenants[] =
    "[[tenant]]\nname = \"team\"\nlimit = \"64MiB\"\nguarantee = \"32MiB\"\n"
    "[[tenant]]\nname = \"a\"\nparent = \"team\"\nlimit = \"16MiB\"\n"
    "[[rule]]\ntenant = \"a\"\ndefault = true\n";

TEST_F(Metrics, AreOffByDefault) {
  Start("");
  EXPECT_EQ(url_, "");
}

TEST_F(Metrics, CountWhatClientsDid) {
  Start("listen = \"127.0.0.1:0\"", kTenants);
  EXPECT_THAT(url_, ::testing::MatchesRegex("http://127\\.0\\.0\\.1:[1-9][0-9]*/metrics"));
  auto client = daemon_->Connect("a");
  ASSERT_OK(client);
  auto segments = (*client)->AcquireMany({.bytes = 4 * kMiB}, 3);
  ASSERT_OK(segments);
  ASSERT_OK((*client)->Publish("weights", absl::MakeSpan(&segments->at(0), 1), PublishOptions{}));
  EXPECT_OK(segments->at(2).Release());
  EXPECT_STATUS((*client)->Acquire({.bytes = 32 * kMiB}), kResourceExhausted, "");
  EXPECT_STATUS((*client)->Acquire({.bytes = 32 * kMiB}), kResourceExhausted, "");

  ExpectSoon(OnDevice("gpumem_charged_bytes", "a", ",state=\"leased\""), 8 * kMiB);
  for (const char* tenant : {"a", "team"}) {
    ExpectSoon(OnDevice("gpumem_charged_bytes", tenant, ",state=\"leased\""), 8 * kMiB);
    ExpectSoon(OnDevice("gpumem_charged_bytes", tenant, ",state=\"retained\""), 4 * kMiB);
    ExpectSoon(absl::StrCat("gpumem_sessions{tenant=\"", tenant, "\"}"), 1);
    ExpectSoon(absl::StrCat("gpumem_segments{tenant=\"", tenant, "\"}"), 3);
    ExpectSoon(absl::StrCat("gpumem_publications{tenant=\"", tenant, "\"}"), 1);
  }
  ExpectSoon(OnDevice("gpumem_quota_limit_bytes", "a"), 16 * kMiB);
  ExpectSoon(OnDevice("gpumem_quota_limit_bytes", "team"), 64 * kMiB);
  ExpectSoon(OnDevice("gpumem_quota_guarantee_bytes", "team"), 32 * kMiB);
  ExpectSoon("gpumem_tenant_info{tenant=\"a\",parent=\"team\"}", 1);
  ExpectSoon("gpumem_denials_total{tenant=\"a\",cause=\"device_limit\"}", 2);
  ExpectSoon("gpumem_denials_total{tenant=\"team\",cause=\"device_limit\"}", 0);
  ExpectSoon(absl::StrCat("gpumem_device_charged_bytes{device=\"", kDevice, "\"}"), 12 * kMiB);
  // One request, for three segments. The denied are not counted.
  ExpectSoon("gpumem_acquire_seconds_count{kind=\"vmm\",waited=\"false\"}", 1);
  ExpectSoon("gpumem_acquire_seconds_bucket{kind=\"vmm\",waited=\"false\",le=\"+Inf\"}", 1);
  const double seconds = Value("gpumem_acquire_seconds_sum{kind=\"vmm\",waited=\"false\"}");
  EXPECT_GT(seconds, 0);
  EXPECT_LT(seconds, 60);
  ExpectSoon("gpumem_draining", 0);
  EXPECT_GT(Value("process_resident_memory_bytes"), kMiB);
  EXPECT_GT(Value("process_open_fds"), 10);
}

TEST_F(Metrics, WaitingRequestsAreShownAndThenCounted) {
  Start("listen = \"127.0.0.1:0\"", kTenants);
  auto holder = daemon_->Connect("a");
  ASSERT_OK(holder);
  auto all = (*holder)->Acquire({.bytes = 16 * kMiB});
  ASSERT_OK(all);
  std::thread waiter([&] {
    EXPECT_OK((*holder)->Acquire({.bytes = 10 * kMiB, .wait = absl::InfiniteDuration()}));
  });
  ExpectSoon(OnDevice("gpumem_waiting_requests", "a"), 1);
  ExpectSoon(OnDevice("gpumem_waiting_requests", "team"), 1);
  ExpectSoon(OnDevice("gpumem_waiting_bytes", "a"), 10 * kMiB);
  EXPECT_OK(all->Release());
  waiter.join();
  ExpectSoon(OnDevice("gpumem_waiting_requests", "a"), 0);
  ExpectSoon("gpumem_acquire_seconds_count{kind=\"vmm\",waited=\"true\"}", 1);
}

TEST_F(Metrics, MemoryOfKilledHoldersIsCountedAsReclaimed) {
  Start("listen = \"127.0.0.1:0\"", kTenants);
  const std::string reclaimed =
      absl::StrCat("gpumem_reclaimed_bytes_total{device=\"", kDevice, "\"}");
  ExpectSoon(reclaimed, 0);
  for (int death = 1; death <= 2; ++death) {
    Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir()});
    ASSERT_EQ(testing::Hear(holder.channel()), "holding");
    holder.Signal(SIGKILL);
    holder.Wait();
    ExpectSoon(reclaimed, death * 4.0 * kMiB);
  }
  ExpectSoon(OnDevice("gpumem_charged_bytes", "a", ",state=\"leased\""), 0);
}

TEST_F(Metrics, TenantsBeyondTheBoundAreOne) {
  Start("listen = \"127.0.0.1:0\"\nmax_tenants = 1", kTenants);
  auto client = daemon_->Connect("a");
  ASSERT_OK(client);
  auto segment = (*client)->Acquire({.bytes = 4 * kMiB});
  ASSERT_OK(segment);
  ExpectSoon(OnDevice("gpumem_charged_bytes", "team", ",state=\"leased\""), 4 * kMiB);
  ExpectSoon(OnDevice("gpumem_charged_bytes", "(other)", ",state=\"leased\""), 4 * kMiB);
  ExpectSoon("gpumem_sessions{tenant=\"(other)\"}", 1);
  EXPECT_THAT(Page(), Not(HasSubstr("tenant=\"a\"")));
}

TEST_F(Metrics, AreServedOnAUnixSocketWithItsMode) {
  char dir[] = "/tmp/gpumem-test-XXXXXX";
  ASSERT_NE(mkdtemp(dir), nullptr);
  const std::string path = absl::StrCat(dir, "/m.sock");
  Start(absl::StrCat("listen = \"unix:", path, "\"\nsocket_mode = \"0600\""));
  EXPECT_EQ(url_, "unix:" + path);
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(Value("gpumem_build_info{version=\"0.1.0\",backend=\"host\"}"), 1);

  // The socket of a killed daemon is replaced; a daemon that ends removes it.
  daemon_->child().Signal(SIGKILL);
  daemon_->child().Wait();
  ASSERT_OK(daemon_->RunAgain());
  EXPECT_THAT(Page(), HasSubstr("gpumem_build_info"));
  daemon_->child().Signal(SIGTERM);
  EXPECT_EQ(daemon_->child().Wait(), 0);
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  rmdir(dir);
}

TEST_F(Metrics, ADaemonThatCannotServeThemServesItsTenants) {
  Start("listen = \"127.0.0.1:0\"", kTenants);
  const std::string taken(absl::StripSuffix(absl::StripPrefix(url_, "http://"), "/metrics"));
  const std::unique_ptr<DaemonProcess> first = std::move(daemon_);
  Start(absl::StrCat("listen = \"", taken, "\""), kTenants);
  EXPECT_EQ(url_, "");
  EXPECT_THAT(daemon_->Log(),
              HasSubstr("Metrics are not served: cannot listen on 127.0.0.1, port "));
  EXPECT_OK(daemon_->Connect("a"));
}

TEST_F(Metrics, AreServedOverIpv6) {
  Start("listen = \"[::1]:0\"");
  if (url_.empty()) {  // a machine without it
    EXPECT_THAT(daemon_->Log(), HasSubstr("Metrics are not served: cannot listen on ::1"));
  } else {
    EXPECT_THAT(url_, ::testing::MatchesRegex("http://\\[::1\\]:[1-9][0-9]*/metrics"));
  }
}

// 18 for each tenant, 10 more for each of its devices, as docs/reference/metrics.md promises.
TEST_F(Metrics, TheNumberOfSeriesIsAsDocumented) {
  Start("listen = \"127.0.0.1:0\"", kTenants);
  auto client = daemon_->Connect("a");
  ASSERT_OK(client);
  auto on_host = (*client)->Acquire({.bytes = 2 * kMiB});
  auto pinned = (*client)->Acquire({.bytes = 2 * kMiB, .kind = Kind::kPinned});
  ASSERT_OK(on_host);
  ASSERT_OK(pinned);
  int of_a = 0, of_nobody = 0;
  ASSERT_TRUE(Eventually([&] {
    of_a = of_nobody = 0;
    for (const auto& [series, value] : SeriesOf(Page())) {
      of_a += absl::StrContains(series, "{tenant=\"a\"") ? 1 : 0;
      of_nobody += absl::StrContains(series, "tenant=\"") ? 0 : 1;
    }
    return of_a == 18 + 10 * 2;
  })) << of_a;
  EXPECT_LE(of_nobody, 380);
}

TEST_F(Metrics, AReloadSaysThatTheyNeedARestart) {
  const std::string config =
      absl::StrCat("[daemon]\nbackend = \"host\"\n", kTenants, "[metrics]\n");
  Start("", kTenants);
  daemon_->Reconfigure(config + "listen = \"127.0.0.1:0\"\n");
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(daemon_->Log(), "changes what only a restart can apply"); }));
  EXPECT_EQ(UrlIn(daemon_->Log()), "");
}

TEST(MetricsOverACrash, RestartsAreCountedAndWhatIsHeldGoesOn) {
  auto daemon =
      KeptDaemon::Start({.config = absl::StrCat("[metrics]\nlisten = \"127.0.0.1:0\"\n", kTenants),
                         .program = "gpumemd"});
  ASSERT_OK(daemon);
  auto client = Client::Connect({.runtime_dir = (*daemon)->runtime_dir(), .tenant = "a"});
  ASSERT_OK(client);
  auto segment = (*client)->Acquire({.bytes = 4 * kMiB});
  ASSERT_OK(segment);
  for (int crash = 0; crash < 3; ++crash) {
    auto answer = HttpGet(UrlIn((*daemon)->Log()));
    ASSERT_OK(answer);
    auto series = SeriesOf(answer->body);
    EXPECT_EQ(series["gpumem_restarts_total"], crash);
    EXPECT_EQ(series[absl::StrCat("gpumem_charged_bytes{tenant=\"a\",device=\"", kDevice,
                                  "\",state=\"leased\"}")],
              4 * kMiB);
    ASSERT_OK((*daemon)->Kill());
  }
}

// --- docs/reference/metrics.md -----------------------------------------------------------------

// A metric as the documentation or the daemon knows it.
struct Known {
  std::string type;
  std::set<std::string> labels;
  bool operator==(const Known&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Known& known) {
  out << known.type;
  for (const std::string& label : known.labels) out << " " << label;
  return out;
}

// Parses the rows "| `name` | type | unit | `label`, `label` | question |".
std::map<std::string, Known> Documented() {
  std::map<std::string, Known> all;
  std::ifstream file("docs/reference/metrics.md");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    if (!absl::StartsWith(line, "| `") || cells.size() < 7) continue;
    Known known{.type = std::string(absl::StripAsciiWhitespace(cells[2]))};
    const std::vector<std::string> quoted = absl::StrSplit(cells[4], '`');
    for (size_t i = 1; i < quoted.size(); i += 2) known.labels.insert(quoted[i]);
    const std::vector<std::string> name = absl::StrSplit(cells[1], '`');
    EXPECT_FALSE(absl::StripAsciiWhitespace(cells[3]).empty()) << line;
    EXPECT_GT(absl::StripAsciiWhitespace(cells[5]).size(), 5) << line;
    EXPECT_TRUE(all.emplace(name.at(1), known).second) << line;
  }
  return all;
}

std::map<std::string, Known> Served(const std::string& page) {
  std::map<std::string, Known> all;
  std::string name;
  for (absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "# TYPE ")) {
      const std::pair<std::string, std::string> words = absl::StrSplit(line, ' ');
      name = words.first;
      all[name].type = words.second;
      continue;
    }
    const size_t brace = line.find('{');
    if (line[0] == '#' || brace == absl::string_view::npos) continue;
    // Labels alternate with quoted values: {a="1",b="2"}.
    const std::vector<std::string> parts = absl::StrSplit(line.substr(brace + 1), '"');
    for (size_t i = 0; i + 1 < parts.size(); i += 2) {
      const std::string label(absl::StripSuffix(absl::StripPrefix(parts[i], ","), "="));
      if (label != "le") all[name].labels.insert(label);
    }
  }
  return all;
}

TEST_F(Metrics, TheDocumentationListsExactlyWhatIsServed) {
  Start("listen = \"127.0.0.1:0\"", kTenants);
  auto client = daemon_->Connect("a");
  ASSERT_OK(client);
  auto segment = (*client)->Acquire({.bytes = 4 * kMiB});
  ASSERT_OK(segment);
  ExpectSoon(OnDevice("gpumem_charged_bytes", "a", ",state=\"leased\""), 4 * kMiB);
  const auto served = Served(Page());
  EXPECT_GT(served.size(), 20);
  EXPECT_THAT(Documented(), ::testing::ContainerEq(served));

  // So it does with the causes of denials.
  std::ifstream file("docs/reference/metrics.md");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  for (const auto& [series, value] : SeriesOf(Page())) {
    if (!absl::StartsWith(series, "gpumem_denials_total{tenant=\"a\"")) continue;
    const std::vector<std::string> parts = absl::StrSplit(series, '"');
    EXPECT_THAT(text, HasSubstr(absl::StrCat("`", parts.at(3), "`")));
  }
}

int RunRole(const std::string& runtime_dir) {
  auto client = Client::Connect({.runtime_dir = runtime_dir, .tenant = "a"});
  if (!client.ok()) return 1;
  auto segment = (*client)->Acquire({.bytes = 4 * kMiB});
  if (!segment.ok()) return 2;
  testing::Say(testing::kParentChannel, "holding");
  testing::Hear(testing::kParentChannel);
  return 0;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--role") return gpumem::RunRole(argv[3]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
