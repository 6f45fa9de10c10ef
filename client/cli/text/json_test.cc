// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/json.h"

#include <gtest/gtest.h>

#include "common/denial.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::cli {
namespace {

TEST(JsonTest, PrintsAllFieldsInOrder) {
  v1::ListSegmentsResponse response;
  v1::SegmentInfo* segment = response.add_segments();
  segment->set_segment_id(18446744073709551615u);
  segment->set_tenant("training");
  segment->set_device_uuid("GPU-1");
  segment->set_kind(v1::KIND_VMM);
  segment->set_state(v1::SegmentInfo::STATE_LEASED);
  segment->add_session_ids(3);
  segment->add_session_ids(4);
  EXPECT_EQ(OneLine(ToJson(response)),
            R"({"segments":[{"segment_id":18446744073709551615,"tenant":"training",)"
            R"("device_uuid":"GPU-1","kind":"vmm","size_bytes":0,"state":"leased",)"
            R"("session_ids":[3,4],"leases":0,"age_ms":0,"lost":false,"revocable":false,)"
            R"("publications":0,"home_uuid":"","suspended":0,"scratch":false,"dropped_bytes":0}]})"
            "\n");
}

TEST(JsonTest, AnEmptyListIsAnEmptyArray) {
  EXPECT_EQ(OneLine(ToJson(v1::ListSessionsResponse())), "{\"sessions\":[]}\n");
}

TEST(JsonTest, AbsentIsNullAndZeroIsZero) {
  v1::Quota quota;
  quota.set_limit_bytes(0);
  quota.set_max_segments(7);
  EXPECT_EQ(
      OneLine(ToJson(quota)),
      R"({"limit_bytes":0,"total_limit_bytes":null,"max_segments":7,"max_sessions":null,)"
      R"("max_in_flight":null,"max_retained_bytes":null,"devices":[],)"
      R"("pinned_limit_bytes":null,"guarantee_bytes":null,"guarantees":[],)"
      R"("priority":null,"max_waiting":null,"scrub":null,"revocable":null,"kind":null,)"
      R"("release":null,"parent":"","max_publications":null,"tier_limit_bytes":null,"swappable":null,)"
      R"("min_residence_ms":null,"idle_suspend_ms":null,"preload":null})"
      "\n");
  EXPECT_EQ(OneLine(ToJson(v1::GetQuotaResponse())),
            "{\"quota\":null,\"usage\":null,\"overridden\":[]}\n");
}

TEST(JsonTest, EnumsAreShortWords) {
  v1::Device device;
  device.set_backend(v1::BACKEND_HOST);
  device.add_kinds(v1::KIND_VMM);
  device.add_kinds(v1::KIND_MEMPOOL);
  device.add_kinds(static_cast<v1::Kind>(99));
  Json json = ToJson(device);
  EXPECT_EQ(json["backend"], "host");
  EXPECT_EQ(json["kinds"], Json::array({"vmm", "mempool", 99}));
  v1::ShareRequest share;
  EXPECT_EQ(ToJson(share)["scope"], "unspecified");
  share.set_scope(v1::TICKET_SCOPE_ANY);
  EXPECT_EQ(ToJson(share)["scope"], "any");
}

TEST(JsonTest, ADeviceHasItsPeersAndItsContext) {
  v1::Device device;
  device.set_context_pid(4242);
  v1::PeerAccess* peer = device.add_peers();
  peer->set_device_uuid("GPU-2");
  peer->set_access(true);
  const Json json = ToJson(device);
  EXPECT_EQ(json["context_pid"], 4242);
  EXPECT_EQ(OneLine(json["peers"]),
            R"([{"device_uuid":"GPU-2","access":true,"native_atomics":false,)"
            R"("performance_rank":0}])"
            "\n");
}

TEST(JsonTest, APoolHasCudasNames) {
  v1::ListPoolsResponse response;
  v1::PoolInfo* pool = response.add_pools();
  pool->set_tenant("t");
  pool->set_device_uuid("GPU-1");
  pool->set_segments(1);
  pool->set_max_bytes(9);
  pool->set_reserved_bytes(8);
  pool->set_reserved_peak_bytes(7);
  pool->set_used_bytes(6);
  pool->set_used_peak_bytes(5);
  pool->set_release_threshold_bytes(4);
  pool->set_reuse_allow_opportunistic(true);
  EXPECT_EQ(OneLine(ToJson(response)),
            R"({"pools":[{"tenant":"t","device_uuid":"GPU-1","segments":1,"max_bytes":9,)"
            R"("reserved_bytes":8,"reserved_peak_bytes":7,"used_bytes":6,"used_peak_bytes":5,)"
            R"("release_threshold_bytes":4,"reuse_follow_event_dependencies":false,)"
            R"("reuse_allow_opportunistic":true,"reuse_allow_internal_dependencies":false}]})"
            "\n");
}

TEST(JsonTest, BytesAreBase64AndNegativeNumbersStaySo) {
  v1::ShareResponse response;
  response.set_ticket(std::string("\0\xff", 2));
  EXPECT_EQ(ToJson(response)["ticket"], "AP8=");
  v1::SessionInfo session;
  session.set_pid(-1);
  EXPECT_EQ(ToJson(session)["pid"], -1);
}

TEST(JsonTest, ErrorsCarryTheDenial) {
  v1::Denial denial;
  denial.set_cause(v1::Denial::CAUSE_DEVICE_LIMIT);
  denial.set_tenant("training");
  denial.set_device_uuid("GPU-1");
  denial.set_asked(3);
  denial.set_used(2);
  denial.set_limit(4);
  denial.set_help("ask for less");
  Json json = ErrorJson(DenialError(denial));
  EXPECT_EQ(json["error"]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(OneLine(json["error"]["denial"]),
            R"({"cause":"device_limit","tenant":"training","device_uuid":"GPU-1","asked":3,)"
            R"("used":2,"limit":4,"help":"ask for less","limited_tenant":"","holders":[],)"
            R"("queued_at":"unspecified"})"
            "\n");
  EXPECT_EQ(OneLine(ErrorJson(absl::NotFoundError("no such tenant"))),
            R"({"error":{"code":"NOT_FOUND","message":"no such tenant","denial":null}})"
            "\n");
}

TEST(JsonTest, DocumentsBeginWithTheirVersion) {
  Json json = Json::object();
  json["version"] = "of the daemon";
  EXPECT_EQ(DocumentLine(json), "{\"schema_version\":1,\"version\":\"of the daemon\"}\n");
  EXPECT_EQ(Document(json), "{\n  \"schema_version\": 1,\n  \"version\": \"of the daemon\"\n}\n");
  EXPECT_EQ(OneLine(WarningJson("old")), "{\"warning\":{\"message\":\"old\"}}\n");
}

TEST(JsonTest, PrettyIndents) {
  Json json = Json::object();
  json["a"] = 1;
  EXPECT_EQ(Pretty(json), "{\n  \"a\": 1\n}\n");
}

TEST(JsonTest, AQuotaTellsWhatIsOverriddenWhereThatIsKnown) {
  v1::GetQuotaResponse response;
  response.mutable_usage()->set_tenant("t");
  response.mutable_quota()->set_guarantee_bytes(5);
  response.add_overridden("guarantee_bytes");
  Json json = QuotaJson(response, /*knows_overridden=*/true);
  EXPECT_EQ(json["tenant"], "t");
  EXPECT_EQ(json["quota"]["guarantee_bytes"], 5);
  EXPECT_EQ(json["overridden"], Json::array({"guarantee_bytes"}));
  EXPECT_TRUE(QuotaJson(response, /*knows_overridden=*/false)["overridden"].is_null());
}

}  // namespace
}  // namespace gpumem::cli
