// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gpumemd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Tenant = LedgerMeasures::Tenant;

constexpr size_t kLeased = static_cast<size_t>(SegmentState::kLeased);

MetricsFacts FactsOf(size_t devices) {
  MetricsFacts facts;
  facts.version = "1.2";
  for (size_t i = 0; i < devices; ++i) {
    facts.measures.device_infos.push_back({.uuid = absl::StrCat("GPU-", i),
                                           .name = "Card \"X\"",
                                           .pci_bus_id = "0000:01:00.0",
                                           .capacity_bytes = 1000});
    facts.measures.devices.push_back(
        {.charged = 10 * i, .reclaimed = 7, .suspended = 8, .resumed = 9});
  }
  return facts;
}

// One that has so much leased on the first device.
Tenant TenantOf(std::string name, uint64_t leased, size_t devices = 1, std::string parent = "") {
  Tenant tenant{.name = std::move(name),
                .parent = std::move(parent),
                .devices = std::vector<LedgerMeasures::OnDevice>(devices),
                .sessions = 1};
  tenant.devices[0].charged[kLeased] = leased;
  tenant.devices[0].ever_charged = leased > 0;
  for (auto& on : tenant.devices) on.limit = 500;
  return tenant;
}

std::string Leased(absl::string_view tenant, uint64_t bytes) {
  return absl::StrCat("gpumem_charged_bytes{tenant=\"", tenant,
                      "\",device=\"GPU-0\",state=\"leased\"} ", bytes, "\n");
}

std::string DeniedByQuota(absl::string_view tenant, uint64_t count) {
  return absl::StrCat("gpumem_denials_total{tenant=\"", tenant, "\",cause=\"device_limit\"} ",
                      count, "\n");
}

