// SPDX-License-Identifier: Apache-2.0
// The files deployed for Prometheus and Grafana, against the real Prometheus: it scrapes a real
// daemon that has work to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "gpumem/suspend.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/http_get.h"

namespace gpumem {
namespace {

using nlohmann::json;
using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::HttpGet;
using ::testing::IsEmpty;

constexpr char kAlerts[] = "deploy/prometheus/gpumem-alerts.yml";

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class PrometheusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/gpumem-test-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
    for (const char* program : {"prometheus", "promtool"}) {
      ASSERT_TRUE(std::filesystem::exists(absl::StrCat("/usr/bin/", program)))
          << "Debian's package prometheus is missing: ./run test installs it";
    }
  }
  void TearDown() override {
    prometheus_ = Child();
    std::filesystem::remove_all(dir_);
  }

  // Runs promtool on its input; returns its exit code and its output.
  std::pair<int, std::string> Promtool(const std::string& args, const std::string& input = "") {
    std::ofstream(dir_ + "/input") << input;
    Child child({"/bin/sh", "-c",
                 absl::StrCat("exec /usr/bin/promtool ", args, " <", dir_, "/input >", dir_,
                              "/output 2>&1")});
    const int code = child.Wait();
    return {code, ReadFile(dir_ + "/output")};
  }

  void StartDaemon() {
    auto daemon = DaemonProcess::Start({.config = R"(
[daemon]
backend = "host"
[metrics]
listen = "127.0.0.1:0"
[tier]
capacity = "64MiB"
[[tenant]]
name = "team"
limit = "256MiB"
[[tenant]]
name = "train"
parent = "team"
guarantee = "64MiB"
limit = "128MiB"
[[tenant]]
name = "serve"
limit = "64MiB"
[[rule]]
tenant = "train"
default = true
[[rule]]
tenant = "serve"
default = true
)"});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    const std::string log = daemon_->Log();
    const size_t at = log.find("http://");
    ASSERT_NE(at, std::string::npos) << log;
    url_ = log.substr(at, log.find('\n', at) - at);
  }

  void StartPrometheus() {
    const std::string target = absl::StrReplaceAll(url_, {{"http://", ""}, {"/metrics", ""}});
    std::ofstream(dir_ + "/prometheus.yml")
        << "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"
        << "rule_files: [" << std::filesystem::absolute(kAlerts).string() << "]\n"
        << "scrape_configs:\n- job_name: gpumem\n  static_configs: [{targets: [\"" << target
        << "\"]}]\n";
    const std::string log = dir_ + "/log";
    prometheus_ = Child({"/bin/sh", "-c",
                         absl::StrCat("exec /usr/bin/prometheus --config.file=", dir_,
                                      "/prometheus.yml --storage.tsdb.path=", dir_,
                                      "/data --web.listen-address=127.0.0.1:0 >", log, " 2>&1")});
    const std::string said = "\"Listening on\" address=";
    ASSERT_TRUE(Eventually([&] {
      return absl::StrContains(ReadFile(log), said) &&
             absl::StrContains(ReadFile(log), "ready to receive web requests");
    })) << ReadFile(log);
    const std::string text = ReadFile(log);
    const size_t at = text.find(said) + said.size();
    api_ = absl::StrCat("http://", text.substr(at, text.find_first_of(" \n", at) - at), "/api/v1/");
  }
  // Returns Prometheus's answer; an empty object if there is none.
  json Ask(const std::string& what) {
    auto answer = HttpGet(absl::StrCat(api_, what));
    EXPECT_OK(answer);
    if (!answer.ok()) return json::object();
    json parsed = json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
    EXPECT_EQ(parsed.value("status", ""), "success") << what << ": " << answer->body;
    return parsed.value("data", json::object());
  }
  // How many of a query's results are numbers.
  int Results(const std::string& query) {
    int count = 0;
    const json data = Ask(absl::StrCat("query?query=", testing::UrlEncode(query)));
    for (const json& result : data.value("result", json::array())) {
      count += std::isfinite(std::stod(result.at("value").at(1).get<std::string>())) ? 1 : 0;
    }
    return count;
  }

  std::string dir_, url_, api_;
  std::unique_ptr<DaemonProcess> daemon_;
  Child prometheus_;
};

// Produces some of each activity of a node, over and over until it is destroyed.
class Load {
 public:
  explicit Load(const DaemonProcess& daemon) : daemon_(daemon) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Load() {
    stop_ = true;
    thread_.join();
  }

