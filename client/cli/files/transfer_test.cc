// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/transfer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uint64_t kPiece = Staging::kPieceBytes;

// As a device's: bytes are in the memory once the copy is finished, not before. Using a buffer too
// early or too late yields wrong bytes.
class LateStaging : public Staging {
 public:
  void* Buffer(int slot, void*) override { return buffers_[slot].get(); }
  absl::Status StartIn(int slot, void* mapped, uint64_t bytes) override {
    pending_[slot] = [this, slot, mapped, bytes] {
      std::memcpy(mapped, buffers_[slot].get(), bytes);
      std::memset(buffers_[slot].get(), 0xEE, bytes);
    };
    return absl::OkStatus();
  }
  absl::Status StartOut(int slot, const void* mapped, uint64_t bytes) override {
    pending_[slot] = [this, slot, mapped, bytes] {
      std::memcpy(buffers_[slot].get(), mapped, bytes);
    };
    return absl::OkStatus();
  }
  absl::Status Finish(int slot) override {
    if (pending_[slot]) pending_[slot]();
    pending_[slot] = nullptr;
    return absl::OkStatus();
  }

 private:
  struct Free {
    void operator()(char* buffer) const { free(buffer); }
  };
  static std::unique_ptr<char, Free> Make() {
    return std::unique_ptr<char, Free>(static_cast<char*>(aligned_alloc(4096, kPieceBytes)));
  }
  std::unique_ptr<char, Free> buffers_[kSlots] = {Make(), Make(), Make(), Make(), Make(), Make(),
                                                  Make(), Make(), Make(), Make(), Make(), Make(),
                                                  Make(), Make(), Make(), Make()};
  std::function<void()> pending_[kSlots];
};

absl::Status Ignore(uint64_t) { return absl::OkStatus(); }

class TransferTest : public testing::TestWithParam<bool> {
 protected:
  TransferTest() {
    std::string path = testing::TempDir() + "/transfer-XXXXXX";
    dir_ = mkdtemp(path.data());
    if (GetParam()) {
      staging_ = Staging::ForHost();
    } else {
      staging_ = std::make_unique<LateStaging>();
    }
  }
  ~TransferTest() override {
    fs::remove_all(dir_);
    for (const auto& [address, bytes] : mapped_) munmap(address, bytes);
  }

