// SPDX-License-Identifier: Apache-2.0
#include "client/files/contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace gpumem::internal {
namespace contents_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kChecksum[] = "99aa06d3014798d86001c324468d497f";
constexpr char kOther[] = "01cd06d3014798d86001c324468d497f";

// A safetensors file of two arrays, and a file of bytes.
Contents Sample() {
  Contents contents;
  contents.arrays = {{.name = "w", .dtype = "bfloat16", .shape = {2, 3}, .extent = {.bytes = 12}},
                     {.name = "none", .dtype = "float32", .shape = {0, 7}, .extent = {}},
                     {.name = "Größe \"1\"\\.bin",
                      .dtype = "uint8",
                      .shape = {5},
                      .extent = {.bytes = 5, .xxh128 = kChecksum}}};
  contents.files = {{.name = "model.safetensors",
                     .bytes = 92,
                     .header = Extent{.bytes = 80, .xxh128 = kOther},
                     .first_array = 0,
                     .arrays = 2},
                    {.name = "Größe \"1\"\\.bin", .bytes = 5, .first_array = 2, .arrays = 1}};
  contents.metadata = {{"format", "pt"}};
  return contents;
}

std::string Encoded(const Contents& contents) {
  const absl::StatusOr<std::string> text = EncodeContents(contents);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

TEST(ContentsTest, IsReadAsItWasWritten) {
  Contents contents = Sample();
  const std::vector<uint64_t> sizes = Place(contents);
  const auto read = DecodeContents(Encoded(contents), sizes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, contents);
}

TEST(ContentsTest, IsTheJsonThatTheHeaderShows) {
  Contents contents = Sample();
  contents.arrays.resize(1);
  contents.files.resize(1);
  contents.files[0].arrays = 1;
  contents.metadata.clear();
  Place(contents);
  contents.arrays[0].extent.xxh128 = kChecksum;
  EXPECT_EQ(Encoded(contents),
            absl::StrCat(R"({"format":"gpumem-arrays/1","single":false,"metadata":null,)"
                         R"("arrays":[{"name":"w","dtype":"bfloat16","shape":[2,3],)"
                         R"("strides":null,"segment":0,"offset":512,"framework":"",)"
                         R"("xxh128":")",
                         kChecksum,
                         R"("}],"files":[{"name":"model.safetensors","bytes":92,)"
                         R"("header":{"segment":0,"offset":0,"bytes":80,"xxh128":")",
                         kOther, R"("},"arrays":[0,1]}]})"));
}

TEST(ContentsTest, PlacesArraysAlignedInSegmentsOfAGib) {
  constexpr uint64_t kGib = uint64_t{1} << 30;
  Contents contents;
  for (const uint64_t bytes :
       {uint64_t{100}, kGib - 1024, uint64_t{512}, uint64_t{1}, 3 * kGib, uint64_t{7}}) {
    contents.arrays.push_back({.name = absl::StrCat(contents.arrays.size()),
                               .dtype = "uint8",
                               .shape = {bytes},
                               .extent = {.bytes = bytes}});
  }
  contents.files = {{.name = "f", .header = Extent{.bytes = 8}, .first_array = 0, .arrays = 6}};
  // The header, 100 and the large one fill the first up to its end; 512 no longer fits.
  EXPECT_THAT(Place(contents), ElementsAre(kGib, 513, 3 * kGib, 7));
  EXPECT_EQ(contents.arrays[0].extent.offset, 512u);
  EXPECT_EQ(contents.arrays[1].extent.offset, 1024u);
  EXPECT_EQ(contents.arrays[3].extent.segment, 1u);
  EXPECT_EQ(contents.arrays[3].extent.offset, 512u);
}

TEST(ContentsTest, GivesAFileOfBytesASegmentOfItsOwn) {
  Contents contents;
  for (size_t i = 0; i < 2; ++i) {
    contents.arrays.push_back(
        {.name = absl::StrCat(i), .dtype = "uint8", .shape = {9}, .extent = {.bytes = 9}});
    contents.files.push_back({.name = absl::StrCat(i), .bytes = 9, .first_array = i, .arrays = 1});
  }
  EXPECT_THAT(Place(contents), ElementsAre(9, 9));
}

