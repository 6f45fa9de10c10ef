// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/compact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "client/cli/text/json.h"
#include "client/web/feed/testing/random_messages.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::web {
namespace {

using cli::Json;
using google::protobuf::FieldDescriptor;

std::string Compact(const google::protobuf::Message& message) {
  StableTimes times;
  times.Begin(kNow);
  std::string json;
  AppendCompact(message, 0, times, &json);
  return json;
}

// Returns the form of gpumemctl with the rules of compact.h applied.
Json Expected(const google::protobuf::Message& message) {
  const auto& reflection = *message.GetReflection();
  const Json all = cli::ToJson(message);
  Json result = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const std::string& name = field.name();
    Json value = all[name];
    if (name == "byte_seconds") continue;
    if (name == "age_ms" || name == "idle_ms" || name == "uptime_ms") {
      const std::string time = name == "age_ms"    ? "since_ms"
                               : name == "idle_ms" ? "idle_since_ms"
                                                   : "started_ms";
      result[time] = absl::ToUnixMillis(kNow) - value.get<int64_t>();
    } else if (name == "expires_in_ms") {
      if (value != 0) {
        result["expires_at_ms"] = absl::ToUnixMillis(kNow) + value.get<int64_t>();
      }
    } else if (field.is_repeated()) {
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        for (size_t j = 0; j < value.size(); ++j) {
          value[j] = Expected(reflection.GetRepeatedMessage(message, &field, static_cast<int>(j)));
        }
      }
      if (!value.empty()) result[name] = value;
    } else if (reflection.HasField(message, &field)) {
      result[name] = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE
                         ? Expected(reflection.GetMessage(message, &field))
                         : value;
    }
  }
  return result;
}

TEST(Compact, IsTheFormOfGpumemctlWithoutDefaults) {
  std::mt19937 random(1);
  const v1::GetStatusResponse status;
  const v1::TenantInfo tenant;
  const v1::SessionInfo session;
  const v1::SegmentInfo segment;
  const v1::LeaseInfo lease;
  const v1::PublicationInfo publication;
  const v1::WaitingInfo waiting;
  const google::protobuf::Message* kinds[] = {&status, &tenant,      &session, &segment,
                                              &lease,  &publication, &waiting};
  for (int i = 0; i < 500; ++i) {
    for (const google::protobuf::Message* kind : kinds) {
      const std::unique_ptr<google::protobuf::Message> message(kind->New());
      FillRandom(*message, random);
      const std::string text = Compact(*message);
      const Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(parsed.is_discarded()) << text;
      // dump() replaces bytes that are no UTF-8 on both sides.
      const Json expected = Json::parse(cli::OneLine(Expected(*message)));
      ASSERT_EQ(parsed, expected) << text;
      ASSERT_EQ(text.find_first_of("\r\n"), std::string::npos);
    }
  }
}

TEST(Compact, KeepsOptionalFieldsThatAreZero) {
  v1::Quota quota;
  quota.set_limit_bytes(0);
  EXPECT_EQ(Compact(quota), R"({"limit_bytes":0})");
  EXPECT_EQ(Compact(v1::Quota()), "{}");
}

TEST(Compact, QuotesNamesThatBreakFormats) {
  std::string json;
  AppendQuoted("a\n\nevent: x\"</script>\xff\xe2\x80\xae", &json);
  EXPECT_EQ(json, "\"a\\n\\nevent: x\\\"</script>\xef\xbf\xbd\\u202e\"");
}

TEST(StableTimes, StayWhileLatencyChanges) {
  StableTimes times;
  times.Begin(kNow);
  const int64_t since = times.Before(1, 500);
  EXPECT_EQ(since, absl::ToUnixMillis(kNow) - 500);
  for (int i = 1; i < 5; ++i) {
    // The daemon counted 20 ms before the answer came.
    times.Begin(kNow + absl::Seconds(i));
    EXPECT_EQ(times.Before(1, 500 + i * 1000 - 20 * i), since);
    EXPECT_EQ(times.Before(1, 500 + i * 1000), since) << "asked again by another view";
  }
  times.Begin(kNow + absl::Seconds(10));
  EXPECT_EQ(times.Before(1, 0), absl::ToUnixMillis(kNow) + 10'000) << "it is another object";
  EXPECT_EQ(times.Before(2, -5000), absl::ToUnixMillis(kNow) + 15'000);
}

TEST(StableTimes, AreForgottenWithTheirObjects) {
  StableTimes times;
  times.Begin(kNow);
  times.Before(1, 500);
  times.Begin(kNow);
  times.Begin(kNow);
  EXPECT_EQ(times.Before(1, 510), absl::ToUnixMillis(kNow) - 510);
}

}  // namespace
}  // namespace gpumem::web
