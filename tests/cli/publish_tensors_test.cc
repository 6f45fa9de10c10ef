// SPDX-License-Identifier: Apache-2.0
// gpumemctl publish, fetch, verify and describe: the tensors of safetensors files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/cli/publish_fixture.h"

namespace gpumem {
namespace publish_tensors_test {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

class TensorsTest : public PublishTest {
 protected:
  struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<uint64_t> shape;
    size_t bytes;
  };
  // A safetensors file with random bytes.
  std::string MakeModel(const std::string& name, const std::vector<Tensor>& tensors) {
    json header = {{"__metadata__", {{"format", "pt"}}}};
    size_t end = 0;
    for (const Tensor& tensor : tensors) {
      header[tensor.name] = {{"dtype", tensor.dtype},
                             {"shape", tensor.shape},
                             {"data_offsets", {end, end + tensor.bytes}}};
      end += tensor.bytes;
    }
    const std::string text = header.dump();
    std::string content(8, '\0');
    for (size_t i = 0; i < 8; ++i) content[i] = static_cast<char>(text.size() >> (8 * i));
    content += text;
    return Write(name, content + Read(Make("bytes", end)));
  }
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = absl::StrCat(dir_, "/", name);
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
};

TEST_F(TensorsTest, ComeFromSafetensorsAndGoBackByteForByte) {
  const std::string a = MakeModel("model-00001-of-00002.safetensors",
                                  {{"w", "BF16", {3, 5}, 30},
                                   {"big", "F32", {5 * kMiB / 4 + 1}, 5 * kMiB + 4},
                                   {"none", "I64", {0}, 0}});
  const std::string b = MakeModel("model-00002-of-00002.safetensors", {{"head", "U8", {7}, 7}});
  const std::string index = Write(
      "model.safetensors.index.json",
      R"({"weight_map":{"w":"model-00001-of-00002.safetensors","head":"model-00002-of-00002.safetensors"}})");
  const json published = Run({"publish", "m", "--file", index, "--json"}).AsJson();
  EXPECT_EQ(published["arrays"], 4);
  ASSERT_EQ(published["files"].size(), 2u);
  EXPECT_EQ(published["files"][0]["xxh128"], nullptr);
  EXPECT_EQ(SegmentsThere(), 1u) << "arrays share segments";

  auto client = Connect();
  ASSERT_NE(client, nullptr);
  {
    auto attached = client->Attach("m");
    ASSERT_TRUE(attached.ok()) << attached.status();
    const json arrays = json::parse(attached->metadata())["arrays"];
    ASSERT_EQ(arrays[1]["name"], "big");
    EXPECT_EQ(arrays[0]["dtype"], "bfloat16");
    EXPECT_EQ(arrays[2]["segment"], nullptr);
    const std::string file = Read(a);
    EXPECT_EQ(
        std::memcmp(static_cast<const char*>(attached->data()) + arrays[1]["offset"].get<size_t>(),
                    file.data() + file.size() - (5 * kMiB + 4), 5 * kMiB + 4),
        0);
  }

  const json verified = Run({"verify", "m", "--json"}).AsJson();
  EXPECT_EQ(verified["files"][0]["state"], "ok");
  EXPECT_EQ(verified["files"][0]["arrays"].size(), 4u) << "the header, too";
  EXPECT_EQ(verified["size_bytes"], published["size_bytes"]);

  const json described = Run({"describe", "publication", "m", "--json"}).AsJson();
  ASSERT_EQ(described["arrays"].size(), 4u);
  EXPECT_EQ(described["arrays"][0]["name"], "w");
  EXPECT_EQ(described["arrays"][0]["shape"], json({3, 5}));
  const std::string text = Run({"describe", "publication", "m"}).text;
  EXPECT_THAT(text, HasSubstr("It has 4 arrays"));
  EXPECT_THAT(text, HasSubstr("bfloat16"));

  for (const char* format : {"files", "safetensors"}) {
    const std::string out = Folder(format);
    ASSERT_EQ(Run({"fetch", "m", "--out", out, "--format", format}).code, 0);
    EXPECT_EQ(Read(out + "/model-00001-of-00002.safetensors"), Read(a));
    EXPECT_EQ(Read(out + "/model-00002-of-00002.safetensors"), Read(b));
  }
}

TEST_F(TensorsTest, VerifyNamesTheArrayThatDiffers) {
  const std::string model =
      MakeModel("model.safetensors", {{"a", "U8", {100}, 100}, {"b", "U8", {200}, 200}});
  ASSERT_EQ(Run({"publish", "m", "--file", model}).code, 0);
  {
    auto client = Connect();
    ASSERT_NE(client, nullptr);
    auto attached = client->Attach("m", {.read_only = false});
    ASSERT_TRUE(attached.ok()) << attached.status();
    const json arrays = json::parse(attached->metadata())["arrays"];
    static_cast<char*>(attached->data())[arrays[1]["offset"].get<size_t>() + 199] ^= 1;
  }
  const Answer verified = Run({"verify", "m"});
  EXPECT_EQ(verified.code, 8) << verified.text;
  EXPECT_THAT(verified.text, HasSubstr("1 of 3 arrays"));
  EXPECT_THAT(verified.text, HasSubstr("\n  b "));
  EXPECT_THAT(verified.text, ::testing::Not(HasSubstr("\n  a ")));
  EXPECT_THAT(Run({"verify", "m", "-o", "wide"}).text, HasSubstr("\n  a "));
  const Answer fetched = Run({"fetch", "m", "--out", dir_ + "/bad"});
  EXPECT_EQ(fetched.code, 8) << fetched.text;
  EXPECT_FALSE(fs::exists(dir_ + "/bad"));
}

TEST_F(TensorsTest, ArraysOfAProgramBecomeASafetensorsFile) {
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  auto segment = client->Acquire({.bytes = 2 * kMiB});
  ASSERT_TRUE(segment.ok()) << segment.status();
  std::memcpy(segment->data(), "abcdefgh", 8);
  std::vector<Segment> segments;
  segments.push_back(*std::move(segment));
  const auto publish = [&](const char* strides) {
    const std::string metadata = absl::StrCat(
        R"({"format":"gpumem-arrays/1","single":false,"metadata":null,"arrays":[)"
        R"({"name":"b","dtype":"uint8","shape":[4],"strides":null,"segment":0,"offset":4},)"
        R"({"name":"f","dtype":"float32","shape":[1],"strides":)",
        strides, R"(,"segment":0,"offset":0}]})");
    EXPECT_TRUE(client->Publish("p", segments, {.metadata = metadata}).ok());
  };
  publish("null");
  const std::string out = dir_ + "/p.safetensors";
  ASSERT_EQ(Run({"fetch", "p", "--out", out, "--format", "safetensors"}).code, 0);
  const std::string file = Read(out);
  EXPECT_EQ(file.substr(file.size() - 8), "abcdefgh") << "larger elements come first";
  EXPECT_EQ(Run({"publish", "again", "--file", out}).code, 0);
  EXPECT_EQ(Run({"verify", "p"}).code, 1) << "no checksums";
  publish("[8]");
  EXPECT_THAT(Run({"fetch", "p", "--out", out, "--format", "safetensors", "--force"}).text,
              HasSubstr("has strides"));
}

TEST_F(TensorsTest, LyingFilesAreRefusedBeforeMemoryIsTaken) {
  const std::string good = Read(MakeModel("good.safetensors", {{"a", "U8", {100}, 100}}));
  const auto refused = [&](const std::string& content, const char* what) {
    const Answer answer = Run({"publish", "m", "--file", Write("bad.safetensors", content)});
    EXPECT_EQ(answer.code, 1) << answer.text;
    EXPECT_THAT(answer.text, HasSubstr(what));
    EXPECT_EQ(SegmentsThere(), 0u);
  };
  refused(good.substr(0, good.size() - 1), "lies outside the file");
  refused(good + "x", "1 bytes behind its tensors");
  refused(good.substr(0, 7), "too short");
  refused(std::string(8, '\xff') + good, "header is too large");
  EXPECT_EQ(Run({"publish", "m", "--file", Write("bad.safetensors", good.substr(0, 7)), "--format",
                 "bytes"})
                .code,
            0);
  const std::string shard = MakeModel("x-00001-of-00002.safetensors", {{"a", "U8", {1}, 1}});
  const Answer missing = Run({"publish", "m", "--file", shard});
  EXPECT_EQ(missing.code, 6) << missing.text;
  EXPECT_THAT(missing.text, HasSubstr("x-00002-of-00002.safetensors is missing"));
}

}  // namespace publish_tensors_test
}  // namespace gpumem
