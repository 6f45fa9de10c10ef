// SPDX-License-Identifier: Apache-2.0
#include "client/files/transfer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/files/tree_hash.h"

namespace gpumem::internal {
namespace transfer_test {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kPiece = Staging::kPieceBytes;

// As a device's: bytes are in the memory once the copy is finished, not before. Using a buffer too
// early or too late yields wrong bytes.
class LateStaging : public Staging {
 public:
  LateStaging() { ++alive; }
  ~LateStaging() override { --alive; }
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

  static std::atomic<int> alive;

 private:
  struct Free {
    void operator()(char* buffer) const { free(buffer); }
  };
  static std::unique_ptr<char, Free> Make() {
    return std::unique_ptr<char, Free>(static_cast<char*>(aligned_alloc(4096, kPieceBytes)));
  }
  std::unique_ptr<char, Free> buffers_[kSlots] = {Make(), Make(), Make(), Make()};
  std::function<void()> pending_[kSlots];
};

std::atomic<int> LateStaging::alive = 0;

absl::Status Ignore(uint64_t) { return absl::OkStatus(); }

class TransferTest : public testing::TestWithParam<bool> {
 protected:
  TransferTest() {
    std::string path = testing::TempDir() + "/transfer-XXXXXX";
    dir_ = mkdtemp(path.data());
  }
  ~TransferTest() override {
    fs::remove_all(dir_);
    for (const auto& [address, bytes] : mapped_) munmap(address, bytes);
    EXPECT_EQ(LateStaging::alive, 0);
  }

  static absl::StatusOr<std::unique_ptr<Staging>> MakeOne() {
    if (GetParam()) return Staging::ForHost();
    return std::make_unique<LateStaging>();
  }