TEST(MetricsPageTest, SaysWhatWasMeasured) {
  MetricsFacts facts = FactsOf(2);
  Tenant tenant = TenantOf("train", 64, 2, "team");
  tenant.devices[0].guarantee = 20;
  tenant.devices[0].waiting = 3;
  tenant.devices[0].waited_for = 99;
  tenant.devices[1].unbrokered = 5;
  tenant.publications = 4;
  tenant.demoted = 17;
  tenant.segments = 6;
  tenant.denials = {{Denial::Cause::kCapacity, 9}};
  facts.measures.tenants = {tenant};
  facts.measures.draining = true;
  facts.foreign_bytes = {{"GPU-1", 77}};
  facts.generation = 3;
  facts.notices = 2;
  facts.store_places = 64;
  facts.store_used = 62;
  facts.unkept = 508;
  facts.spun = absl::Milliseconds(5);
  facts.log_dropped = 11;
  facts.log_suppressed = 12;
  facts.started = absl::FromUnixSeconds(1700000000);
  facts.process = {.cpu = absl::Milliseconds(10), .resident_bytes = 1, .open_fds = 2, .max_fds = 3};
  LatencyHistogram latency;
  latency.Observe(absl::Milliseconds(3));
  facts.measures.acquires = {{.kind = Kind::kMempool, .waited = true, .latency = latency.Read()}};
  facts.measures.resumes[1] = latency.Read();
  facts.measures.swaps = {.asked_for_waiters = 3, .asked_idle = 4, .suspended = 2, .ignored = 5};
  facts.measures.lock_holds = latency.Read();
  facts.measures.longest_lock_hold = absl::Milliseconds(4);

  const std::string page = MetricsPage(200).Write(facts);
  for (const std::string& line :
       {Leased("train", 64),
        std::string("gpumem_charged_bytes{tenant=\"train\",device=\"GPU-1\",state=\"leased\"} 0\n"),
        std::string("gpumem_quota_limit_bytes{tenant=\"train\",device=\"GPU-1\"} 500\n"),
        std::string("gpumem_quota_guarantee_bytes{tenant=\"train\",device=\"GPU-0\"} 20\n"),
        std::string("gpumem_waiting_requests{tenant=\"train\",device=\"GPU-0\"} 3\n"),
        std::string("gpumem_waiting_bytes{tenant=\"train\",device=\"GPU-0\"} 99\n"),
        std::string("gpumem_unbrokered_bytes{tenant=\"train\",device=\"GPU-1\"} 5\n"),
        std::string("gpumem_tenant_info{tenant=\"train\",parent=\"team\"} 1\n"),
        std::string("gpumem_sessions{tenant=\"train\"} 1\n"),
        std::string("gpumem_segments{tenant=\"train\"} 6\n"),
        std::string("gpumem_publications{tenant=\"train\"} 4\n"),
        std::string("gpumem_demoted_bytes{tenant=\"train\"} 17\n"),
        std::string("gpumem_denials_total{tenant=\"train\",cause=\"capacity\"} 9\n"),
        std::string("gpumem_denials_total{tenant=\"train\",cause=\"queue\"} 0\n"),
        std::string("gpumem_device_info{device=\"GPU-1\",index=\"1\",name=\"Card \\\"X\\\"\","
                    "pci_bus_id=\"0000:01:00.0\"} 1\n"),
        std::string("gpumem_device_capacity_bytes{device=\"GPU-0\"} 1000\n"),
        std::string("gpumem_device_charged_bytes{device=\"GPU-1\"} 10\n"),
        std::string("gpumem_foreign_bytes{device=\"GPU-0\"} 0\n"),
        std::string("gpumem_foreign_bytes{device=\"GPU-1\"} 77\n"),
        std::string("gpumem_reclaimed_bytes_total{device=\"GPU-0\"} 7\n"),
        std::string("gpumem_suspended_bytes_total{device=\"GPU-0\"} 8\n"),
        std::string("gpumem_resumed_bytes_total{device=\"GPU-0\"} 9\n"),
        std::string("gpumem_suspension_requests_total{cause=\"memory_needed\"} 3\n"),
        std::string("gpumem_suspension_requests_total{cause=\"idle\"} 4\n"),
        std::string("gpumem_suspension_requests_ended_total{result=\"suspended\"} 2\n"),
        std::string("gpumem_suspension_requests_ended_total{result=\"ignored\"} 5\n"),
        std::string("\ngpumem_suspend_seconds_count 0\n"),
        std::string("gpumem_resume_seconds_sum{waited=\"true\"} 0.003\n"),
        std::string("gpumem_acquire_seconds_sum{kind=\"mempool\",waited=\"true\"} 0.003\n"),
        std::string("\ngpumem_broker_lock_hold_seconds_bucket{le=\"0.0025\"} 0\n"),
        std::string("\ngpumem_broker_lock_hold_seconds_bucket{le=\"0.005\"} 1\n"),
        std::string("\ngpumem_broker_lock_hold_max_seconds 0.004\n"),
        std::string("\ngpumem_draining 1\n"),
        std::string("\ngpumem_notices 2\n"),
        std::string("\ngpumem_store_places 64\n"),
        std::string("\ngpumem_store_places_used 62\n"),
        std::string("\ngpumem_unkept_segments 508\n"),
        std::string("\ngpumem_log_lines_lost_total{cause=\"dropped\"} 11\n"),
        std::string("\ngpumem_log_lines_lost_total{cause=\"suppressed\"} 12\n"),
        std::string("\ngpumem_spin_seconds_total 0.005\n"),
        std::string("\ngpumem_restarts_total 2\n"),
        std::string("gpumem_build_info{version=\"1.2\",backend=\"host\"} 1\n"),
        std::string("\nprocess_start_time_seconds 1700000000\n"),
        std::string("\nprocess_cpu_seconds_total 0.01\n"),
        std::string("\nprocess_resident_memory_bytes 1\n"),
        std::string("\nprocess_open_fds 2\n"),
        std::string("\nprocess_max_fds 3\n")}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

// Which would otherwise be most of the page on a machine with many devices.
TEST(MetricsPageTest, SaysNothingOfWhereATenantNeverHadAnything) {
  MetricsFacts facts = FactsOf(2);
  facts.measures.tenants = {TenantOf("a", 1, 2)};
  EXPECT_THAT(MetricsPage(200).Write(facts),
              Not(HasSubstr("gpumem_charged_bytes{tenant=\"a\",device=\"GPU-1\"")));
  facts.measures.tenants[0].devices[1].ever_charged = true;
  EXPECT_THAT(MetricsPage(200).Write(facts),
              HasSubstr("gpumem_charged_bytes{tenant=\"a\",device=\"GPU-1\",state=\"leased\"} 0"));
}

TEST(MetricsPageTest, TheSmallestTenantsShareOneSeries) {
  MetricsFacts facts = FactsOf(1);
  facts.measures.tenants = {TenantOf("a", 10), TenantOf("b", 40), TenantOf("c", 20),
                            TenantOf("d", 30), TenantOf("e", 0)};
  MetricsPage page(2);
  std::string text = page.Write(facts);
  EXPECT_THAT(text, HasSubstr(Leased("b", 40)));
  EXPECT_THAT(text, HasSubstr(Leased("d", 30)));
  EXPECT_THAT(text, HasSubstr(Leased("(other)", 30)));
  EXPECT_THAT(text, HasSubstr("gpumem_sessions{tenant=\"(other)\"} 3\n"));
  EXPECT_THAT(text, Not(HasSubstr("tenant=\"a\"")));
  EXPECT_THAT(text, Not(HasSubstr("gpumem_quota_limit_bytes{tenant=\"(other)\"")));
  EXPECT_THAT(text, Not(HasSubstr("gpumem_tenant_info{tenant=\"(other)\"")));

  // Exactly as many as may be shown: no tenant is among the others.
  facts.measures.tenants.resize(2);
  EXPECT_THAT(MetricsPage(2).Write(facts), Not(HasSubstr("(other)")));
}

TEST(MetricsPageTest, TheNumberOfSeriesIsBoundedWhateverTenantsCome) {
  std::set<size_t> lines;
  MetricsPage page(20);
  for (int round = 0; round < 5; ++round) {
    MetricsFacts facts = FactsOf(2);
    for (int i = 0; i < 30 * (round + 1); ++i) {
      Tenant tenant = TenantOf(absl::StrCat("user-", round, "-", i), 1, 2);
      tenant.denials[Denial::Cause::kQueue] = 1;
      facts.measures.tenants.push_back(tenant);
    }
    const std::string text = page.Write(facts);
    lines.insert(std::vector<absl::string_view>(absl::StrSplit(text, '\n')).size());
  }
  EXPECT_EQ(lines.size(), 1);
}

// A tenant's values count for its ancestors, too: among the others they count once.
TEST(MetricsPageTest, WhatIsAmongTheOthersWithItsParentCountsOnce) {
  MetricsFacts facts = FactsOf(1);
  facts.measures.tenants = {TenantOf("big", 100), TenantOf("child", 10, 1, "parent"),
                            TenantOf("grandchild", 10, 1, "child"), TenantOf("parent", 10),
                            TenantOf("of-big", 5, 1, "big")};
  EXPECT_THAT(MetricsPage(1).Write(facts), HasSubstr(Leased("(other)", 15)));
  // Of equals the parent comes first, whatever its name.
  const std::string text = MetricsPage(2).Write(facts);
  EXPECT_THAT(text, HasSubstr(Leased("parent", 10)));
  EXPECT_THAT(text, HasSubstr(Leased("(other)", 15)));
}

TEST(MetricsPageTest, CountersOfTheOthersNeverDecrease) {
  MetricsFacts facts = FactsOf(1);
  facts.measures.tenants = {TenantOf("a", 10), TenantOf("b", 5)};
  auto& a = facts.measures.tenants[0];
  auto& b = facts.measures.tenants[1];
  a.denials = {{Denial::Cause::kDeviceLimit, 100}};
  b.denials = {{Denial::Cause::kDeviceLimit, 3}};
  MetricsPage page(1);
  EXPECT_THAT(page.Write(facts), HasSubstr(DeniedByQuota("(other)", 3)));

  // They change places: only the increase counts for the others.
  b.devices[0].charged[kLeased] = 50;
  a.denials[Denial::Cause::kDeviceLimit] = 104;
  b.denials[Denial::Cause::kDeviceLimit] = 5;
  std::string text = page.Write(facts);
  EXPECT_THAT(text, HasSubstr(DeniedByQuota("b", 5)));
  EXPECT_THAT(text, HasSubstr(DeniedByQuota("(other)", 7)));

  // One is forgotten, and comes again with nothing.
  a.denials = {{Denial::Cause::kDeviceLimit, 1}};
  EXPECT_THAT(page.Write(facts), HasSubstr(DeniedByQuota("(other)", 8)));
  facts.measures.tenants.erase(facts.measures.tenants.begin());
  EXPECT_THAT(page.Write(facts), HasSubstr(DeniedByQuota("(other)", 8)));
}

TEST(MetricsPageTest, EveryFamilyHasOneHelpAndOneTypeBeforeItsSamples) {
  MetricsFacts facts = FactsOf(1);
  facts.measures.tenants = {TenantOf("a", 10), TenantOf("b", 5)};
  std::set<std::string> begun;
  std::string current;
  const std::string page = MetricsPage(1).Write(facts);
  for (absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (absl::StartsWith(line, "# HELP ")) {
      current = words[2];
      EXPECT_TRUE(begun.insert(current).second) << line;
      EXPECT_TRUE(absl::EndsWith(line, ".")) << line;
    } else if (absl::StartsWith(line, "# TYPE ")) {
      EXPECT_EQ(words[2], current);
    } else {
      EXPECT_TRUE(absl::StartsWith(line, current)) << line;
    }
  }
  EXPECT_GT(begun.size(), 20);
}

TEST(ProcessStatsTest, AreThoseOfThisProcess) {
  const ProcessStats before = ReadProcessStats();
  EXPECT_GT(before.resident_bytes, 1 << 20);
  EXPECT_GE(before.open_fds, 3);
  EXPECT_GT(before.max_fds, before.open_fds);
  const int more[2] = {dup(STDERR_FILENO), dup(STDERR_FILENO)};
  EXPECT_EQ(ReadProcessStats().open_fds, before.open_fds + 2);
  for (int fd : more) close(fd);
}

}  // namespace
}  // namespace gpumemd
