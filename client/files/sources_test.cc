// SPDX-License-Identifier: Apache-2.0
#include "client/files/sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/files/safetensors.h"

namespace gpumem::internal {
namespace sources_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SourcesTest : public testing::Test {
 protected:
  SourcesTest() {
    std::string path = testing::TempDir() + "/sources-XXXXXX";
    dir_ = mkdtemp(path.data());
  }
  ~SourcesTest() override { fs::remove_all(dir_); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = absl::StrCat(dir_, "/", name);
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // A safetensors file with one tensor of 4 bytes.
  std::string WriteTensor(const std::string& file, const std::string& tensor) {
    const PublishedArray array{
        .name = tensor, .dtype = "float32", .shape = {}, .extent = {.bytes = 4}};
    return Write(file, absl::StrCat(*EncodeSafetensorsHeader({&array}, {{"by", file}}), "1234"));
  }
  static absl::StatusOr<Sources> Open(const std::vector<std::string>& paths,
                                      FileFormat format = FileFormat::kByName) {
    return OpenSources(paths, format);
  }

  std::string dir_;
};

TEST_F(SourcesTest, AreTensorsByNameAndBytesOtherwise) {
  const std::string model = WriteTensor("model.safetensors", "w");
  const std::string other = Write("vocab.bin", "abc");
  const auto sources = Open({model, other});
  ASSERT_TRUE(sources.ok()) << sources.status();
  ASSERT_EQ(sources->contents.arrays.size(), 2u);
  EXPECT_EQ(sources->contents.arrays[0].name, "w");
  EXPECT_EQ(sources->contents.arrays[1].name, "vocab.bin");
  EXPECT_EQ(sources->contents.files[0].header->bytes + 4, sources->readers[0]->bytes());
  EXPECT_EQ(sources->contents.metadata.at("by"), "model.safetensors");

  const auto bytes = Open({model}, FileFormat::kBytes);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->contents.arrays[0].dtype, "uint8");
  EXPECT_THAT(Open({other}, FileFormat::kSafetensors).status().message(),
              HasSubstr("vocab.bin: invalid safetensors"));
}

TEST_F(SourcesTest, AnIndexStandsForItsFiles) {
  const std::string a = WriteTensor("model-00001-of-00002.safetensors", "a");
  const std::string b = WriteTensor("model-00002-of-00002.safetensors", "b");
  const std::string index = Write(
      "model.safetensors.index.json",
      R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
  for (const auto& paths :
       {std::vector{index}, std::vector{a, b}, std::vector{b, index}, std::vector{a, b, index}}) {
    const auto sources = Open(paths);
    ASSERT_TRUE(sources.ok()) << sources.status();
    EXPECT_EQ(sources->contents.files.size(), 2u);
  }
  EXPECT_EQ(Open({a}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Open({a}).status().message(),
              HasSubstr("model-00002-of-00002.safetensors is missing"));
  fs::remove(b);
  EXPECT_EQ(Open({index}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SourcesTest, RefusesAnIndexThatLies) {
  WriteTensor("x.safetensors", "a");
  WriteTensor("y.safetensors", "b");
  for (const auto& [map, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"a":"y.safetensors","b":"y.safetensors"})", "does not have it"},
           {R"({"a":"y.safetensors","b":"x.safetensors"})", "the index names another"},
           {R"({"a":"x.safetensors","c":"y.safetensors"})", "which does not have it"},
           {R"({"a":"../x.safetensors"})", "names no valid file"}}) {
    const std::string index =
        Write("m.safetensors.index.json", absl::StrCat(R"({"weight_map":)", map, "}"));
    const auto sources = Open({index});
    EXPECT_EQ(sources.status().code(), absl::StatusCode::kInvalidArgument) << map;
    EXPECT_THAT(sources.status().message(), HasSubstr(what)) << map;
  }
}

TEST_F(SourcesTest, RefusesTwoOfOneName) {
  const std::string x = WriteTensor("x.safetensors", "a");
  const std::string y = WriteTensor("y.safetensors", "a");
  EXPECT_THAT(Open({x, y}).status().message(), HasSubstr("two arrays are named a"));
  fs::create_directory(dir_ + "/d");
  const std::string same = WriteTensor("d/x.safetensors", "b");
  EXPECT_THAT(Open({x, same}).status().message(), HasSubstr("two files are named x.safetensors"));
}

}  // namespace sources_test
}  // namespace gpumem::internal
