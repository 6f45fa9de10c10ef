// SPDX-License-Identifier: Apache-2.0
// gpumemctl publish, fetch and verify: files to memory and back, beside a real daemon.
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
namespace publish_test {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(PublishTest, BringsFilesToEveryWorkerAndBack) {
  const std::string a = Make("a.bin", 9 * kMiB + 4321);
  const std::string b = Make("b.bin", 17);
  const json published = Run({"publish", "model", "--file", a, b, "--json"}).AsJson();
  EXPECT_EQ(published["publication"], "model");
  EXPECT_EQ(published["tenant"], tenant_);
  EXPECT_EQ(published["version"], 1);
  EXPECT_EQ(published["size_bytes"], 9 * kMiB + 4321 + 17);
  EXPECT_EQ(published["arrays"], 2);
  ASSERT_EQ(published["files"].size(), 2u);
  EXPECT_EQ(published["files"][1]["name"], "b.bin");
  EXPECT_EQ(published["files"][1]["size_bytes"], 17);

  // The publisher is gone; a worker attaches, and finds the bytes where the metadata says.
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  {
    auto attached = client->Attach("model");
    ASSERT_TRUE(attached.ok()) << attached.status();
    ASSERT_EQ(attached->segments().size(), 2u);
    const json metadata = json::parse(attached->metadata());
    EXPECT_EQ(metadata["format"], "gpumem-arrays/1");
    EXPECT_EQ(metadata["arrays"][0]["xxh128"], published["files"][0]["xxh128"]);
    const std::string content = Read(a);
    EXPECT_EQ(std::memcmp(attached->segments()[0].data(), content.data(), content.size()), 0);
    const std::string rest(
        static_cast<const char*>(attached->segments()[0].data()) + content.size(),
        attached->segments()[0].size() - content.size());
    EXPECT_EQ(rest.find_first_not_of('\0'), std::string::npos) << "zero behind the file";
  }

  const Answer verified = Run({"verify", "model", "--json"});
  EXPECT_EQ(verified.code, 0) << verified.text;
  EXPECT_EQ(verified.AsJson()["files"][0]["state"], "ok");
  EXPECT_EQ(verified.AsJson()["files"][1]["state"], "ok");
  EXPECT_THAT(Run({"verify", "model"}).text, HasSubstr("a.bin"));

  const std::string out = Folder("out");
  const Answer fetched = Run({"fetch", "model", "--out", out});
  EXPECT_EQ(fetched.code, 0) << fetched.text;
  EXPECT_THAT(fetched.text, HasSubstr("Fetched model, version 1"));
  EXPECT_EQ(Read(out + "/a.bin"), Read(a));
  EXPECT_EQ(Read(out + "/b.bin"), Read(b));

  // Existing files are not lost by accident.
  std::ofstream(out + "/a.bin") << "mine";
  EXPECT_THAT(Run({"fetch", "model", "--out", out}).text, HasSubstr("--force"));
  EXPECT_EQ(Read(out + "/a.bin"), "mine");
  EXPECT_EQ(Run({"fetch", "model", "--out", out, "--force"}).code, 0);
  EXPECT_EQ(Read(out + "/a.bin"), Read(a));