TEST(ContentsTest, RefusesNamesThatCannotBeKept) {
  for (const char* name : {"", ".", "..", "a/b", "\xff.bin"}) {
    Contents contents = Sample();
    contents.files[1].name = name;
    EXPECT_EQ(EncodeContents(contents).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  Contents files = Sample();
  files.files[1].name = files.files[0].name;
  EXPECT_THAT(EncodeContents(files).status().message(), HasSubstr("two files are named model"));
  Contents arrays = Sample();
  arrays.arrays[1].name = "w";
  EXPECT_THAT(EncodeContents(arrays).status().message(), HasSubstr("two arrays are named w"));
}

TEST(ContentsTest, RefusesMoreThanMetadataCanBe) {
  Contents contents;
  for (int i = 0; i < 20'000; ++i) {
    contents.arrays.push_back({.name = absl::StrCat(std::string(50, 'x'), i), .dtype = "uint8"});
  }
  EXPECT_THAT(EncodeContents(contents).status().message(), HasSubstr("more than the 1048576"));
}

TEST(ContentsTest, ReadsListsOfEarlierVersions) {
  const std::vector<uint64_t> segments = {uint64_t{2} << 20, uint64_t{8} << 20};
  const std::string text =
      absl::StrCat(R"({"format":"gpumem-files/1","files":[{"name":"a","bytes":100,"xxh128":")",
                   kChecksum, R"("},{"name":"b","bytes":)", (uint64_t{4} << 20) + 1,
                   R"(,"xxh128":")", kChecksum, R"("}]})");
  const auto read = DecodeContents(text, segments);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->files[1].name, "b");
  EXPECT_EQ(read->arrays[0].extent, (Extent{0, 0, 100, kChecksum}));
  // It was computed in another way.
  EXPECT_EQ(read->arrays[1].extent, (Extent{1, 0, (uint64_t{4} << 20) + 1, std::nullopt}));
  EXPECT_EQ(DecodeContents(text, {segments[0]}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ContentsTest, FindsTheBytesOfStridedArrays) {
  const auto of = [](const char* shape, const char* strides, int offset) {
    return DecodeContents(
        absl::StrCat(R"({"format":"gpumem-arrays/1","arrays":[{"name":"a","dtype":"float32",)",
                     R"("shape":)", shape, R"(,"strides":)", strides, R"(,"segment":0,"offset":)",
                     offset, "}]}"),
        {100});
  };
  EXPECT_EQ(of("[3,2]", "[4,12]", 8)->arrays[0].extent, (Extent{.offset = 8, .bytes = 24}));
  EXPECT_FALSE(of("[3,2]", "[4,12]", 8)->arrays[0].contiguous);
  EXPECT_EQ(of("[3]", "[-4]", 8)->arrays[0].extent, (Extent{.offset = 0, .bytes = 12}));
  EXPECT_EQ(of("[3]", "[0]", 96)->arrays[0].extent, (Extent{.offset = 96, .bytes = 4}));
  EXPECT_EQ(of("[]", "null", 96)->arrays[0].extent, (Extent{.offset = 96, .bytes = 4}));
  EXPECT_EQ(of("[0,9]", "null", 0)->arrays[0].extent.bytes, 0u);
  for (const auto& bad :
       {of("[3]", "[-4]", 7), of("[26]", "null", 0), of("[3]", "[49]", 0), of("[3]", "[]", 0),
        of("[9223372036854775807,9223372036854775807]", "null", 0),
        of("[2]", "[-9223372036854775808]", 0), of("[18446744073709551615]", "[1]", 0)}) {
    EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ContentsTest, KnowsWhatDescribesNothing) {
  for (const char* other : {"", "{}", "[]", "null", "\x01\x02", R"({"format": 1})",
                            R"({"format": "safetensors"})", "{\"format\": \"gpumem-files/1\""}) {
    EXPECT_EQ(DecodeContents(other, {}).status().code(), absl::StatusCode::kNotFound) << other;
  }
}

// It would overflow the stack when it is copied or destroyed.
TEST(ContentsTest, DeepNestingIsRefused) {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    std::string nested;
    for (int i = 0; i < 150'000; ++i) nested += open;
    nested += "1";
    for (int i = 0; i < 150'000; ++i) nested += close;
    EXPECT_EQ(DecodeContents(nested, {}).status().code(), absl::StatusCode::kNotFound);
    for (const char* form : {"gpumem-files/1", "gpumem-arrays/1"}) {
      for (const char* where : {R"("arrays": $0)", R"("arrays": [{"name": $0}])",
                                R"("arrays": [{"name": "a", "dtype": "uint8", "shape": $0}])",
                                R"("arrays": [], "files": [{"name": $0}])"}) {
        const std::string text = absl::StrCat(R"({"format": ")", form, "\", ",
                                              absl::StrReplaceAll(where, {{"$0", nested}}), "}");
        EXPECT_EQ(DecodeContents(text, {}).status().code(), absl::StatusCode::kInvalidArgument)
            << form << where;
      }
    }
  }
  EXPECT_EQ(DecodeContents(std::string(1 << 20, '['), {}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ContentsTest, RefusesFilesThatDoNotConsistOfTheirArrays) {
  Contents contents = Sample();
  const std::vector<uint64_t> sizes = Place(contents);
  const std::string good = Encoded(contents);
  ASSERT_TRUE(DecodeContents(good, sizes).ok());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {R"("bytes":92)", R"("bytes":91)"},
           {R"("bytes":92)", R"("bytes":-1)"},
           {R"("arrays":[0,2])", R"("arrays":[0,3])"},
           {R"("arrays":[0,2])", R"("arrays":[18446744073709551615,2])"},
           {R"("arrays":[0,2])", R"("arrays":[0])"},
           {R"("bytes":80)", R"("bytes":18446744073709551615)"},
           {R"("bytes":80)", R"("bytes":79)"},
           {R"("segment":0,"offset":512)", R"("segment":9,"offset":512)"},
           {R"("segment":0,"offset":512)", R"("segment":0,"offset":9512)"},
           {R"("segment":0,"offset":512)", R"("segment":null,"offset":512)"},
           {R"("name":"model.safetensors")", R"("name":"../model")"},
           {kOther, "x"},
           {"gpumem-arrays/1", "gpumem-arrays/2"}}) {
    const std::string bad = absl::StrReplaceAll(good, {{from, to}});
    ASSERT_NE(bad, good) << from;
    EXPECT_EQ(DecodeContents(bad, sizes).status().code(), absl::StatusCode::kInvalidArgument) << to;
  }
}

// Publishers are untrusted: whatever is accepted lies inside the segments.
TEST(ContentsTest, NoMutationLeadsOutOfTheSegments) {
  Contents contents = Sample();
  const std::vector<uint64_t> sizes = Place(contents);
  const std::string good = Encoded(contents);
  std::mt19937 random(20261126);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  constexpr absl::string_view kPieces[] = {
      "0",  "-1", "18446744073709551615", "[", "]", "{", "}", "null", "1e9",
      "\"", ",",  "9223372036854775807",  "4"};
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good;
    for (size_t changes = 1 + below(3); changes > 0; --changes) {
      const size_t at = below(text.size());
      switch (below(3)) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.replace(at, below(4), std::string(kPieces[below(std::size(kPieces))]));
          break;
        default:
          text.erase(at, below(6));
      }
      if (text.empty()) text = good;
    }
    const auto decoded = DecodeContents(text, sizes);
    if (!decoded.ok()) continue;
    ++accepted;
    for (const PublishedArray& array : decoded->arrays) {
      if (array.extent.bytes == 0) continue;
      ASSERT_LT(array.extent.segment, sizes.size()) << text;
      ASSERT_LE(array.extent.bytes, sizes[array.extent.segment]) << text;
      ASSERT_LE(array.extent.offset, sizes[array.extent.segment] - array.extent.bytes) << text;
    }
    for (const PublishedFile& file : decoded->files) {
      uint64_t bytes = 0;
      for (const Extent* extent : ExtentsOf(*decoded, file)) bytes += extent->bytes;
      ASSERT_EQ(bytes, file.bytes) << text;
    }
  }
  EXPECT_GT(accepted, 1000) << "the mutations are too wild to test anything";
}

}  // namespace contents_test
}  // namespace gpumem::internal