  std::string Make(uint64_t bytes) {
    std::string content(bytes, '\0');
    std::mt19937_64 random(bytes);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
      const uint64_t word = random();
      std::memcpy(&content[i], &word, 8);
    }
    std::string path = absl::StrCat(dir_, "/", contents_.size());
    std::ofstream(path) << content;
    contents_.push_back(std::move(content));
    return path;
  }
  // Evicts the file from the page cache, so that the disk is read.
  static void Forget(const std::string& path) {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    fdatasync(fd.get());
    posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  void Open(const std::string& path) {
    auto reader = FileReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    // One more page, which must not be written.
    const uint64_t room = ((*reader)->bytes() + 4095) / 4096 * 4096;
    void* memory =
        mmap(nullptr, room + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    mprotect(static_cast<char*>(memory) + room, 4096, PROT_NONE);
    mapped_.emplace_back(memory, room + 4096);
    places_.push_back({.mapped = memory, .bytes = (*reader)->bytes()});
    files_.push_back(reader->get());
    readers_.push_back(*std::move(reader));
  }

  std::string dir_;
  std::unique_ptr<Staging> staging_;
  std::vector<std::string> contents_;
  std::vector<std::unique_ptr<FileReader>> readers_;
  std::vector<FileReader*> files_;
  std::vector<Placed> places_;
  std::vector<std::pair<void*, uint64_t>> mapped_;
};

INSTANTIATE_TEST_SUITE_P(Stagings, TransferTest, testing::Bool(),
                         [](const auto& which) { return which.param ? "Host" : "Late"; });

TEST_P(TransferTest, BringsEveryByteThereAndBack) {
  // Around the boundaries of pages and pieces, and more pieces than slots.
  for (const uint64_t bytes :
       {uint64_t{1}, uint64_t{4095}, uint64_t{4096}, uint64_t{4097}, kPiece - 1, kPiece, kPiece + 1,
        3 * kPiece + 12345, kPiece * (Staging::kSlots + 3) + 1}) {
    const std::string path = Make(bytes);
    if (contents_.size() % 2 == 0) Forget(path);
    Open(path);
  }
  uint64_t total = 0;
  for (const Placed& place : places_) total += place.bytes;
  uint64_t last = 0;
  std::vector<std::string> checksums;
  const absl::Status loaded = Load(
      files_, places_, *staging_,
      [&](uint64_t done) {
        EXPECT_GT(done, last);
        last = done;
        return absl::OkStatus();
      },
      &checksums);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(last, total);
  ASSERT_EQ(checksums.size(), contents_.size());
  EXPECT_EQ(std::set<std::string>(checksums.begin(), checksums.end()).size(), checksums.size());
  for (size_t i = 0; i < contents_.size(); ++i) {
    EXPECT_EQ(std::memcmp(places_[i].mapped, contents_[i].data(), contents_[i].size()), 0) << i;
    EXPECT_TRUE(files_[i]->CheckUnchanged().ok());
    std::string back;
    const auto checksum = Unload(places_[i], *staging_, Ignore, [&](absl::string_view bytes) {
      absl::StrAppend(&back, bytes);
      return absl::OkStatus();
    });
    ASSERT_TRUE(checksum.ok()) << checksum.status();
    EXPECT_EQ(*checksum, checksums[i]);
    EXPECT_TRUE(back == contents_[i]) << i;
  }
}

TEST_P(TransferTest, SumsAsXxh128sumDoes) {
  const std::string path = dir_ + "/known";
  std::ofstream(path) << "gpumem\n";
  Open(path);
  std::vector<std::string> checksums;
  ASSERT_TRUE(Load(files_, places_, *staging_, Ignore, &checksums).ok());
  EXPECT_EQ(checksums, std::vector<std::string>{"758cb9769dc7e88440f0574dbda03aa4"});
}

TEST_P(TransferTest, StopsWhereItIsToldTo) {
  Open(Make(40 * kPiece));
  int calls = 0;
  const absl::Status loaded = Load(
      files_, places_, *staging_,
      [&](uint64_t) { return ++calls == 3 ? absl::CancelledError("enough") : absl::OkStatus(); },
      nullptr);
  EXPECT_EQ(loaded, absl::CancelledError("enough"));
  EXPECT_EQ(calls, 3);
}

TEST_P(TransferTest, SeesThatAFileBecameShorter) {
  const std::string path = Make(8 * kPiece);
  Open(path);
  ASSERT_EQ(truncate(path.c_str(), 5 * kPiece + 1), 0);
  const absl::Status loaded = Load(files_, places_, *staging_, Ignore, nullptr);
  EXPECT_EQ(loaded.code(), absl::StatusCode::kAborted) << loaded;
  EXPECT_THAT(loaded.message(), HasSubstr("was truncated"));
}

TEST_P(TransferTest, SeesThatAFileWasWrittenTo) {
  const std::string path = Make(kPiece);
  Open(path);
  const timespec long_ago[] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
  EXPECT_EQ(files_[0]->CheckUnchanged().code(), absl::StatusCode::kAborted);
}

TEST(FileReaderTest, RefusesWhatIsNoFileToLoad) {
  std::string dir = testing::TempDir() + "/reader-XXXXXX";
  mkdtemp(dir.data());
  std::ofstream(dir + "/empty").flush();
  ASSERT_EQ(mkfifo((dir + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(FileReader::Open(dir + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(FileReader::Open(dir).status().message(), HasSubstr("is a folder"));
  EXPECT_THAT(FileReader::Open(dir + "/empty").status().message(), HasSubstr("is empty"));
  EXPECT_THAT(FileReader::Open(dir + "/fifo").status().message(), HasSubstr("not a regular file"));
  fs::remove_all(dir);
}

}  // namespace
}  // namespace gpumem::cli
