// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/copy_host.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "daemon/device/host_device.h"
#include "daemon/device/memfd.h"

namespace gpumemd {
namespace copy_host_test {

using absl::StatusCode;
using gpumem::kMiB;

// A segment in the tier, of extents that the test chooses.
class InTier : public Allocation {
 public:
  InTier(int fd, std::vector<TierExtent> extents)
      : place_{.fd = fd, .extents = std::move(extents)} {}
  const TierPlace* tier_place() const override { return &place_; }

 private:
  const TierPlace place_;
};

class CopyHost : public testing::Test {
 protected:
  CopyHost()
      : file_(*MakeSealedMemfd("tier", 16 * kMiB)),
        device_(*MakeHostDevice({.capacity_bytes = 64 * kMiB})) {}

  std::unique_ptr<Allocation> Create(uint64_t bytes) {
    return *device_->Create({.kind = Kind::kVmm, .bytes = bytes});
  }
  static void Write(int fd, uint64_t offset, const std::string& text) {
    ASSERT_EQ(pwrite(fd, text.data(), text.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(text.size()));
  }
  static std::string Read(int fd, uint64_t offset, size_t bytes) {
    std::string text(bytes, ' ');
    EXPECT_EQ(pread(fd, text.data(), bytes, static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes));
    return text;
  }

  const gpumem::UniqueFd file_;
  const std::unique_ptr<Device> device_;
};

TEST_F(CopyHost, ContentsGoOutAndComeBack) {
  const auto segment = Create(6 * kMiB);
  Write(segment->fd(), 0, "begin");
  Write(segment->fd(), 2 * kMiB - 3, "middle");
  Write(segment->fd(), 6 * kMiB - 3, "end");
  const InTier tier(file_.get(),
                    {{.offset = 8 * kMiB, .bytes = 2 * kMiB}, {.offset = 0, .bytes = 4 * kMiB}});
  const CopyItem out{.from = segment.get(), .to = &tier, .bytes = 6 * kMiB};
  ASSERT_EQ(device_->Copy({out}), absl::OkStatus());
  EXPECT_EQ(Read(file_.get(), 8 * kMiB, 5), "begin");
  EXPECT_EQ(Read(file_.get(), 10 * kMiB - 3, 3), "mid");
  EXPECT_EQ(Read(file_.get(), 0, 3), "dle");
  EXPECT_EQ(Read(file_.get(), 4 * kMiB - 3, 3), "end");

  const auto other = Create(6 * kMiB);
  Write(other->fd(), 100, "old contents");
  const CopyItem back{.from = &tier, .to = other.get(), .bytes = 6 * kMiB};
  ASSERT_EQ(device_->Copy({back}), absl::OkStatus());
  EXPECT_EQ(Read(segment->fd(), 0, 6 * kMiB), Read(other->fd(), 0, 6 * kMiB));
}

// Reads of holes would allocate their pages in a mapping.
TEST_F(CopyHost, PagesThatWereNeverWrittenStayUnallocated) {
  const auto segment = Create(4 * kMiB);
  const InTier tier(file_.get(), {{.offset = 0, .bytes = 4 * kMiB}});
  Write(file_.get(), 0, "old contents");
  ASSERT_EQ(device_->Copy({{.from = segment.get(), .to = &tier, .bytes = 4 * kMiB}}),
            absl::OkStatus());
  EXPECT_EQ(Read(file_.get(), 0, 4 * kMiB), std::string(4 * kMiB, '\0'));
  struct stat info = {};
  ASSERT_EQ(fstat(segment->fd(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
}

TEST_F(CopyHost, ManyItemsGoInOneCall) {
  std::vector<std::unique_ptr<Allocation>> segments;
  std::vector<std::unique_ptr<InTier>> tiers;
  std::vector<CopyItem> items;
  for (uint64_t i = 0; i < 4; ++i) {
    segments.push_back(Create(2 * kMiB));
    Write(segments.back()->fd(), 0, std::string(1, static_cast<char>('a' + i)));
    tiers.push_back(std::make_unique<InTier>(
        file_.get(), std::vector<TierExtent>{{.offset = (3 - i) * 2 * kMiB, .bytes = 2 * kMiB}}));
    items.push_back({.from = segments[i].get(), .to = tiers[i].get(), .bytes = 2 * kMiB});
  }
  ASSERT_EQ(device_->Copy(items), absl::OkStatus());
  EXPECT_EQ(Read(file_.get(), 0, 1), "d");
  EXPECT_EQ(Read(file_.get(), 6 * kMiB, 1), "a");
}

TEST_F(CopyHost, RefusesPairsThatDoNotFit) {
  const auto segment = Create(4 * kMiB);
  const InTier small(file_.get(), {{.offset = 0, .bytes = 2 * kMiB}});
  const InTier large(file_.get(), {{.offset = 0, .bytes = 8 * kMiB}});
  const CopyItem wrong[] = {
      {.from = segment.get(), .to = segment.get(), .bytes = 4 * kMiB},
      {.from = &small, .to = &large, .bytes = 2 * kMiB},
      {.from = segment.get(), .to = &small, .bytes = 4 * kMiB},
      {.from = segment.get(), .to = &large, .bytes = 8 * kMiB},
  };
  for (const CopyItem& item : wrong) {
    EXPECT_EQ(device_->Copy({item}).code(), StatusCode::kInvalidArgument);
  }
  // Beyond the end of a sealed segment nothing can be written.
  EXPECT_FALSE(device_->Copy({{.from = &large, .to = segment.get(), .bytes = 8 * kMiB}}).ok());
}

}  // namespace copy_host_test
}  // namespace gpumemd
