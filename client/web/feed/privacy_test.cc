// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/privacy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/text/json.h"
#include "client/cli/views/holdings.h"
#include "client/web/feed/document.h"
#include "client/web/feed/events.h"
#include "client/web/feed/history.h"
#include "client/web/feed/testing/planted_state.h"
#include "client/web/feed/testing/random_messages.h"
#include "client/web/feed/views.h"

namespace gpumem::web {
namespace {

using cli::Json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string TextOf(const cli::Snapshot& state) {
  StableTimes times;
  times.Begin(kNow);
  return DocumentText(MakeDocument(state, "own", times), 1, kNow);
}

int CountOf(const std::map<int, int>& counts, const std::set<int>& tenants) {
  int sum = 0;
  for (const auto& [tenant, count] : counts) sum += tenants.contains(tenant) ? count : 0;
  return sum;
}

// Removes the pseudo tenant, and checks its sums.
void TakeOthers(const PlantedState& planted, const std::set<int>& visible, Json* document) {
  std::map<std::string, uint64_t> sums;
  for (const auto& [where, bytes] : planted.leased) {
    if (!visible.contains(where.first)) sums[where.second] += bytes;
  }
  Json tenants = Json::array();
  std::map<std::string, uint64_t> told;
  for (const Json& tenant : (*document)["tenants"]) {
    if (tenant["usage"]["tenant"] != kOthers) {
      tenants.push_back(tenant);
      continue;
    }
    EXPECT_EQ(tenant.size(), 1u) << tenant;
    for (const Json& usage : tenant["usage"]["devices"]) {
      EXPECT_EQ(usage["leased_bytes"], usage["charged_bytes"]);
      told[usage["device_uuid"]] = usage["leased_bytes"];
    }
  }
  EXPECT_EQ(told, sums);
  (*document)["tenants"] = tenants;
}

TEST(Privacy, NothingOfOtherTenantsIsInTheText) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    PlantedState planted(random);
    const Privacy privacy(planted.state());
    for (const uid_t uid : planted.uids()) {
      for (const bool teams : {true, false}) {
        const std::set<int> visible = planted.Visible(uid, teams);
        const VisibleTenants tenants = privacy.Visible(teams ? Sees::kOwn : Sees::kNone, uid);
        std::set<std::string> names;
        for (const int tenant : visible) names.insert(PlantedState::NameOf(tenant));
        ASSERT_THAT(tenants.names(), ::testing::UnorderedElementsAreArray(names));
        const cli::Snapshot filtered = privacy.Filtered(tenants);
        for (const v1::Device& device : filtered.status.devices()) {
          // Nothing is missing, and nothing counted twice.
          ASSERT_EQ(cli::HoldingsOn(device, filtered.tenants).all.held(), device.charged_bytes());
        }
        Json document = Json::parse(TextOf(filtered));
        TakeOthers(planted, visible, &document);
        ASSERT_THAT(planted.Foreign(document.dump(), visible), IsEmpty()) << document.dump(1);
        // All of the visible ones is there.
        ASSERT_EQ(document["tenants"].size(), visible.size());
        ASSERT_EQ(document["sessions"].size(), CountOf(planted.sessions, visible));
        ASSERT_EQ(document["segments"].size(), CountOf(planted.segments, visible));
        ASSERT_EQ(document["publications"].size(), CountOf(planted.publications, visible));
        ASSERT_EQ(document["published"].size(), CountOf(planted.publications, visible));
        ASSERT_EQ(document["waiting"].size(), planted.state().waiting.waiting_size());
      }
    }
  }
}

TEST(Privacy, OfAViewerWhoSeesAllNothingIsLost) {
  std::mt19937 random(4);
  for (int i = 0; i < 50; ++i) {
    PlantedState planted(random);
    Views views;
    views.Set(planted.state(), kNow);
    const absl::StatusOr<View*> view = views.Of({.uid = 7, .sees_all = true});
    ASSERT_TRUE(view.ok());
    Json document = Json::parse(*(*view)->Json());
    EXPECT_EQ(document["viewer"]["sees"], "all");
    EXPECT_EQ(document["leases"].size(), planted.state().holders.leases_size());
    EXPECT_EQ(document["tenants"].size(), planted.state().tenants.tenants_size());
    EXPECT_THAT(planted.Foreign(document.dump(), {}), Not(IsEmpty()));
  }
}

