// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/kubernetes/api/line_splitter.h"

namespace gpumem::kubernetes {
namespace cache_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kKind[] = "ResourceClaim";

struct Thing {
  std::string name;
  int value = 0;
  bool operator==(const Thing&) const = default;
};

// Keeps objects with a value.
std::optional<Thing> Read(const Json& object) {
  const Json& value = Member(object, "value");
  if (!value.is_number_integer()) return std::nullopt;
  return Thing{KeyOf(object), value.get<int>()};
}

std::string ObjectText(const std::string& name, int version, int value) {
  return absl::StrCat(R"({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
      "metadata": {"namespace": "n", "name": ")",
                      name, R"(", "resourceVersion": ")", version,
                      R"(", "managedFields": [{"a": 1}]}, "value": )",
                      value < 0 ? "null" : absl::StrCat(value), "}");
}
std::string EventText(const std::string& type, const std::string& object) {
  return absl::StrCat(R"({"type": ")", type, R"(", "object": )", object, "}");
}
std::string PartText(int version, const std::string& next, const std::vector<std::string>& items) {
  return absl::StrCat(R"({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList",
      "metadata": {"resourceVersion": ")",
                      version, R"(", "continue": ")", next, R"("}, "items": [)",
                      absl::StrJoin(items, ","), "]}");
}

std::map<std::string, int> ValuesOf(const Cache<Thing>& cache) {
  std::map<std::string, int> values;
  for (const Thing& thing : cache.objects()) values[thing.name] = thing.value;
  EXPECT_EQ(values.size(), cache.objects().size());
  return values;
}

TEST(CacheTest, AListReplacesWhatIsKnownWhenItIsComplete) {
  Cache<Thing> cache(kKind, Read);
  EXPECT_EQ(cache.version(), "");
  cache.BeginList();
  EXPECT_EQ(cache.AddPart(PartText(5, "", {ObjectText("a", 1, 1)})).value_or("?"), "");
  EXPECT_THAT(cache.objects(), ElementsAre(Thing{"n/a", 1}));
  EXPECT_EQ(cache.version(), "5");
  const uint64_t changes = cache.changes();

  cache.BeginList();
  EXPECT_EQ(cache.AddPart(PartText(8, "more", {ObjectText("b", 6, 2)})).value_or("?"), "more");
  EXPECT_THAT(cache.objects(), ElementsAre(Thing{"n/a", 1})) << "not complete";
  EXPECT_EQ(cache.version(), "5");
  EXPECT_EQ(cache.changes(), changes);
  EXPECT_EQ(cache.AddPart(PartText(9, "", {ObjectText("c", 7, -1)})).value_or("?"), "");
  EXPECT_THAT(cache.objects(), ElementsAre(Thing{"n/b", 2}));
  EXPECT_EQ(cache.version(), "8") << "the first part's: a watch sees what later parts missed";
  EXPECT_GT(cache.changes(), changes);

  // The same again is no change.
  const uint64_t before = cache.changes();
  cache.BeginList();
  ASSERT_TRUE(cache.AddPart(PartText(12, "", {ObjectText("b", 6, 2)})).ok());
  EXPECT_EQ(cache.changes(), before);
  // A list that was cut off leaves nothing.
  cache.BeginList();
  ASSERT_TRUE(cache.AddPart(PartText(13, "more", {ObjectText("d", 13, 2)})).ok());
  cache.BeginList();
  ASSERT_TRUE(cache.AddPart(PartText(14, "", {})).ok());
  EXPECT_THAT(cache.objects(), IsEmpty());
}

