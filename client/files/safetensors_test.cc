// SPDX-License-Identifier: Apache-2.0
#include "client/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace gpumem::internal {
namespace safetensors_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kJson[] = R"({"__metadata__":{"format":"pt"},)"
                         R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                         R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                         R"("empty":{"dtype":"I64","shape":[0,5],"data_offsets":[16,16]}})";
constexpr uint64_t kBytes = 16;

// The bytes before the tensors.
std::string Header(const std::string& json) {
  std::string header(8, '\0');
  for (size_t i = 0; i < 8; ++i) header[i] = static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return header + json;
}

absl::StatusOr<Safetensors> Parse(const std::string& json, uint64_t bytes = kBytes) {
  const std::string header = Header(json);
  return ParseSafetensors(header, header.size() + bytes);
}

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheFile) {
  const auto parsed = Parse(kJson);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->tensors.size(), 3u);
  EXPECT_EQ(parsed->tensors[0].name, "a");
  EXPECT_EQ(parsed->tensors[0].dtype, "float32");
  EXPECT_THAT(parsed->tensors[0].shape, IsEmpty());
  EXPECT_EQ(parsed->tensors[1].name, "b");
  EXPECT_EQ(parsed->tensors[1].dtype, "bfloat16");
  EXPECT_THAT(parsed->tensors[1].shape, ElementsAre(2, 3));
  EXPECT_EQ(parsed->tensors[1].offset, parsed->header_bytes + 4);
  EXPECT_EQ(parsed->tensors[1].bytes, 12u);
  EXPECT_EQ(parsed->tensors[2].bytes, 0u);
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
}