TEST(Privacy, OperatorsFactsAreForOperators) {
  cli::Snapshot state;
  state.status.set_holders_shown(v1::HOLDERS_SHOWN_ALL);
  state.status.set_config_file("SECRET");
  state.status.add_notices("SECRET");
  state.status.add_foreign_processes()->set_command("SECRET");
  state.sessions.add_sessions()->set_session_id(1);
  Views views;
  views.Set(state, kNow);
  EXPECT_THAT(*(*views.Of({.sees_all = true}))->Json(), HasSubstr("SECRET"));
  EXPECT_THAT(*(*views.Of({.uid = 5}))->Json(), Not(HasSubstr("SECRET")));
  EXPECT_EQ(Json::parse(*(*views.Of({.uid = 5}))->Json())["sessions"].size(), 1u);
}

TEST(Privacy, LoopsOfParentsDoNotHang) {
  cli::Snapshot state;
  for (const auto& [name, parent] : {std::pair("a", "b"), std::pair("b", "a")}) {
    v1::TenantInfo& tenant = *state.tenants.add_tenants();
    tenant.mutable_usage()->set_tenant(name);
    tenant.mutable_quota()->set_parent(parent);
    tenant.mutable_made()->set_user(5);
  }
  EXPECT_EQ(Privacy(state).Visible(Sees::kOwn, 5).names().size(), 2u);
}

TEST(Privacy, NothingOfOtherTenantsIsInEvents) {
  std::mt19937 random(5);
  int shown = 0, whole = 0;
  for (int i = 0; i < 200; ++i) {
    PlantedState planted(random);
    const Privacy privacy(planted.state());
    for (int j = 0; j < 30; ++j) {
      const v1::EventRecord record = planted.Event(random);
      for (const uid_t uid : planted.uids()) {
        const VisibleTenants tenants = privacy.Visible(Sees::kNone, uid);
        const std::optional<v1::EventRecord> filtered = FilteredEvent(record, &tenants);
        if (!filtered) continue;
        ++shown;
        const std::string text = EventText(*filtered);
        ASSERT_FALSE(Json::parse(text, nullptr, /*allow_exceptions=*/false).is_discarded()) << text;
        ASSERT_THAT(planted.Foreign(text, planted.Visible(uid, /*teams=*/false)), IsEmpty())
            << text;
        if (filtered->text() == record.text()) ++whole;
      }
    }
  }
  EXPECT_GT(shown, 1000);
  EXPECT_GT(whole, 10);
}

// A team of user 5 that holds 32 bytes itself, a tenant of another user under it with 100, and
// under that one a tenant of user 5 with 8.
cli::Snapshot TeamOfTwoUsers() {
  cli::Snapshot state;
  v1::Device& device = *state.status.add_devices();
  device.set_device_uuid("GPU-0");
  device.set_capacity_bytes(1000);
  device.set_charged_bytes(140);
  const auto add = [&](const char* name, const char* parent, uid_t user, uint64_t bytes) {
    v1::TenantInfo& tenant = *state.tenants.add_tenants();
    tenant.mutable_made()->set_parent(parent);
    tenant.mutable_made()->set_user(user);
    v1::Usage& usage = *tenant.mutable_usage();
    usage.set_tenant(name);
    usage.set_charged_bytes(bytes);
    usage.set_segments(static_cast<uint32_t>(bytes / 4));
    usage.set_waiting(9);
    v1::DeviceUsage& on_device = *usage.add_devices();
    on_device.set_device_uuid("GPU-0");
    on_device.set_leased_bytes(bytes);
    on_device.set_charged_bytes(bytes);
    on_device.set_peak_bytes(bytes);
    on_device.set_byte_seconds(bytes);
    on_device.set_limit_bytes(500);
  };
  add("team", "", 5, 140);
  add("theirs", "team", 6, 108);
  add("deep", "theirs", 5, 8);
  add("beside", "team", 5, 0);
  return state;
}