 private:
  void Run() {
    auto train = daemon_.Connect("train");
    auto serve = daemon_.Connect("serve");
    ASSERT_OK(train);
    ASSERT_OK(serve);
    auto weights = (*train)->AcquireMany({.bytes = 8 * kMiB}, 2);
    ASSERT_OK(weights);
    ASSERT_OK((*train)->Publish("weights", *weights, PublishOptions{}));
    auto idle = (*serve)->Acquire({.bytes = 2 * kMiB});
    ASSERT_OK(idle);
    while (!stop_) {
      ASSERT_OK((*serve)->Suspend({&*idle}));
      ASSERT_OK((*serve)->Resume({&*idle}));
      ASSERT_OK((*serve)->Suspend({&*idle}));
      ASSERT_OK((*train)->Acquire({.bytes = 4 * kMiB}));
      auto all = (*serve)->Acquire({.bytes = 64 * kMiB});
      ASSERT_OK(all);
      ASSERT_EQ((*serve)->Acquire({.bytes = 2 * kMiB}).status().code(),
                absl::StatusCode::kResourceExhausted);
      std::thread waiter([&] {
        EXPECT_OK((*serve)->Acquire({.bytes = 2 * kMiB, .wait = absl::InfiniteDuration()}));
      });
      std::thread resumer(
          [&] { EXPECT_OK((*serve)->Resume({&*idle}, {.wait = absl::InfiniteDuration()})); });
      EXPECT_TRUE(Eventually([&] {
        auto usage = (*serve)->GetUsage();
        return usage.ok() && usage->waiting > 1;
      }));
      EXPECT_OK(all->Release());
      waiter.join();
      resumer.join();
      // A holder that dies with its leases.
      Child holder = Child::Self({"--role", "hold", daemon_.runtime_dir()});
      ASSERT_EQ(testing::Hear(holder.channel()), "holding");
    }
  }

