// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/file_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;

constexpr char kChecksum[] = "99aa06d3014798d86001c324468d497f";

std::string Encoded(const std::vector<ListedFile>& files) {
  const absl::StatusOr<std::string> text = EncodeFileList(files);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

TEST(FileListTest, IsReadAsItWasWritten) {
  const std::vector<ListedFile> files = {
      {"model-00001-of-00002.safetensors", uint64_t{5} << 30, kChecksum},
      {"Größe \"1\"\\.bin", 1, std::nullopt}};
  const auto read = DecodeFileList(Encoded(files));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, files);
}

TEST(FileListTest, IsTheJsonThatTheHeaderShows) {
  EXPECT_EQ(Encoded({{"model.bin", 12345, kChecksum}}),
            R"({"format":"gpumem-files/1","files":[{"name":"model.bin","bytes":12345,)"
            R"("xxh128":"99aa06d3014798d86001c324468d497f"}]})");
}

TEST(FileListTest, RefusesNamesThatCannotBeKept) {
  for (const char* name : {"", ".", "..", "a/b"}) {
    EXPECT_EQ(EncodeFileList({{name, 1, std::nullopt}}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
  EXPECT_THAT(EncodeFileList({{"\xff.bin", 1, std::nullopt}}).status().message(),
              HasSubstr("file 1 is not UTF-8"));
  EXPECT_THAT(EncodeFileList({{"a", 1, std::nullopt}, {"a", 2, std::nullopt}}).status().message(),
              HasSubstr("two files are named a"));
}

TEST(FileListTest, RefusesMoreThanMetadataCanBe) {
  std::vector<ListedFile> files;
  for (int i = 0; i < 4096; ++i) {
    files.push_back({absl::StrCat(std::string(250, 'x'), i), 1, kChecksum});
  }
  EXPECT_THAT(EncodeFileList(files).status().message(), HasSubstr("more than the 1 MiB"));
}

TEST(FileListTest, KnowsWhatIsNoList) {
  for (const char* other : {"", "{}", "[]", "null", "\x01\x02", R"({"format": 1})",
                            R"({"format": "safetensors"})", "{\"format\": \"gpumem-files/1\""}) {
    EXPECT_EQ(DecodeFileList(other).status().code(), absl::StatusCode::kNotFound) << other;
  }
}

// It would overflow the stack when it is copied or destroyed.
TEST(FileListTest, DeepNestingIsRefused) {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    std::string nested;
    for (int i = 0; i < 150'000; ++i) nested += open;
    nested += "1";
    for (int i = 0; i < 150'000; ++i) nested += close;
    EXPECT_EQ(DecodeFileList(nested).status().code(), absl::StatusCode::kNotFound);
    for (const std::string& list :
         {absl::StrCat(R"({"format": "gpumem-files/1", "files": )", nested, "}"),
          absl::StrCat(R"({"format": "gpumem-files/1", "files": [{"name": )", nested, "}]}"),
          absl::StrCat(R"({"format": "gpumem-files/1", "files": [], "more": )", nested, "}")}) {
      const auto decoded = DecodeFileList(list);
      EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(decoded.status().message(), HasSubstr("nested too deeply"));
    }
  }
  // Truncated, so that it is not JSON.
  EXPECT_EQ(DecodeFileList(std::string(1 << 20, '[')).status().code(), absl::StatusCode::kNotFound);
}

TEST(FileListTest, RefusesWhatIsNotWellFormed) {
  const auto with = [](absl::string_view files) {
    return absl::StrCat(R"({"format": "gpumem-files/1", "files": )", files, "}");
  };
  // Above all, names that lead out of the folder of a fetch.
  for (const std::string& bad :
       {with("1"), with("[1]"), with(R"([{"name": "a"}])"), with(R"([{"bytes": 1}])"),
        with(R"([{"name": "../a", "bytes": 1}])"), with(R"([{"name": "/etc/a", "bytes": 1}])"),
        with(R"([{"name": "..", "bytes": 1}])"), with(R"([{"name": "a\u0000b", "bytes": 1}])"),
        with(R"([{"name": "a", "bytes": -1}])"), with(R"([{"name": "a", "bytes": 1.5}])"),
        with(R"([{"name": "a", "bytes": 1, "xxh128": "99"}])"),
        with(R"([{"name": "a", "bytes": 1, "xxh128": 99}])"),
        with(R"([{"name": "a", "bytes": 1}, {"name": "a", "bytes": 2}])"),
        std::string(R"({"format": "gpumem-files/1"})"),
        std::string(R"({"format": "gpumem-files/2", "files": []})")}) {
    EXPECT_EQ(DecodeFileList(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(DecodeFileList(R"({"format": "gpumem-files/2"})").status().message(),
              HasSubstr("use a newer gpumemctl"));
}

}  // namespace
}  // namespace gpumem::cli