TEST(Privacy, TenantsAboveHiddenOnesShowTheirOwnPart) {
  const cli::Snapshot state = TeamOfTwoUsers();
  const Privacy privacy(state);
  const Json tenants =
      Json::parse(TextOf(privacy.Filtered(privacy.Visible(Sees::kNone, 5))))["tenants"];
  ASSERT_EQ(tenants.size(), 4u);
  EXPECT_EQ(tenants[0]["usage"].dump(),
            R"({"tenant":"team","devices":[{"device_uuid":"GPU-0","leased_bytes":32,)"
            R"("charged_bytes":32,"limit_bytes":500}],"charged_bytes":32,"segments":8})");
  EXPECT_EQ(tenants[1]["usage"]["devices"][0]["charged_bytes"], 8);
  EXPECT_EQ(tenants[1]["usage"]["devices"][0]["peak_bytes"], 8) << "nothing is under it";
  EXPECT_EQ(tenants[3]["usage"]["tenant"], kOthers);
  EXPECT_EQ(tenants[3]["usage"]["devices"][0]["charged_bytes"], 100);
  // With all of the team, nothing is left out.
  const Json team =
      Json::parse(TextOf(privacy.Filtered(privacy.Visible(Sees::kOwn, 5))))["tenants"];
  EXPECT_EQ(team[0]["usage"]["devices"][0]["peak_bytes"], 140);
}

TEST(Privacy, AmountsOfHiddenTenantsAreInNoDenialEventOrHistory) {
  cli::Snapshot state = TeamOfTwoUsers();
  v1::WaitingInfo& waiting = *state.waiting.add_waiting();
  waiting.set_tenant("team");
  v1::Denial& denial = *waiting.mutable_blocked_by();
  denial.set_cause(v1::Denial::CAUSE_DEVICE_LIMIT);
  denial.set_tenant("team");
  denial.set_used(140);
  denial.set_limit(500);
  denial.set_help("140 of 500 bytes are in use");
  v1::Denial::Holder& holder = *denial.add_holders();
  holder.set_tenant("team");
  holder.set_used(140);
  const Privacy privacy(state);
  const VisibleTenants five = privacy.Visible(Sees::kNone, 5);
  const v1::Denial shown = privacy.Filtered(five).waiting.waiting(0).blocked_by();
  EXPECT_EQ(shown.limit(), 500u);
  EXPECT_THAT(shown.DebugString(), Not(HasSubstr("140")));

  v1::EventRecord record;
  record.set_event("denied");
  record.set_text("denied to tenant team, 140 of 500 bytes are in use");
  for (const auto& [name, value] : {std::pair("tenant", "team"), std::pair("used", "140")}) {
    v1::EventField& field = *record.add_fields();
    field.set_name(name);
    field.add_values(value);
  }
  EXPECT_THAT(EventText(*FilteredEvent(record, &five)), Not(HasSubstr("140")));

  v1::GetHistoryResponse history;
  for (const char* tenant : {"team", "deep"}) history.add_series()->set_tenant(tenant);
  const Json series = Json::parse(HistoryText(history, &five))["series"];
  ASSERT_EQ(series.size(), 1u);
  EXPECT_EQ(series[0]["tenant"], "deep");
  EXPECT_TRUE(CheckVisible({"team"}, &five).ok());
  EXPECT_THAT(TenantsWithHistory({}, five), ElementsAre("beside", "deep"));
  EXPECT_THAT(TenantsWithHistory({"team"}, five), IsEmpty());
}

