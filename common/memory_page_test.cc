// SPDX-License-Identifier: Apache-2.0
#include "common/memory_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gpumem {
namespace {

class MemoryPageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto writer = MemoryPageWriter::Make();
    if (absl::IsUnimplemented(writer.status())) GTEST_SKIP() << writer.status();
    ASSERT_TRUE(writer.ok()) << writer.status();
    writer_ = *std::move(writer);
  }
  UniqueFd Copy() const { return UniqueFd(::fcntl(writer_->fd(), F_DUPFD_CLOEXEC, 0)); }
  std::unique_ptr<MemoryPageReader> Reader() const {
    auto reader = MemoryPageReader::Open(Copy());
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *std::move(reader) : nullptr;
  }

  std::unique_ptr<MemoryPageWriter> writer_;
};

TEST_F(MemoryPageTest, IsReadAsItWasWritten) {
  const auto reader = Reader();
  EXPECT_EQ(reader->Read(0), std::nullopt) << "nothing is written yet";
  const std::vector<MemoryFigures> figures = {{10, 7}, {20, 0}};
  EXPECT_TRUE(writer_->Write(figures));
  EXPECT_FALSE(writer_->Write(figures)) << "the same";
  EXPECT_EQ(reader->Read(0), figures[0]);
  EXPECT_EQ(reader->Read(1), figures[1]);
  EXPECT_EQ(reader->Read(2), std::nullopt);
  EXPECT_EQ(reader->Read(size_t{1} << 40), std::nullopt);
  EXPECT_TRUE(writer_->Write({figures.data(), 1}));
  EXPECT_EQ(reader->Read(1), std::nullopt);
  EXPECT_TRUE(writer_->Write(std::vector<MemoryFigures>(1000, {5, 4})));
  EXPECT_EQ(reader->Read(MemoryPageLayout::kDevices - 1), (MemoryFigures{5, 4}));
}

TEST_F(MemoryPageTest, IsClosedWithItsWriter) {
  const auto reader = Reader();
  const UniqueFd copy = Copy();
  EXPECT_TRUE(writer_->Write(std::vector<MemoryFigures>{{10, 7}}));
  writer_.reset();
  EXPECT_EQ(reader->Read(0), std::nullopt);
  EXPECT_FALSE(MemoryPageReader::Open(copy).ok());
}

TEST_F(MemoryPageTest, NoOtherOwnerCanWriteOrResizeIt) {
  EXPECT_TRUE(writer_->Write(std::vector<MemoryFigures>{{10, 7}}));
  const std::string path = absl::StrCat("/proc/self/fd/", writer_->fd());
  const UniqueFd copy = Copy(), again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  for (const UniqueFd* fd : {&copy, &again}) {
    if (!fd->valid()) continue;  // it could not even be opened
    char byte = 1;
    EXPECT_EQ(::pwrite(fd->get(), &byte, 1, 0), -1);
    EXPECT_EQ(::ftruncate(fd->get(), 0), -1);
    EXPECT_EQ(::ftruncate(fd->get(), 1 << 20), -1);
    EXPECT_EQ(::fallocate(fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0), MAP_FAILED);
    void* const mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd->get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_EQ(::mprotect(mapped, 4096, PROT_READ | PROT_WRITE), -1);
    EXPECT_NE(::madvise(mapped, 4096, MADV_REMOVE), 0);
    ::munmap(mapped, 4096);
    EXPECT_EQ(::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  }
  EXPECT_EQ(Reader()->Read(0), (MemoryFigures{10, 7}));
}

TEST_F(MemoryPageTest, OtherDescriptorsAreRefused) {
  EXPECT_FALSE(MemoryPageReader::Open(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC))).ok());
  const UniqueFd shrinks(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(shrinks.get(), 4096), 0);
  EXPECT_FALSE(MemoryPageReader::Open(shrinks).ok());
}

TEST_F(MemoryPageTest, ReadersNeverSeeHalfAWrite) {
  const auto reader = Reader();
  EXPECT_TRUE(writer_->Write(std::vector<MemoryFigures>{{0, 0}}));
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> torn = 0, backward = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      uint64_t last = 0;
      while (!stop) {
        const auto read = reader->Read(0);
        if (!read) continue;
        torn += read->limit_bytes != read->free_bytes ? 1 : 0;
        backward += read->limit_bytes < last ? 1 : 0;
        last = read->limit_bytes;
      }
    });
  }
  for (uint64_t i = 1; i <= 200'000; ++i) writer_->Write(std::vector<MemoryFigures>{{i, i}});
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(backward, 0u);
}

}  // namespace
}  // namespace gpumem