TEST(CacheTest, EventsThatMakeNoSenseChangeNothing) {
  Cache<Thing> cache(kKind, Read);
  cache.BeginList();
  ASSERT_TRUE(cache.AddPart(PartText(5, "", {ObjectText("a", 1, 1)})).ok());
  const std::string status = R"({"kind": "Status", "code": )";
  const auto invalid = [&](const std::string& line) {
    return absl::IsInvalidArgument(cache.Apply(line));
  };
  EXPECT_TRUE(invalid(""));
  EXPECT_TRUE(invalid("[]"));
  EXPECT_TRUE(invalid("{}"));
  EXPECT_TRUE(invalid(EventText("PATCHED", ObjectText("a", 6, 2))));
  EXPECT_TRUE(invalid(EventText("MODIFIED", "{}")));
  EXPECT_TRUE(invalid(EventText("MODIFIED", R"({"apiVersion": "v1", "kind": "Pod"})")));
  EXPECT_TRUE(invalid(EventText("MODIFIED", R"({"apiVersion": "resource.k8s.io/v1",
      "kind": "ResourceClaim", "metadata": {"name": "a", "namespace": "n"}})")))
      << "no version";
  EXPECT_TRUE(absl::IsAborted(cache.Apply(EventText("ERROR", status + "410}"))));
  EXPECT_TRUE(absl::IsAborted(
      cache.Apply(EventText("ERROR", R"({"kind": "Status", "reason": "Expired"})"))));
  EXPECT_TRUE(absl::IsUnavailable(cache.Apply(EventText("ERROR", status + "500}"))));
  EXPECT_TRUE(absl::IsUnavailable(cache.Apply(EventText("ERROR", "7"))));
  EXPECT_TRUE(absl::IsResourceExhausted(cache.Apply(
      EventText("ADDED", absl::StrCat("{\"a\": \"", std::string(kMostText, ' '), "\"}")))));
  EXPECT_TRUE(absl::IsResourceExhausted(cache.Apply(std::string(100, '{'))) ||
              invalid(std::string(100, '{')));
  EXPECT_THAT(cache.objects(), ElementsAre(Thing{"n/a", 1}));
  EXPECT_EQ(cache.version(), "5");
  EXPECT_FALSE(cache.AddPart("{}").ok());
  EXPECT_THAT(cache.objects(), SizeIs(1));
}

TEST(CacheTest, CountsAreBounded) {
  Cache<Thing> cache(kKind, Read);
  cache.BeginList();
  size_t made = 0;
  while (made < kMostObjects) {
    std::vector<std::string> items;
    for (size_t i = 0; i < 5000; ++i, ++made) items.push_back(ObjectText(absl::StrCat(made), 1, 1));
    ASSERT_TRUE(cache.AddPart(PartText(1, made < kMostObjects ? "more" : "", items)).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(cache.Apply(EventText("ADDED", ObjectText("x", 2, 1)))));
  EXPECT_TRUE(cache.Apply(EventText("ADDED", ObjectText("y", 2, -1))).ok()) << "none of ours";
  EXPECT_TRUE(cache.Apply(EventText("MODIFIED", ObjectText("7", 2, 5))).ok());
  EXPECT_TRUE(cache.Apply(EventText("DELETED", ObjectText("7", 3, 5))).ok());
  EXPECT_TRUE(cache.Apply(EventText("ADDED", ObjectText("x", 4, 1))).ok());
  EXPECT_THAT(cache.objects(), SizeIs(kMostObjects));
}

// An API server changes objects at random. The cache lists, watches, misses events and lists again:
// after each step it has what the model had at its version.
TEST(CacheTest, ItFollowsRandomEvents) {
  std::mt19937_64 random(7);
  const auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  for (int run = 0; run < 50; ++run) {
    Cache<Thing> cache(kKind, Read);
    std::map<std::string, int> model;  // by name; negative: none of ours
    int version = 1;
    const auto expected = [&] {
      std::map<std::string, int> values;
      for (const auto& [name, value] : model) {
        if (value >= 0) values["n/" + name] = value;
      }
      return values;
    };
    const auto change = [&]() -> std::string {
      const std::string name = absl::StrCat(below(8));
      ++version;
      const auto old = model.find(name);
      if (old != model.end() && below(3) == 0) {
        const int value = old->second;
        model.erase(old);
        return EventText("DELETED", ObjectText(name, version, value));
      }
      const bool is_new = old == model.end();
      model[name] = below(4) - 1;
      return EventText(is_new ? "ADDED" : "MODIFIED", ObjectText(name, version, model[name]));
    };
    const auto list = [&] {
      cache.BeginList();
      std::vector<std::string> events;  // during the list
      const int first = version;
      const size_t parts = 1 + random() % 3;
      std::vector<std::vector<std::string>> items(parts);
      for (const auto& [name, value] : model) {
        items[random() % parts].push_back(ObjectText(name, version, value));
      }
      for (size_t part = 0; part < parts; ++part) {
        const bool last = part + 1 == parts;
        ASSERT_TRUE(cache.AddPart(PartText(first, last ? "" : "more", items[part])).ok());
        if (below(2) == 0) events.push_back(change());
      }
      for (const std::string& event : events) ASSERT_TRUE(cache.Apply(event).ok());
    };
    list();
    for (int step = 0; step < 100; ++step) {
      const uint64_t changes = cache.changes();
      const auto before = ValuesOf(cache);
      switch (below(10)) {
        case 0: {  // a gap
          for (int n = below(5); n > 0; --n) (void)change();
          list();
          break;
        }
        case 1:
          ++version;
          ASSERT_TRUE(cache
                          .Apply(EventText(
                              "BOOKMARK",
                              absl::StrCat(
                                  R"({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                  "metadata": {"resourceVersion": ")",
                                  version, "\"}}")))
                          .ok());
          break;
        default:
          ASSERT_TRUE(cache.Apply(change()).ok());
      }
      ASSERT_EQ(ValuesOf(cache), expected());
      ASSERT_EQ(cache.version(), absl::StrCat(version));
      if (before != ValuesOf(cache)) {
        EXPECT_GT(cache.changes(), changes);
      }
    }
  }
}

TEST(LineSplitterTest, LinesComeWholeWhateverThePieces) {
  std::mt19937_64 random(3);
  for (int run = 0; run < 200; ++run) {
    std::string text;
    std::vector<std::string> wanted, got;
    for (size_t n = random() % 6; n > 0; --n) {
      const std::string line(random() % 20, static_cast<char>('a' + n));
      absl::StrAppend(&text, line, "\n");
      if (!line.empty()) wanted.push_back(line);
    }
    text += "rest";
    LineSplitter lines(20);
    for (absl::string_view left = text; !left.empty();) {
      const absl::string_view piece = left.substr(0, 1 + random() % 30);
      left.remove_prefix(piece.size());
      ASSERT_TRUE(lines
                      .Add(piece,
                           [&](absl::string_view line) {
                             got.emplace_back(line);
                             return absl::OkStatus();
                           })
                      .ok());
    }
    EXPECT_EQ(got, wanted);
  }
  LineSplitter lines(20);
  const auto ignore = [](absl::string_view) { return absl::OkStatus(); };
  EXPECT_TRUE(lines.Add(std::string(20, 'a'), ignore).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(lines.Add("a", ignore)));
  LineSplitter fails(20);
  EXPECT_TRUE(absl::IsAborted(
      fails.Add("a\nb\n", [](absl::string_view) { return absl::AbortedError("x"); })));
}

}  // namespace cache_test
}  // namespace gpumem::kubernetes