TEST(SafetensorsTest, ReadsTypesOfLessThanAByteAsBytes) {
  const auto parsed = Parse(R"({"a":{"dtype":"F4","shape":[4,8],"data_offsets":[0,16]}})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->tensors[0].dtype, "uint8");
  EXPECT_THAT(parsed->tensors[0].shape, ElementsAre(16));
  EXPECT_FALSE(Parse(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1).ok());
}

TEST(SafetensorsTest, RefusesHeadersThatLie) {
  const auto with = [](const char* from, const char* to) {
    const std::string json = absl::StrReplaceAll(kJson, {{from, to}});
    EXPECT_NE(json, kJson) << from;
    return Parse(json);
  };
  const std::vector<std::pair<absl::StatusOr<Safetensors>, const char*>> cases = {
      {with("[4,16]", "[4,17]"), "outside the file"},
      {with("[4,16]", "[16,4]"), "outside the file"},
      {with("[4,16]", "[4,18446744073709551615]"), "outside the file"},
      {with("[4,16]", "[-4,16]"), "no valid data_offsets"},
      {with("[4,16]", "[4.5,16]"), "no valid data_offsets"},
      {with("[4,16]", "[4]"), "no valid data_offsets"},
      {with("[4,16]", "[3,15]"), "an overlap before tensor \\\"b\\\""},
      {with("[0,4]", "[1,5]"), "a gap before tensor"},
      {with("[2,3]", "[2,4]"), "its shape takes 16 bytes"},
      {with("[2,3]", "[9223372036854775808,2]"), "too large"},
      {with("[2,3]", "[4294967296,4294967296,4294967296]"), "too large"},
      {with("[2,3]", "[-2,-3]"), "no valid shape"},
      {with("[2,3]", "[[2],3]"), "nested too deeply"},
      {with("[2,3]", "[{},3]"), "no valid shape"},
      {with("[2,3]", "[\"2\",3]"), "no valid shape"},
      {with("BF16", "Q4_K"), "is unknown"},
      {with("\"BF16\"", "7"), "is unknown"},
      {with("\"b\"", "\"a\""), "occurs twice"},
      {with("\"b\"", "\"b\\u001b[31m\""), "control characters"},
      {with("\"b\"", "\"\""), "the name is empty"},
      {with("\"pt\"", "1"), "not all strings"},
      {with("{\"format\":\"pt\"}", "[]"), "__metadata__ is no JSON object"},
      {Parse("[]"), "no JSON object"},
      {Parse("{"), "no JSON object"},
      {Parse(kJson, 17), "1 bytes behind its tensors"},
      {Parse(kJson, 15), "outside the file"},
      {Parse(R"({"a":[[[[[[[[1]]]]]]]]})"), "nested too deeply"},
  };
  for (const auto& [parsed, what] : cases) {
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(absl::StrReplaceAll(parsed.status().message(), {{"\"", "\\\""}}), HasSubstr(what));
  }
}

TEST(SafetensorsTest, RefusesHeadersLargerThanTheFile) {
  EXPECT_THAT(SafetensorsHeaderBytes("1234567", 7).status().message(), HasSubstr("too short"));
  EXPECT_THAT(SafetensorsHeaderBytes(std::string(8, '\xff'), 1 << 20).status().message(),
              HasSubstr("too large"));
  const std::string header = Header(kJson);
  EXPECT_THAT(SafetensorsHeaderBytes(header, header.size() - 1).status().message(),
              HasSubstr("shorter than its header says"));
  EXPECT_EQ(*SafetensorsHeaderBytes(header, header.size()), header.size());
}

// Whatever is accepted tiles the file.
TEST(SafetensorsTest, NoMutationLeadsOutOfTheFile) {
  std::mt19937 random(20261126);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  constexpr absl::string_view kPieces[] = {
      "0",   "-1",    "18446744073709551615", "[", "]", "{", "}", "4", "16",
      "2,3", "\"a\"", "9223372036854775808"};
  int accepted = 0;
  for (int i = 0; i < 30'000; ++i) {
    std::string json = kJson;
    for (size_t changes = 1 + below(3); changes > 0; --changes) {
      const size_t at = below(json.size());
      if (below(2) == 0) {
        json[at] = static_cast<char>(random());
      } else {
        json.replace(at, below(4), std::string(kPieces[below(std::size(kPieces))]));
      }
    }
    std::string header = Header(json);
    if (below(8) == 0) header[below(8)] = static_cast<char>(random());
    const uint64_t file = header.size() + (below(4) == 0 ? below(32) : kBytes);
    const auto bytes = SafetensorsHeaderBytes(header, file);
    if (!bytes.ok() || *bytes > header.size()) continue;
    const auto parsed = ParseSafetensors(absl::string_view(header).substr(0, *bytes), file);
    if (!parsed.ok()) continue;
    ++accepted;
    uint64_t next = parsed->header_bytes;
    for (const SafetensorsTensor& tensor : parsed->tensors) {
      ASSERT_EQ(tensor.offset, next);
      next += tensor.bytes;
    }
    ASSERT_EQ(next, file);
  }
  EXPECT_GT(accepted, 20) << "the mutations are too wild to test anything";
}

TEST(SafetensorsTest, ReadsItsOwnHeaders) {
  const PublishedArray a{.name = "a", .dtype = "float32", .shape = {3}, .extent = {.bytes = 12}};
  const PublishedArray b{
      .name = "Größe", .dtype = "float8_e4m3fn", .shape = {2, 2}, .extent = {.bytes = 4}};
  const auto header = EncodeSafetensorsHeader({&a, &b}, {{"k", "v"}});
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->size() % 8, 0u);
  const auto parsed = ParseSafetensors(*header, header->size() + 16);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->tensors.size(), 2u);
  EXPECT_EQ(parsed->tensors[1].name, "Größe");
  EXPECT_EQ(parsed->tensors[1].dtype, "float8_e4m3fn");
  EXPECT_EQ(parsed->metadata.at("k"), "v");
  const PublishedArray complex{.name = "c", .dtype = "complex128", .shape = {1}};
  EXPECT_THAT(EncodeSafetensorsHeader({&complex}, {}).status().message(), HasSubstr("complex128"));
  PublishedArray strided = a;
  strided.contiguous = false;
  EXPECT_THAT(EncodeSafetensorsHeader({&strided}, {}).status().message(), HasSubstr("strides"));
}

TEST(SafetensorsIndexTest, NamesTheFileOfEachTensor) {
  const auto parsed = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":16},"weight_map":{"a":"x.safetensors","b":"y.safetensors"}})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->at("b"), "y.safetensors");
  for (const char* bad : {"", "{}", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
                          R"({"weight_map":{"a":"../x"}})", R"({"weight_map":{"a\n":"x"}})",
                          R"({"weight_map":{"a":"x","a":"y"}})", R"({"weight_map":[]})"}) {
    EXPECT_EQ(ParseSafetensorsIndex(bad).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

TEST(ShardNamesTest, AreThoseOfTheWholeModel) {
  EXPECT_THAT(ShardNames("model-00002-of-00003.safetensors"),
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors"));
  for (const char* name :
       {"model.safetensors", "model-00000-of-00003.safetensors", "model-00004-of-00003.safetensors",
        "-00001-of-00003.bin", "00001-of-00003.safetensors", "a-0001-of-0003.safetensors", "",
        "model-00001-of-0003 .safetensors", "model-00001-of-+0003.safetensors",
        "model- 0001-of-00003.safetensors"}) {
    EXPECT_THAT(ShardNames(name), IsEmpty()) << name;
  }
}

}  // namespace safetensors_test
}  // namespace gpumem::internal