  EXPECT_EQ(Run({"unpublish", "model"}).code, 0);
  EXPECT_EQ(Run({"fetch", "model", "--out", "-"}).code, 6);
}

TEST_F(PublishTest, MakesTheNextVersionUnderTheSameName) {
  const std::string a = Make("a.bin", kMiB);
  const std::string b = Make("b.bin", 2 * kMiB);
  EXPECT_EQ(Run({"publish", "m", "--file", a, "--json"}).AsJson()["version"], 1);
  EXPECT_EQ(Run({"publish", "m", "--file", b, "--json"}).AsJson()["version"], 2);
  const std::string out = dir_ + "/one";
  EXPECT_EQ(Run({"fetch", "m", "--out", out}).code, 0);  // one file, under any name
  EXPECT_EQ(Read(out), Read(b));
  EXPECT_EQ(SegmentsThere(), 1u);
}

TEST_F(PublishTest, SaysThatMemoryIsNotWhatWasPublished) {
  const std::string a = Make("a.bin", 5 * kMiB);
  ASSERT_EQ(Run({"publish", "m", "--file", a}).code, 0);
  {
    auto client = Connect();
    ASSERT_NE(client, nullptr);
    auto attached = client->Attach("m", {.read_only = false});
    ASSERT_TRUE(attached.ok()) << attached.status();
    static_cast<char*>(attached->data())[4 * kMiB + 1] ^= 1;
  }
  const Answer verified = Run({"verify", "m"});
  EXPECT_EQ(verified.code, 8) << verified.text;
  EXPECT_THAT(verified.text, HasSubstr("differs"));
  EXPECT_THAT(verified.text, HasSubstr("1 of 1 file"));
  EXPECT_EQ(Run({"fetch", "m", "--out", dir_ + "/bad"}).code, 8);
  EXPECT_FALSE(fs::exists(dir_ + "/bad"));
}

TEST_F(PublishTest, SaysThatThereIsNothingToCompareWith) {
  const std::string a = Make("a.bin", 5 * kMiB);
  ASSERT_EQ(Run({"publish", "m", "--file", a, "--no-checksum"}).code, 0);
  const Answer verified = Run({"verify", "m"});
  EXPECT_EQ(verified.code, 1) << verified.text;
  EXPECT_THAT(verified.text, HasSubstr("no checksums to compare with"));
  EXPECT_EQ(Run({"fetch", "m", "--out", dir_ + "/b"}).code, 0);
  EXPECT_EQ(Read(dir_ + "/b"), Read(a));
}

TEST_F(PublishTest, FetchesWhatAWorkerPublished) {
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  auto segments = client->AcquireMany({.bytes = 2 * kMiB}, 2);
  ASSERT_TRUE(segments.ok()) << segments.status();
  std::memset((*segments)[0].data(), 'a', 2 * kMiB);
  std::memset((*segments)[1].data(), 'b', 2 * kMiB);
  ASSERT_TRUE(client->Publish("w", *segments, {.metadata = "anything"}).ok());
  EXPECT_EQ(Run({"fetch", "w", "--out", dir_ + "/none"}).code, 1);
  const std::string out = Folder("out");
  ASSERT_EQ(Run({"fetch", "w", "--out", out}).code, 0);
  EXPECT_EQ(Read(out + "/w.0"), std::string(2 * kMiB, 'a'));
  EXPECT_EQ(Read(out + "/w.1"), std::string(2 * kMiB, 'b'));

  // Its publisher writes the metadata: no name leads out of the folder, and no size out of a
  // segment.
  for (const char* metadata :
       {R"({"format": "gpumem-files/1", "files": [{"name": "../x", "bytes": 1},
            {"name": "y", "bytes": 1}]})",
        R"({"format": "gpumem-files/1", "files": [{"name": "x", "bytes": 2097153},
            {"name": "y", "bytes": 1}]})",
        R"({"format": "gpumem-files/1", "files": [{"name": "x", "bytes": 1}]})"}) {
    ASSERT_TRUE(client->Publish("w", *segments, {.metadata = metadata}).ok());
    EXPECT_EQ(Run({"fetch", "w", "--out", out, "--force"}).code, 1) << metadata;
    EXPECT_EQ(Run({"verify", "w"}).code, 1) << metadata;
  }
  EXPECT_FALSE(fs::exists(dir_ + "/x"));
}

// --- Malicious publishers --------------------------------------------------------------

class HostilePublicationTest : public PublishTest {
 protected:
  // Publishes one segment, as "w", whose metadata lists these files.
  void Publish(const std::string& metadata, size_t segments = 1) {
    if (client_ == nullptr) client_ = Connect();
    ASSERT_NE(client_, nullptr);
    if (held_.size() != segments) {
      auto acquired = client_->AcquireMany({.bytes = 2 * kMiB}, segments);
      ASSERT_TRUE(acquired.ok()) << acquired.status();
      held_ = *std::move(acquired);
      for (Segment& segment : held_) std::memset(segment.data(), 'x', segment.size());
    }
    const auto published = client_->Publish("w", held_, {.metadata = metadata});
    ASSERT_TRUE(published.ok()) << published.status();
  }
  // Returns the metadata of files with these names, of 4 bytes each.
  static std::string ListOf(const std::vector<std::string>& names, const json& checksum = nullptr) {
    json list = {{"format", "gpumem-files/1"}, {"files", json::array()}};
    for (const std::string& name : names) {
      list["files"].push_back({{"name", name}, {"bytes", 4}, {"xxh128", checksum}});
    }
    return list.dump();
  }

 private:
  std::unique_ptr<Client> client_;
  std::vector<Segment> held_;
};

