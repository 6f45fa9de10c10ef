// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit/audit_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;

const absl::Time kTime = absl::FromUnixMicros(1'700'000'000'123'456);

AuditRecord Granted() {
  return {.number = 7,
          .time = kTime,
          .event = AuditEvent::kGranted,
          .tenant = "team",
          .session = SessionId{5},
          .pid = 12,
          .uid = 1000,
          .client = "worker",
          .command = "python",
          .call = "acquire",
          .device = "GPU-1",
          .kind = "vmm",
          .leases = {LeaseId{3}, LeaseId{4}},
          .segments = {SegmentId{8}, SegmentId{9}},
          .bytes = uint64_t{4} << 20,
          .count = 2};
}

// The entry as the journal's daemon reads it.
std::multimap<std::string, std::string> Parse(absl::string_view entry) {
  std::multimap<std::string, std::string> fields;
  while (!entry.empty()) {
    const size_t end = entry.find('\n');
    const absl::string_view line = entry.substr(0, end);
    entry.remove_prefix(end + 1);
    const size_t equals = line.find('=');
    if (equals != absl::string_view::npos) {
      fields.emplace(line.substr(0, equals), line.substr(equals + 1));
      continue;
    }
    uint64_t size = 0;
    for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<unsigned char>(entry[i]);
    entry.remove_prefix(8);
    fields.emplace(line, entry.substr(0, size));
    EXPECT_EQ(entry[size], '\n');
    entry.remove_prefix(size + 1);
  }
  return fields;
}

TEST(AuditJson, SaysWhoWhatAndHowMuchInOneLine) {
  EXPECT_EQ(ToJson(Granted()),
            R"({"time":"2023-11-14T22:13:20.123456Z","number":7,"event":"granted",)"
            R"("tenant":"team","session":5,"pid":12,"uid":1000,"client":"worker",)"
            R"("command":"python","call":"acquire","device":"GPU-1","kind":"vmm",)"
            R"("bytes":4194304,"count":2,"lease":[3,4],"segment":[8,9],)"
            R"("message":"granted to tenant team, session 5, pid 12 (python): 4.00 MiB of kind )"
            R"x(vmm on GPU-1, 2 segments (acquire)"})x");
}

TEST(AuditJson, EscapesWhatClientsChoose) {
  AuditRecord record = Granted();
  record.client =
      "a\"b\\c\nd\te\x01\xff"
      "f\xc3\xa9";
  const std::string line = ToJson(record);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["client"],
            "a\"b\\c\nd\te\x01\xef\xbf\xbd"
            "f\xc3\xa9");
}

TEST(AuditJson, OneOfAListIsAListAsWell) {
  const auto json = nlohmann::json::parse(
      ToJson({.event = AuditEvent::kReloaded, .by = {{.uid = 0, .pid = 9}}, .changes = {"a"}}));
  EXPECT_EQ(json["by_uid"], nlohmann::json::array({0}));
  EXPECT_EQ(json["by_pid"], nlohmann::json::array({9}));
  EXPECT_EQ(json["change"], nlohmann::json::array({"a"}));
}

TEST(AuditJournal, HasTheFieldsOfTheRecordAndThoseOfEveryEntry) {
  const auto fields = Parse(ToJournal(Granted()));
  const auto one = [&](const char* name) {
    EXPECT_EQ(fields.count(name), 1u) << name;
    return fields.find(name) == fields.end() ? std::string() : fields.find(name)->second;
  };
  EXPECT_EQ(one("MESSAGE"), Tell(Granted()));
  EXPECT_EQ(one("MESSAGE_ID"), KindOf(AuditEvent::kGranted).message_id);
  EXPECT_EQ(one("PRIORITY"), "6");
  EXPECT_EQ(one("SYSLOG_IDENTIFIER"), "gpumemd");
  EXPECT_EQ(one("GPUMEM_EVENT"), "granted");
  EXPECT_EQ(one("GPUMEM_TENANT"), "team");
  EXPECT_EQ(one("GPUMEM_BYTES"), "4194304");
  EXPECT_EQ(one("GPUMEM_NUMBER"), "7");
  std::vector<std::string> segments;
  for (auto [it, end] = fields.equal_range("GPUMEM_SEGMENT"); it != end; ++it) {
    segments.push_back(it->second);
  }
  EXPECT_THAT(segments, ElementsAre("8", "9"));
}

TEST(AuditJournal, AValueOfSeveralLinesMakesNoFieldsOfItsOwn) {
  AuditRecord record = Granted();
  record.client = "a\nMESSAGE=forged\nPRIORITY=0";
  const auto fields = Parse(ToJournal(record));
  EXPECT_EQ(fields.count("MESSAGE"), 1u);
  EXPECT_EQ(fields.count("PRIORITY"), 1u);
  ASSERT_EQ(fields.count("GPUMEM_CLIENT"), 1u);
  EXPECT_EQ(fields.find("GPUMEM_CLIENT")->second, record.client);
}

}  // namespace
}  // namespace gpumemd
