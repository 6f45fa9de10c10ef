// SPDX-License-Identifier: Apache-2.0
#include "common/mapping/mapping.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cuda/device_copy.h"
#include "common/cuda/driver.h"
#include "common/unique_fd.h"

namespace gpumem {
namespace {

using absl::StatusCode;

constexpr uint64_t kBytes = 1 << 20;

UniqueFd Memfd(uint64_t bytes = kBytes) {
  UniqueFd fd(memfd_create("mapping-test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

// Of this process, in pages.
uint64_t MappedPages() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

bool IsMapped(const void* address) {
  return msync(const_cast<void*>(address), 1, MS_ASYNC) == 0;  // else ENOMEM
}

// Where nothing is mapped, a multiple of 2 MiB.
void* FreeAddress() {
  constexpr uintptr_t kMultiple = 2 << 20;
  // The kernel fills a hole from its end, so other threads do not get here.
  constexpr size_t kRoom = 1 << 30;
  void* const range = mmap(nullptr, kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(range, MAP_FAILED);
  munmap(range, kRoom);
  const auto begin = reinterpret_cast<uintptr_t>(range);
  return reinterpret_cast<void*>((begin + kMultiple - 1) / kMultiple * kMultiple);
}

char* Bytes(const std::unique_ptr<Mapping>& mapping) { return static_cast<char*>(mapping->data()); }

TEST(MapHost, TwoMappingsOfOneDescriptorAreTheSameMemory) {
  const UniqueFd fd = Memfd();
  const absl::StatusOr<Mappings> one = MapHost({{fd.get(), kBytes}}, {});
  const absl::StatusOr<Mappings> two = MapHost({{fd.get(), kBytes}}, {});
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->front()->size(), kBytes);
  Bytes(one->front())[kBytes - 1] = 'x';
  EXPECT_EQ(Bytes(two->front())[kBytes - 1], 'x');
}

TEST(MapHost, TheDescriptorMayBeClosed) {
  UniqueFd fd = Memfd();
  const absl::StatusOr<Mappings> mapped = MapHost({{fd.get(), kBytes}}, {});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  fd.reset();
  Bytes(mapped->front())[0] = 'x';
  EXPECT_EQ(Bytes(mapped->front())[0], 'x');
}

TEST(MapHost, ManyFollowOneAnotherAndAreUnmappedOneByOne) {
  const UniqueFd a = Memfd(kBytes), b = Memfd(2 * kBytes), c = Memfd(kBytes);
  absl::StatusOr<Mappings> mapped =
      MapHost({{a.get(), kBytes}, {b.get(), 2 * kBytes}, {c.get(), kBytes}}, {});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  ASSERT_EQ(mapped->size(), 3u);
  char* const base = Bytes(mapped->front());
  EXPECT_EQ(Bytes((*mapped)[1]), base + kBytes);
  EXPECT_EQ(Bytes((*mapped)[2]), base + 3 * kBytes);
  memset(base, 'y', 4 * kBytes);
  (*mapped)[1].reset();
  EXPECT_TRUE(IsMapped(base));
  EXPECT_FALSE(IsMapped(base + kBytes));
  EXPECT_FALSE(IsMapped(base + 3 * kBytes - 1));
  EXPECT_TRUE(IsMapped(base + 3 * kBytes));
  EXPECT_EQ(base[3 * kBytes], 'y');
  mapped->clear();
  EXPECT_FALSE(IsMapped(base));
  EXPECT_FALSE(IsMapped(base + 3 * kBytes));
}

TEST(MapHost, ReadOnlyMappingsCannotBeWritten) {
  const UniqueFd fd = Memfd();
  const absl::StatusOr<Mappings> mapped = MapHost({{fd.get(), kBytes}}, {.read_only = true});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(Bytes(mapped->front())[0], 0);
  EXPECT_DEATH(Bytes(mapped->front())[0] = 'x', "");
}

TEST(MapHost, AFailureInTheMiddleLeavesNothingMapped) {
  const UniqueFd good = Memfd();
  // Passes every check until the kernel is asked for a writable mapping.
  const UniqueFd unwritable(
      open(absl::StrCat("/proc/self/fd/", good.get()).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(unwritable.valid());
  const MapRequest requests[] = {
      {good.get(), kBytes}, {unwritable.get(), kBytes}, {good.get(), kBytes}};
  ASSERT_TRUE(MapHost(requests, {.read_only = true}).ok());
  const uint64_t before = MappedPages();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(MapHost(requests, {}).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_LT(MappedPages(), before + kBytes / 4096);  // the heap may have grown
}

TEST(MapHost, RefusesWhatIsNoSharedMemoryOfThatSize) {
  const UniqueFd fd = Memfd();
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const MapRequest bad[] = {
      {-1, kBytes},           {1000000, kBytes},
      {null.get(), kBytes},   {fd.get(), 0},
      {fd.get(), kBytes - 1}, {fd.get(), 2 * kBytes},
      {fd.get(), kBytes / 2}, {fd.get(), uint64_t{1} << 63},
  };
  for (const MapRequest& request : bad) {
    EXPECT_EQ(MapHost({{fd.get(), kBytes}, request}, {}).status().code(),
              StatusCode::kInvalidArgument)
        << request.fd << " " << request.bytes;
  }
  EXPECT_EQ(MapHost({}, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(MapHost, SaysWhenAddressesRunOut) {
  constexpr uint64_t kHuge = uint64_t{1} << 46;  // a process has 2^47 in all
  const UniqueFd fd = Memfd(kHuge);
  const std::vector<MapRequest> requests(4, MapRequest{fd.get(), kHuge});
  EXPECT_EQ(MapHost(requests, {}).status().code(), StatusCode::kResourceExhausted);
}

TEST(MapHost, GoesToAWishedAddressThatIsFree) {
  const UniqueFd a = Memfd(), b = Memfd();
  void* const wished = FreeAddress();
  absl::StatusOr<Mappings> mapped =
      MapHost({{a.get(), kBytes}, {b.get(), kBytes}}, {.address = wished});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(mapped->front()->data(), wished);
  EXPECT_EQ(Bytes((*mapped)[1]), static_cast<char*>(wished) + kBytes);
  Bytes(mapped->front())[0] = 'x';

  // The existing mapping stays.
  EXPECT_EQ(MapHost({{b.get(), kBytes}}, {.address = wished}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(Bytes(mapped->front())[0], 'x');
  mapped->clear();
  EXPECT_TRUE(MapHost({{b.get(), kBytes}}, {.address = wished}).ok());
}

TEST(MapHost, RefusesOptionsThatMakeNoSense) {
  const UniqueFd fd = Memfd();
  char* const wished = static_cast<char*>(FreeAddress());
  EXPECT_EQ(MapHost({{fd.get(), kBytes}}, {.address = wished + 4096}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(MapHost({{fd.get(), kBytes}}, {.device_uuids = {"GPU-0"}}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(MapHost, HugePagesGoWhereTheyCan) {
  constexpr uint64_t kHuge = 2 << 20;
  const UniqueFd fd(memfd_create("mapping-test", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!fd.valid() || ftruncate(fd.get(), kHuge) != 0 || fallocate(fd.get(), 0, 0, kHuge) != 0) {
    GTEST_SKIP() << "this machine has no free huge pages";
  }
  const absl::StatusOr<Mappings> mapped = MapHost({{fd.get(), kHuge}}, {});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapped->front()->data()) % kHuge, 0u);
  memset(mapped->front()->data(), 'x', kHuge);
}

TEST(Detach, TheAddressesStayReservedAndAreMappedAgain) {
  const UniqueFd a = Memfd(kBytes), b = Memfd(2 * kBytes), c = Memfd(kBytes);
  absl::StatusOr<Mappings> mapped =
      MapHost({{a.get(), kBytes}, {b.get(), 2 * kBytes}, {c.get(), kBytes}}, {});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  char* const base = Bytes(mapped->front());
  memset(base, 'y', 4 * kBytes);
  absl::StatusOr<Reserved> reserved = Detach((*mapped)[1]);
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_EQ((*mapped)[1], nullptr);
  EXPECT_EQ(reserved->bytes, 2 * kBytes);
  EXPECT_EQ(reserved->options.address, base + kBytes);
  EXPECT_FALSE(reserved->options.read_only);
  EXPECT_TRUE(IsMapped(base + kBytes)) << "the reservation";
  EXPECT_DEATH(base[kBytes] = 'x', "");
  EXPECT_EQ(base[kBytes - 1], 'y') << "the parts beside it";
  EXPECT_EQ(base[3 * kBytes], 'y');

  const UniqueFd other = Memfd(2 * kBytes);
  ASSERT_EQ(pwrite(other.get(), "z", 1, 0), 1);
  absl::StatusOr<Mappings> again = MapHost({{other.get(), 2 * kBytes}}, reserved->options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->front()->data(), base + kBytes);
  EXPECT_EQ(base[kBytes], 'z');
  // The mapping keeps the addresses, and returns them with the reservation.
  *reserved = {};
  mapped->clear();
  EXPECT_EQ(base[kBytes], 'z');
  again->clear();
  EXPECT_FALSE(IsMapped(base + kBytes));
}

TEST(Detach, AFailedMappingKeepsTheReservationAndReadOnlyStaysReadOnly) {
  const UniqueFd fd = Memfd();
  absl::StatusOr<Mappings> mapped = MapHost({{fd.get(), kBytes}}, {.read_only = true});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  char* const base = Bytes(mapped->front());
  absl::StatusOr<Reserved> reserved = Detach(mapped->front());
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  const UniqueFd unreadable(open(absl::StrCat("/proc/self/fd/", fd.get()).c_str(), O_WRONLY));
  ASSERT_TRUE(unreadable.valid());
  EXPECT_EQ(MapHost({{unreadable.get(), kBytes}}, reserved->options).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(IsMapped(base)) << "the reservation";
  EXPECT_DEATH(EXPECT_EQ(*base, 0), "");
  absl::StatusOr<Mappings> again = MapHost({{fd.get(), kBytes}}, reserved->options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*base, 0);
  EXPECT_DEATH(*base = 'x', "");
  // And once more, without another mapping: the end of the reservation returns the addresses.
  reserved = Detach(again->front());
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  *reserved = {};
  EXPECT_FALSE(IsMapped(base));
}

TEST(Detach, OtherKindsOfMappingsAreRefusedAndStay) {
  if (!CudaDriver::Get().ok()) GTEST_SKIP() << "host memory is not registered without a driver";
  const UniqueFd fd = Memfd();
  absl::StatusOr<Mappings> pinned = MapPinned({{fd.get(), kBytes}}, {});
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(Detach(pinned->front()).status().code(), StatusCode::kUnimplemented);
  Bytes(pinned->front())[0] = 'x';
}

// Some mapped in a range of addresses, and room in it.
class MoveHostTest : public testing::Test {
 protected:
  static constexpr uint64_t kStep = 2 << 20;

  void SetUp() override {
    auto range = ReserveHostAddresses(16 * kStep);
    ASSERT_TRUE(range.ok()) << range.status();
    range_ = *range;
    for (const uint64_t bytes : {kStep, 2 * kStep, kStep}) {
      const UniqueFd fd = Memfd(bytes);
      auto mapped =
          MapHost({{fd.get(), bytes}}, {.address = At(2 * mappings_.size()), .range = range_});
      ASSERT_TRUE(mapped.ok()) << mapped.status();
      mappings_.push_back(std::move(mapped->front()));
      memset(mappings_.back()->data(), static_cast<int>('a' + mappings_.size()), bytes);
    }
  }
  char* At(uint64_t steps) const { return reinterpret_cast<char*>(range_->base() + steps * kStep); }
  // No other mapping gets addresses of the range.
  void ExpectReserved() const {
    for (uint64_t i = 0; i < 16; ++i) EXPECT_TRUE(IsMapped(At(i))) << i;
  }

  std::shared_ptr<const AddressRange> range_;
  Mappings mappings_;
};

TEST_F(MoveHostTest, MemoryGoesElsewhereWithAllThatIsInIt) {
  ASSERT_EQ(MoveHost({mappings_[2].get(), mappings_[1].get()}, range_, At(8)), absl::OkStatus());
  EXPECT_EQ(mappings_[2]->data(), At(8));
  EXPECT_EQ(mappings_[1]->data(), At(9));
  EXPECT_EQ(std::string(At(8), kStep), std::string(kStep, 'd'));
  EXPECT_EQ(std::string(At(9), 2 * kStep), std::string(2 * kStep, 'c'));
  EXPECT_EQ(*At(0), 'b') << "what was not moved";
  ExpectReserved();
  EXPECT_DEATH(*At(2) = 'x', "");
  // Where they were there is room again.
  ASSERT_EQ(MoveHost({mappings_[1].get()}, range_, At(3)), absl::OkStatus());
  EXPECT_EQ(std::string(At(3), 2 * kStep), std::string(2 * kStep, 'c'));
  mappings_.clear();
  ExpectReserved();
  char* const base = At(0);
  range_.reset();
  EXPECT_FALSE(IsMapped(base));
}

TEST_F(MoveHostTest, IntoARangeFromOutside) {
  const UniqueFd fd = Memfd();
  auto mapped = MapHost({{fd.get(), kBytes}}, {.read_only = true});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const void* const before = mapped->front()->data();
  ASSERT_EQ(MoveHost({mapped->front().get()}, range_, At(8)), absl::OkStatus());
  EXPECT_FALSE(IsMapped(before));
  EXPECT_EQ(*At(8), 0);
  EXPECT_DEATH(*At(8) = 'x', "") << "it was read-only";
}

TEST_F(MoveHostTest, AllOrNone) {
  // Shared memory is what it can move.
  void* const anonymous = mmap(mappings_[1]->data(), 2 * kStep, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  ASSERT_EQ(anonymous, mappings_[1]->data());
  EXPECT_EQ(MoveHost({mappings_[2].get(), mappings_[1].get()}, range_, At(8)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(mappings_[2]->data(), At(4));
  EXPECT_EQ(*At(4), 'd');
  ExpectReserved();
  EXPECT_DEATH(*At(8) = 'x', "") << "nothing is mapped there";
}

TEST(MapPinned, IsSharedMemoryWhereverItIsMapped) {
  const UniqueFd fd = Memfd();
  const absl::StatusOr<Mappings> pinned = MapPinned({{fd.get(), kBytes}}, {});
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->front()->registered(), CudaDriver::Get().ok());
  const absl::StatusOr<Mappings> plain = MapHost({{fd.get(), kBytes}}, {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->front()->registered());
  Bytes(pinned->front())[7] = 'x';
  EXPECT_EQ(Bytes(plain->front())[7], 'x');
}

TEST(MapPinned, GoesToAWishedAddressAndUnmaps) {
  const UniqueFd fd = Memfd();
  void* const wished = FreeAddress();
  absl::StatusOr<Mappings> pinned =
      MapPinned({{fd.get(), kBytes}}, {.read_only = true, .address = wished});
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->front()->data(), wished);
  EXPECT_DEATH(Bytes(pinned->front())[0] = 'x', "");
  pinned->clear();
  EXPECT_FALSE(IsMapped(wished));
}

TEST(MapPinned, SaysWhenTheNamedGpusCannotUseIt) {
  const UniqueFd fd = Memfd();
  EXPECT_EQ(MapPinned({{fd.get(), kBytes}}, {.device_uuids = {"GPU-0"}}).status().code(),
            CudaDriver::Get().ok() ? StatusCode::kNotFound : StatusCode::kUnavailable);
  EXPECT_EQ(MapPinned({}, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(MapCuda, RefusesNonsenseAndUnknownDevices) {
  EXPECT_EQ(MapCuda({{0, kBytes}}, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(MapCuda({}, {.device_uuids = {"GPU-0"}}).ok());
  const UniqueFd fd = Memfd();
  // NOT_FOUND where there is a driver.
  EXPECT_THAT(MapCuda({{fd.get(), kBytes}}, {.device_uuids = {"GPU-0"}}).status().code(),
              testing::AnyOf(StatusCode::kUnavailable, StatusCode::kNotFound));
}

TEST(DeviceCopier, CopiesToAndFromMappedHostMemory) {
  const UniqueFd fd = Memfd();
  const absl::StatusOr<Mappings> mapped = MapHost({{fd.get(), kBytes}}, {});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const std::unique_ptr<DeviceCopier> copier = DeviceCopier::ForHost();
  char* const data = Bytes(mapped->front());
  ASSERT_EQ(copier->Fill(data, 0xab, kBytes), absl::OkStatus());
  ASSERT_EQ(copier->CopyIn(data + 1, "xyz", 3), absl::OkStatus());
  char read[5] = "";
  ASSERT_EQ(copier->CopyOut(read, data, 5), absl::OkStatus());
  EXPECT_EQ(std::string(read, 5), "\xabxyz\xab");
}

TEST(DeviceCopier, SaysWhyThereIsNoneForADevice) {
  EXPECT_THAT(DeviceCopier::ForCuda("GPU-0").status().code(),
              testing::AnyOf(StatusCode::kUnavailable, StatusCode::kNotFound));
}

}  // namespace
}  // namespace gpumem
