// SPDX-License-Identifier: Apache-2.0
// Documents and their changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/text/json.h"
#include "client/web/feed/document.h"
#include "client/web/feed/testing/random_messages.h"

namespace gpumem::web {
namespace {

using cli::Json;

Json Key(absl::string_view list, const Json& object) {
  const auto text = [&](const char* name) { return object.value(name, std::string()); };
  if (list == "devices") return text("device_uuid");
  if (list == "tenants") return object["usage"].value("tenant", "");
  if (list == "sessions") return object.value("session_id", 0ull);
  if (list == "segments") return object.value("segment_id", 0ull);
  if (list == "leases") return object.value("lease_id", 0ull);
  if (list == "published") {
    return absl::StrCat(text("tenant"), "/", text("name"), "/", object.value("version", 0ull));
  }
  return absl::StrCat(text("tenant"), "/", text("name"));
}

// Lists by key, as a reader keeps them.
using State = std::map<std::string, Json>;

State StateOf(const Json& document) {
  State state = {{"status", document["status"]}, {"waiting", document["waiting"]}};
  for (const absl::string_view list : kLists) {
    for (const Json& object : document[std::string(list)]) {
      const auto [unused, is_new] =
          state.emplace(absl::StrCat(list, " ", Key(list, object).dump()), object);
      EXPECT_TRUE(is_new) << "two objects of one key";
    }
  }
  return state;
}

// Applies a change as a reader does.
void Apply(const Json& change, State* state) {
  for (const char* whole : {"status", "waiting"}) {
    if (change.contains(whole)) (*state)[whole] = change[whole];
  }
  for (const absl::string_view list : kLists) {
    const Json part = change.value(std::string(list), Json::object());
    for (const Json& object : part.value("set", Json::array())) {
      (*state)[absl::StrCat(list, " ", Key(list, object).dump())] = object;
    }
    for (const Json& key : part.value("gone", Json::array())) {
      EXPECT_EQ(state->erase(absl::StrCat(list, " ", key.dump())), 1u) << key << " of " << list;
    }
  }
}

template <typename Object>
void Mutate(google::protobuf::RepeatedPtrField<Object>* list, std::mt19937& random,
            void (*name)(Object&, uint64_t)) {
  static uint64_t next = 1;
  for (int i = list->size() - 1; i >= 0; --i) {
    if (random() % 8 == 0) {
      list->DeleteSubrange(i, 1);
    } else if (random() % 8 == 0) {
      const Object before = list->Get(i);
      FillRandom(*list->Mutable(i), random);
      name(*list->Mutable(i), 0);
      // Only the key of before.
      Object& now = *list->Mutable(i);
      const auto& reflection = *now.GetReflection();
      if constexpr (std::is_same_v<Object, v1::TenantInfo>) {
        now.mutable_usage()->set_tenant(before.usage().tenant());
      } else {
        for (const char* field :
             {"device_uuid", "session_id", "segment_id", "lease_id", "tenant", "name", "version"}) {
          const auto* key = now.GetDescriptor()->FindFieldByName(field);
          if (key == nullptr) continue;
          if (key->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
            reflection.SetString(&now, key, reflection.GetString(before, key));
          } else {
            reflection.SetUInt64(&now, key, reflection.GetUInt64(before, key));
          }
        }
      }
    }
  }
  while (list->size() < 12 && random() % 3 > 0) {
    Object& object = *list->Add();
    FillRandom(object, random);
    name(object, next++);
  }
  if (random() % 4 == 0 && list->size() > 1) list->SwapElements(0, list->size() - 1);
}

void Mutate(cli::Snapshot& state, std::mt19937& random) {
  if (random() % 3 == 0) {
    const auto devices = state.status.devices();
    state.status.Clear();
    FillRandom(state.status, random);
    *state.status.mutable_devices() = devices;
  }
  Mutate<v1::Device>(state.status.mutable_devices(), random, [](v1::Device& each, uint64_t n) {
    if (n > 0) each.set_device_uuid(absl::StrCat("GPU-\"\n", n));
  });
  Mutate<v1::TenantInfo>(state.tenants.mutable_tenants(), random,
                         [](v1::TenantInfo& each, uint64_t n) {
                           if (n > 0) each.mutable_usage()->set_tenant(absl::StrCat("tenant", n));
                         });
  Mutate<v1::SessionInfo>(state.sessions.mutable_sessions(), random,
                          [](v1::SessionInfo& each, uint64_t n) {
                            if (n > 0) each.set_session_id(n);
                          });
  Mutate<v1::SegmentInfo>(state.segments.mutable_segments(), random,
                          [](v1::SegmentInfo& each, uint64_t n) {
                            if (n > 0) each.set_segment_id(n);
                          });
  Mutate<v1::LeaseInfo>(state.holders.mutable_leases(), random,
                        [](v1::LeaseInfo& each, uint64_t n) {
                          if (n > 0) each.set_lease_id(n);
                        });
  Mutate<v1::PublishedSegments>(state.holders.mutable_publications(), random,
                                [](v1::PublishedSegments& each, uint64_t n) {
                                  if (n > 0) each.set_name(absl::StrCat("name", n));
                                });
  Mutate<v1::PublicationInfo>(state.publications.mutable_publications(), random,
                              [](v1::PublicationInfo& each, uint64_t n) {
                                if (n > 0) each.set_name(absl::StrCat("name", n));
                              });
  if (random() % 3 == 0) {
    state.waiting.Clear();
    FillRandom(state.waiting, random);
  }
}

TEST(Changes, AppliedToTheOldDocumentGiveTheNewOne) {
  std::mt19937 random(2);
  cli::Snapshot state;
  StableTimes times;
  times.Begin(kNow);
  Document from = MakeDocument(state, "all", times);
  int without = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    if (random() % 8 > 0) Mutate(state, random);
    times.Begin(kNow + absl::Milliseconds(i));
    const Document to = MakeDocument(state, "all", times);
    const Json before = Json::parse(DocumentText(from, i, kNow));
    const Json after = Json::parse(DocumentText(to, i + 1, kNow));
    const std::optional<std::string> change = ChangeText(from, to, i + 1, kNow);
    State applied = StateOf(before);
    if (change) {
      ASSERT_EQ(change->find_first_of("\r\n"), std::string::npos);
      const Json parsed = Json::parse(*change, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(parsed.is_discarded()) << *change;
      EXPECT_EQ(parsed["number"], i + 1);
      Apply(parsed, &applied);
    } else {
      ++without;
    }
    ASSERT_EQ(applied, StateOf(after)) << change.value_or("no change");
    from = to;
  }
  EXPECT_GT(without, 10) << "an equal document is no change";
}

TEST(Changes, AreAsLargeAsTheChangedObjects) {
  cli::Snapshot state;
  for (uint64_t i = 1; i <= 10'000; ++i) {
    v1::SegmentInfo& segment = *state.segments.add_segments();
    segment.set_segment_id(i);
    segment.set_tenant("tenant");
    segment.set_size_bytes(1 << 20);
    segment.set_age_ms(i);
  }
  StableTimes times;
  times.Begin(kNow);
  const Document from = MakeDocument(state, "all", times);
  // A second later: every duration is another.
  for (v1::SegmentInfo& each : *state.segments.mutable_segments()) {
    each.set_age_ms(each.age_ms() + 990);
  }
  times.Begin(kNow + absl::Seconds(1));
  EXPECT_FALSE(ChangeText(from, MakeDocument(state, "all", times), 2, kNow));
  state.segments.mutable_segments()->DeleteSubrange(0, 1);
  state.segments.mutable_segments(5000)->set_state(v1::SegmentInfo::STATE_LEASED);
  const auto change = ChangeText(from, MakeDocument(state, "all", times), 2, kNow);
  ASSERT_TRUE(change);
  EXPECT_LT(change->size(), 300u) << *change;
}

TEST(Events, HaveOneLineOfDataEach) {
  EXPECT_EQ(ServerSentEvent("tick", R"({"time_ms":1})"), "event: tick\ndata: {\"time_ms\":1}\n\n");
}

}  // namespace
}  // namespace gpumem::web