TEST_F(HostilePublicationTest, DeeplyNestedMetadataIsRefused) {
  const std::string nested = std::string(200'000, '[') + std::string(200'000, ']');
  const std::string out = Folder("out");
  for (const std::string& metadata :
       {absl::StrCat(R"({"format": "gpumem-files/1", "files": )", nested, "}"),
        absl::StrCat(R"({"format": "gpumem-files/1", "files": [{"name": )", nested, "}]}")}) {
    Publish(metadata);
    for (const Answer& answer : {Run({"verify", "w"}), Run({"fetch", "w", "--out", out})}) {
      EXPECT_EQ(answer.code, 1) << "139 is a stack overflow";
      EXPECT_THAT(answer.text, HasSubstr("the publication's metadata is invalid"));
    }
  }
  // No list of files, but no harm either: the segment is a file.
  Publish(nested);
  EXPECT_EQ(Run({"fetch", "w", "--out", dir_ + "/one"}).code, 0);
  EXPECT_TRUE(fs::is_empty(out));
}

TEST_F(HostilePublicationTest, NoControlCharacterReachesTheTerminal) {
  const std::string wrong(32, '0');
  const std::string out = Folder("out");
  for (const std::string& name : {std::string("\x1b]0;owned\x07"), std::string("a\rb"),
                                  std::string("\xC2\x9B"
                                              "31m"),
                                  std::string("\xE2\x80\xAEx")}) {
    Publish(ListOf({name, "b"}, wrong), 2);
    for (const Answer& answer :
         {Run({"verify", "w"}), Run({"verify", "w", "--json"}), Run({"fetch", "w", "--out", "-"}),
          Run({"fetch", "w", "--out", out}), Run({"fetch", "w", "--out", out, "--json"})}) {
      EXPECT_NE(answer.code, 0);
      for (const char* bad : {"\x1b", "\x07", "\r", "\x7f", "\xC2\x9B", "\xE2\x80\xAE"}) {
        EXPECT_THAT(answer.text, ::testing::Not(HasSubstr(bad)));
      }
    }
    Publish(ListOf({name}, wrong));
    const Answer differs = Run({"fetch", "w", "--out", dir_ + "/one"});
    EXPECT_EQ(differs.code, 8) << differs.text;
    EXPECT_THAT(differs.text, HasSubstr("?"));
    EXPECT_THAT(differs.text, ::testing::Not(HasSubstr(name)));
  }
  EXPECT_TRUE(fs::is_empty(out));
}

TEST_F(HostilePublicationTest, DotfilesAreWrittenOnlyWhereTheyAreAskedFor) {
  const std::string out = Folder("out");
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{".bashrc"}, std::vector<std::string>{"a", ".profile"}}) {
    Publish(ListOf(names), names.size());
    const Answer refused = Run({"fetch", "w", "--out", out, "--force"});
    EXPECT_EQ(refused.code, 1) << refused.text;
    EXPECT_THAT(refused.text, HasSubstr("--allow-dotfiles"));
    EXPECT_TRUE(fs::is_empty(out)) << "all or nothing";
  }
  EXPECT_EQ(Run({"fetch", "w", "--out", out, "--allow-dotfiles"}).code, 0);
  EXPECT_EQ(Read(out + "/.profile"), "xxxx");
  // A file that the caller has named is the caller's choice.
  Publish(ListOf({".bashrc"}));
  EXPECT_EQ(Run({"fetch", "w", "--out", dir_ + "/named"}).code, 0);
  EXPECT_EQ(Read(dir_ + "/named"), "xxxx");
}

TEST_F(HostilePublicationTest, NamesThatLeadElsewhereAreRefused) {
  const std::string out = Folder("out");
  for (const char* name : {"", ".", "..", "../x", "/etc/x", "a/b"}) {
    Publish(ListOf({name}));
    EXPECT_EQ(Run({"fetch", "w", "--out", out, "--allow-dotfiles", "--force"}).code, 1) << name;
  }
  EXPECT_TRUE(fs::is_empty(out));
}

TEST_F(PublishTest, LeavesNothingWhereItFails) {
  const std::string a = Make("a.bin", kMiB);
  fs::create_directory(dir_ + "/other");
  fs::copy(a, dir_ + "/other/a.bin");
  const std::string big = dir_ + "/big";
  std::ofstream(big).close();
  fs::resize_file(big, 60 * kMiB);
  std::ofstream(dir_ + "/empty").close();

  EXPECT_EQ(Run({"publish", "m", "--file", dir_ + "/none"}).code, 6);
  EXPECT_EQ(Run({"publish", "m/n", "--file", a}).code, 2);
  EXPECT_EQ(Run({"publish", "m"}).code, 2);
  EXPECT_THAT(Run({"publish", "m", "--file", dir_}).text, HasSubstr("is a folder"));
  EXPECT_THAT(Run({"publish", "m", "--file", dir_ + "/empty"}).text, HasSubstr("is empty"));
  EXPECT_THAT(Run({"publish", "m", "--file", a, dir_ + "/other/a.bin"}).text,
              HasSubstr("two files are named a.bin"));
  // The first fits, the second does not any more.
  const Answer full = Run({"publish", "m", "--file", big, a, "--file", big + "/../empty"});
  EXPECT_EQ(full.code, 1) << full.text;
  fs::copy(big, dir_ + "/big2");
  const Answer no_room = Run({"publish", "m", "--file", big, dir_ + "/big2"});
  EXPECT_EQ(no_room.code, 5) << no_room.text;
  EXPECT_THAT(no_room.text, HasSubstr("big2: "));
  EXPECT_THAT(Run({"publications", "--json"}).AsJson()["publications"], IsEmpty());
  EXPECT_EQ(SegmentsThere(), 0u);
}

TEST_F(PublishTest, LetsOtherTenantsInWhereItIsToldTo) {
  const std::string a = Make("a.bin", kMiB);
  ASSERT_EQ(Run({"publish", "m", "--file", a, "--any-tenant", "--expire-after", "1h"}).code, 0);
  const json listed = Find({"publications", "--json"}, "publications", "name", "m");
  EXPECT_EQ(listed["access"], "any");
  EXPECT_EQ(listed["expire_after_ms"], 3600 * 1000);
  EXPECT_EQ(Run({"verify", absl::StrCat(tenant_, "/m")}).code, 0);
}

}  // namespace publish_test
}  // namespace gpumem