// A name may have been another user's until a moment ago.
TEST(Privacy, NothingOfAFormerTenantOfTheNameIsShown) {
  cli::Snapshot state;
  for (const char* name : {"again", "mine"}) {
    v1::TenantInfo& tenant = *state.tenants.add_tenants();
    tenant.mutable_usage()->set_tenant(name);
    tenant.mutable_made()->set_user(5);
    tenant.mutable_made()->set_created_ms(1000);
  }
  const Privacy privacy(state);
  for (const Sees sees : {Sees::kOwn, Sees::kNone}) {
    const VisibleTenants five = privacy.Visible(sees, 5);
    v1::EventRecord record;
    const auto add = [&](const char* name, const char* value) {
      v1::EventField& field = *record.add_fields();
      field.set_name(name);
      field.add_values(value);
    };
    record.set_text("granted 77 bytes");
    add("tenant", "again");
    record.set_time_unix_ns(999'999'999);
    EXPECT_FALSE(FilteredEvent(record, &five));
    EXPECT_TRUE(FilteredEvent(record, nullptr));
    record.set_time_unix_ns(1'000'000'000);
    EXPECT_TRUE(FilteredEvent(record, &five));
    // Of the viewer's process, in memory of the former tenant.
    record.set_time_unix_ns(999'999'999);
    add("uid", "5");
    add("owner", "mine");
    add("segment", "77");
    EXPECT_THAT(EventText(*FilteredEvent(record, &five)), Not(HasSubstr("77")));

    v1::GetHistoryResponse history;
    v1::TenantHistory& series = *history.add_series();
    series.set_tenant("again");
    for (const auto& [time, bytes] : {std::pair(800, 77), std::pair(900, 78)}) {
      v1::HistoryPoint& point = *series.add_points();
      point.set_time_unix_ms(time);
      point.set_charged_bytes(bytes);
    }
    // No point since: the last one is the tenant's, too.
    EXPECT_EQ(Json::parse(HistoryText(history, &five))["series"][0]["points"].dump(),
              "[[1000,78,0,0,0,0]]");
    series.add_points()->set_time_unix_ms(1000);
    EXPECT_EQ(Json::parse(HistoryText(history, &five))["series"][0]["points"].dump(),
              "[[1000,0,0,0,0,0]]");
    EXPECT_EQ(Json::parse(HistoryText(history, nullptr))["series"][0]["points"].size(), 3u);
  }
}

TEST(Privacy, EventsOfTheViewersProcessesStayAfterTheTenantsEnd) {
  v1::EventRecord record;
  const auto add = [&](const char* name, const char* value) {
    v1::EventField& field = *record.add_fields();
    field.set_name(name);
    field.add_values(value);
  };
  add("tenant", "gone");
  add("uid", "5");
  const cli::Snapshot empty;
  const VisibleTenants five = Privacy(empty).Visible(Sees::kOwn, 5);
  const VisibleTenants six = Privacy(empty).Visible(Sees::kOwn, 6);
  EXPECT_TRUE(FilteredEvent(record, &five));
  EXPECT_FALSE(FilteredEvent(record, &six));
}

TEST(Events, HaveTheirFieldsByName) {
  v1::EventRecord record;
  record.set_number(3);
  record.set_time_unix_ns(1'700'000'000'123'456'789);
  record.set_event("granted");
  record.set_text("granted to\n\n</script>");
  const auto add = [&](const char* name, std::vector<std::string> values, bool number, bool list) {
    v1::EventField& field = *record.add_fields();
    field.set_name(name);
    field.set_number(number);
    field.set_list(list);
    for (const std::string& value : values) field.add_values(value);
  };
  add("tenant", {"a"}, false, false);
  add("bytes", {"1024"}, true, false);
  add("segment", {"1", "2"}, true, true);
  add("client", {"\xff"}, false, false);
  EXPECT_EQ(EventText(record),
            R"({"number":3,"time_ms":1700000000123,"event":"granted",)"
            R"("text":"granted to\n\n</script>","tenant":"a","fields":)"
            "{\"tenant\":\"a\",\"bytes\":1024,\"segment\":[1,2],\"client\":\"\xef\xbf\xbd\"}}");
}

TEST(History, LeavesOtherTenantsOut) {
  v1::GetHistoryResponse history;
  history.set_interval_ms(10'000);
  for (const char* tenant : {"mine", "other"}) {
    v1::TenantHistory& series = *history.add_series();
    series.set_tenant(tenant);
    series.set_device_uuid("GPU-1");
    v1::HistoryPoint& point = *series.add_points();
    point.set_time_unix_ms(5);
    point.set_charged_bytes(6);
    point.set_leased_bytes(7);
  }
  cli::Snapshot state;
  v1::TenantInfo& tenant = *state.tenants.add_tenants();
  tenant.mutable_usage()->set_tenant("mine");
  tenant.mutable_made()->set_user(5);
  const VisibleTenants five = Privacy(state).Visible(Sees::kOwn, 5);
  EXPECT_EQ(HistoryText(history, &five),
            R"({"interval_ms":10000,"since_ms":0,"now_ms":0,"series":[{"tenant":"mine",)"
            R"("device_uuid":"GPU-1","cut":false,"points":[[5,6,0,0,0,7]]}]})");
  EXPECT_EQ(Json::parse(HistoryText(history, nullptr))["series"].size(), 2u);
  EXPECT_TRUE(CheckVisible({"mine"}, &five).ok());
  EXPECT_TRUE(absl::IsNotFound(CheckVisible({"mine", "other"}, &five)));
  EXPECT_TRUE(CheckVisible({"other"}, nullptr).ok());
}

}  // namespace
}  // namespace gpumem::web