  const DaemonProcess& daemon_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Returns a query with Grafana's variables filled in: all values.
std::string Filled(std::string query) {
  return absl::StrReplaceAll(query, {{"$__rate_interval", "30s"},
                                     {"$__interval", "30s"},
                                     {"$job", ".+"},
                                     {"$instance", ".+"},
                                     {"$device", ".+"},
                                     {"$tenant", ".+"}});
}

struct PanelQuery {
  std::string panel;
  std::string query;
};
std::vector<PanelQuery> QueriesOf(const json& dashboard) {
  std::vector<PanelQuery> queries;
  for (const json& panel : dashboard.at("panels")) {
    if (panel.at("type") == "row") {
      EXPECT_THAT(panel.at("panels"), IsEmpty()) << "panels in folded rows are not looked at here";
      continue;
    }
    EXPECT_FALSE(panel.at("targets").empty()) << panel.at("title");
    for (const json& target : panel.at("targets")) {
      queries.push_back(
          {panel.at("title").get<std::string>(), Filled(target.at("expr").get<std::string>())});
    }
  }
  return queries;
}

TEST_F(PrometheusTest, PromtoolAcceptsThePage) {
  StartDaemon();
  auto client = daemon_->Connect("train");
  ASSERT_OK(client);
  auto segment = (*client)->Acquire({.bytes = kMiB});
  ASSERT_OK(segment);
  std::string page;
  ASSERT_TRUE(Eventually([&] {
    auto answer = HttpGet(url_);
    page = answer.ok() ? answer->body : "";
    return absl::StrContains(page, "gpumem_charged_bytes{");
  }));
  EXPECT_EQ(Promtool("check metrics", page), std::make_pair(0, std::string()));
  // It would.
  EXPECT_NE(Promtool("check metrics", page + "gpumem_more 1\ngpumem_more 1\n").first, 0);
}

TEST_F(PrometheusTest, EveryAlertHasATestInWhichItFires) {
  const auto [checked, complaint] = Promtool(absl::StrCat("check rules ", kAlerts));
  EXPECT_EQ(checked, 0) << complaint;
  const auto [tested, failures] = Promtool("test rules deploy/prometheus/gpumem-alerts_test.yml");
  EXPECT_EQ(tested, 0) << failures;
  // Each has a test that it fires in.
  const std::string tests = ReadFile("deploy/prometheus/gpumem-alerts_test.yml");
  std::ifstream rules(kAlerts);
  int alerts = 0;
  for (std::string line; std::getline(rules, line);) {
    const size_t at = line.find("- alert: ");
    if (at == std::string::npos) continue;
    ++alerts;
    const std::string name = line.substr(at + 9);
    EXPECT_THAT(tests, HasSubstr(absl::StrCat("- alertname: ", name, "\n")));
    EXPECT_THAT(tests, HasSubstr(absl::StrCat("- name: not ", name, "\n")));
  }
  EXPECT_GE(alerts, 10);
}

TEST_F(PrometheusTest, EveryPanelOfTheDashboardShowsSomething) {
  const json dashboard = json::parse(ReadFile("deploy/grafana/gpumem.json"));
  std::vector<PanelQuery> open = QueriesOf(dashboard);
  EXPECT_GE(open.size(), 30);
  StartDaemon();
  StartPrometheus();
  {
    const Load load(*daemon_);
    Eventually(
        [&] {
          std::vector<PanelQuery> still;
          for (const PanelQuery& each : open) {
            if (Results(each.query) == 0) still.push_back(each);
          }
          open = std::move(still);
          return open.empty();
        },
        absl::Seconds(90));
    for (const PanelQuery& each : open) {
      ADD_FAILURE() << "no data in \"" << each.panel << "\": " << each.query;
    }
  }
  // The values of its variables exist, and its annotations have valid queries.
  for (const json& variable : dashboard.at("templating").at("list")) {
    if (variable.at("type") != "query") continue;
    const std::string query = variable.at("definition").get<std::string>();
    const size_t begin = query.find('(') + 1, comma = query.rfind(", ");
    const std::string label = query.substr(comma + 2, query.find(')', comma) - comma - 2);
    EXPECT_GE(
        Results(absl::StrCat("count by (", label, ") (", Filled(query.substr(begin, comma - begin)),
                             ") > 0 unless ", "vector(1)")),
        1)
        << query;
    EXPECT_EQ(label, variable.at("name").get<std::string>());
  }
  for (const json& mark : dashboard.at("annotations").at("list")) {
    Results(Filled(mark.at("expr").get<std::string>()));
  }
  // No query of a metric that is not there would have told of itself above; a rule would not.
  const json rules = Ask("rules");
  int healthy = 0;
  for (const json& group : rules.at("groups")) {
    for (const json& rule : group.at("rules")) {
      EXPECT_EQ(rule.at("health"), "ok") << rule.dump(2);
      ++healthy;
    }
  }
  EXPECT_GE(healthy, 10);
}

// All metrics in queries of the documentation and of alerts still exist.
TEST_F(PrometheusTest, EverySeriesOfAlertsDocsAndDashboardIsServed) {
  StartDaemon();
  auto answer = HttpGet(url_);
  ASSERT_OK(answer);
  for (const char* file : {kAlerts, "docs/reference/metrics.md", "deploy/grafana/gpumem.json"}) {
    const std::string text = ReadFile(file);
    int found = 0;
    for (size_t at = 0; (at = text.find("gpumem_", at)) != std::string::npos;) {
      const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at);
      std::string name = text.substr(at, end - at);
      at = end;
      ++found;
      for (const char* suffix : {"_bucket", "_count", "_sum"}) {
        if (absl::EndsWith(name, suffix)) name.resize(name.size() - std::string(suffix).size());
      }
      EXPECT_THAT(answer->body, HasSubstr(absl::StrCat("# TYPE ", name, " "))) << file;
    }
    EXPECT_GT(found, 10) << file;
  }
}

int RunRole(const std::string& runtime_dir) {
  auto client = Client::Connect({.runtime_dir = runtime_dir, .tenant = "train"});
  if (!client.ok()) return 1;
  auto segment = (*client)->Acquire({.bytes = 2 * kMiB});
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