  std::string Make(uint64_t bytes) {
    std::string content(bytes, '\0');
    std::mt19937_64 random(bytes);
    for (size_t i = 0; i < bytes; i += 8) {
      const uint64_t word = random();
      std::memcpy(&content[i], &word, std::min<size_t>(8, bytes - i));
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

  // A part with the whole file.
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
    parts_.push_back({.mapped = memory, .bytes = (*reader)->bytes(), .file = reader->get()});
    readers_.push_back(*std::move(reader));
  }

  std::string dir_;
  std::vector<std::string> contents_;
  std::vector<std::unique_ptr<FileReader>> readers_;
  std::vector<Part> parts_;
  std::vector<std::pair<void*, uint64_t>> mapped_;
};

INSTANTIATE_TEST_SUITE_P(Stagings, TransferTest, testing::Bool(),
                         [](const auto& which) { return which.param ? "Host" : "Late"; });

TEST_P(TransferTest, BringsEveryByteThereAndBack) {
  // Around the boundaries of pages and chunks, and more chunks than slots.
  for (const uint64_t bytes :
       {uint64_t{1}, uint64_t{4095}, uint64_t{4096}, uint64_t{4097}, kPiece - 1, kPiece, kPiece + 1,
        3 * kPiece + 12345, kPiece * (Staging::kSlots + 13) + 1}) {
    const std::string path = Make(bytes);
    if (contents_.size() % 2 == 0) Forget(path);
    Open(path);
  }
  uint64_t total = 0;
  for (const Part& part : parts_) total += part.bytes;
  uint64_t last = 0;
  std::vector<std::string> checksums;
  const absl::Status loaded = Load(
      parts_, MakeOne,
      [&](uint64_t done) {
        EXPECT_GE(done, last);
        last = done;
        return absl::OkStatus();
      },
      &checksums);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(last, total);
  ASSERT_EQ(checksums.size(), contents_.size());
  EXPECT_EQ(std::set<std::string>(checksums.begin(), checksums.end()).size(), checksums.size());
  for (size_t i = 0; i < contents_.size(); ++i) {
    EXPECT_EQ(std::memcmp(parts_[i].mapped, contents_[i].data(), contents_[i].size()), 0) << i;
    EXPECT_TRUE(readers_[i]->CheckUnchanged().ok());
  }

  std::string back;
  auto staging = *MakeOne();
  const auto unloaded = Unload(parts_, *staging, Ignore, [&](absl::string_view bytes) {
    absl::StrAppend(&back, bytes);
    return absl::OkStatus();
  });
  ASSERT_TRUE(unloaded.ok()) << unloaded.status();
  EXPECT_EQ(*unloaded, checksums);
  EXPECT_TRUE(back == absl::StrCat(contents_[0], contents_[1], contents_[2], contents_[3],
                                   contents_[4], contents_[5], contents_[6], contents_[7],
                                   contents_[8]));
  const auto hashed = Hash(parts_, MakeOne, Ignore);
  ASSERT_TRUE(hashed.ok()) << hashed.status();
  EXPECT_EQ(*hashed, checksums);
}

TEST_P(TransferTest, ReadsPartsOfAFileAndEmptyOnes) {
  Open(Make(kPiece + 1000));
  Part whole = parts_[0];
  char* const memory = static_cast<char*>(whole.mapped);
  parts_ = {{.mapped = memory + 100, .bytes = 0, .file = whole.file, .file_offset = 10},
            {.mapped = memory, .bytes = 700, .file = whole.file, .file_offset = kPiece},
            {.mapped = nullptr, .bytes = 0, .file = whole.file, .file_offset = 10}};
  std::vector<std::string> checksums;
  const absl::Status loaded = Load(parts_, MakeOne, Ignore, &checksums);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(std::memcmp(memory, contents_[0].data() + kPiece, 700), 0);
  // Of no bytes, as xxh128sum prints it.
  constexpr char kOfNothing[] = "99aa06d3014798d86001c324468d497f";
  EXPECT_EQ(checksums[0], kOfNothing);
  EXPECT_EQ(checksums[2], kOfNothing);
  EXPECT_EQ(*Hash(parts_, MakeOne, Ignore), checksums);
}

TEST_P(TransferTest, SumsAsXxh128sumDoes) {
  const std::string path = dir_ + "/known";
  std::ofstream(path) << "gpumem\n";
  Open(path);
  std::vector<std::string> checksums;
  ASSERT_TRUE(Load(parts_, MakeOne, Ignore, &checksums).ok());
  EXPECT_EQ(checksums, std::vector<std::string>{"758cb9769dc7e88440f0574dbda03aa4"});
}

TEST_P(TransferTest, StopsWhereItIsToldTo) {
  Open(Make(40 * kPiece));
  const absl::Status loaded = Load(
      parts_, MakeOne, [](uint64_t) { return absl::CancelledError("enough"); }, nullptr);
  EXPECT_EQ(loaded, absl::CancelledError("enough"));
}

TEST_P(TransferTest, EndsWithTheFirstError) {
  Open(Make(40 * kPiece));
  std::atomic<int> made = 0;
  const auto fails = [&]() -> absl::StatusOr<std::unique_ptr<Staging>> {
    if (made++ == 0) return absl::ResourceExhaustedError("no context");
    return MakeOne();
  };
  EXPECT_EQ(Load(parts_, fails, Ignore, nullptr), absl::ResourceExhaustedError("no context"));
  auto staging = *MakeOne();
  const auto unloaded = Unload(parts_, *staging, Ignore, [](absl::string_view) {
    return absl::ResourceExhaustedError("the disk is full");
  });
  EXPECT_EQ(unloaded.status(), absl::ResourceExhaustedError("the disk is full"));
}

TEST_P(TransferTest, SeesThatAFileBecameShorter) {
  const std::string path = Make(8 * kPiece);
  Open(path);
  ASSERT_EQ(truncate(path.c_str(), 5 * kPiece + 1), 0);
  const absl::Status loaded = Load(parts_, MakeOne, Ignore, nullptr);
  EXPECT_EQ(loaded.code(), absl::StatusCode::kAborted) << loaded;
  EXPECT_THAT(loaded.message(), HasSubstr("was truncated"));
}

TEST_P(TransferTest, SeesThatAFileWasWrittenTo) {
  const std::string path = Make(kPiece);
  Open(path);
  const timespec long_ago[] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
  EXPECT_EQ(readers_[0]->CheckUnchanged().code(), absl::StatusCode::kAborted);
}

TEST(TreeHashTest, IsTheHashOfTheChunksHashes) {
  const std::string chunk(kChunkBytes, 'x');
  ChunkHash hash;
  hash.Update(chunk.data(), 1000);
  hash.Update(chunk.data(), chunk.size() - 1000);
  const XXH128_hash_t first = hash.Finish();
  hash.Update("y", 1);
  const XXH128_hash_t second = hash.Finish();
  EXPECT_TRUE(XXH128_isEqual(first, XXH3_128bits(chunk.data(), chunk.size())));
  EXPECT_TRUE(XXH128_isEqual(second, XXH3_128bits("y", 1)));
  XXH128_canonical_t canonical[2];
  XXH128_canonicalFromHash(&canonical[0], first);
  XXH128_canonicalFromHash(&canonical[1], second);
  const XXH128_hash_t root = XXH3_128bits(canonical, sizeof(canonical));
  EXPECT_EQ(TreeHash({first, second}), TreeHash({root}));
  EXPECT_NE(TreeHash({second, first}), TreeHash({root}));
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

}  // namespace transfer_test
}  // namespace gpumem::internal
