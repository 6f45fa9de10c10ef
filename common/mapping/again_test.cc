// SPDX-License-Identifier: Apache-2.0
// Memory that is mapped more than once in one process.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "common/mapping/mapping.h"
#include "common/unique_fd.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace again_test {

constexpr uint64_t kBytes = 2 << 20;

char* Bytes(const std::unique_ptr<Mapping>& mapping) { return static_cast<char*>(mapping->data()); }

// Three segments that begin with 'a', 'b' and 'c'. Their descriptors are closed.
class MapHostAgainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (char first = 'a'; first <= 'c'; ++first) {
      const UniqueFd fd(memfd_create("again", MFD_CLOEXEC));
      ASSERT_EQ(ftruncate(fd.get(), kBytes), 0);
      absl::StatusOr<Mappings> mapped = MapHost({{fd.get(), kBytes}}, {});
      ASSERT_TRUE(mapped.ok()) << mapped.status();
      *Bytes(mapped->front()) = first;
      mappings_.push_back(std::move(mapped->front()));
    }
  }
  std::vector<const Mapping*> All() const {
    std::vector<const Mapping*> all;
    for (const std::unique_ptr<Mapping>& mapping : mappings_) all.push_back(mapping.get());
    return all;
  }

  Mappings mappings_;
};

TEST_F(MapHostAgainTest, ItIsTheSameMemoryInOneRange) {
  absl::StatusOr<Mappings> again = MapHostAgain(All(), {});
  ASSERT_TRUE(again.ok()) << again.status();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Bytes((*again)[i]), Bytes(again->front()) + i * kBytes);
    EXPECT_EQ(*Bytes((*again)[i]), static_cast<char>('a' + i));
    Bytes((*again)[i])[1] = 'x';
    EXPECT_EQ(Bytes(mappings_[i])[1], 'x');
  }
}

TEST_F(MapHostAgainTest, EachKeepsTheMemoryAlone) {
  absl::StatusOr<Mappings> again = MapHostAgain(All(), {});
  ASSERT_TRUE(again.ok()) << again.status();
  mappings_.clear();
  EXPECT_EQ(*Bytes((*again)[1]), 'b');
  absl::StatusOr<Mappings> third = MapHostAgain({(*again)[1].get()}, {});
  ASSERT_TRUE(third.ok()) << third.status();
  again->clear();
  EXPECT_EQ(*Bytes(third->front()), 'b');
}

TEST_F(MapHostAgainTest, OtherMemoryTakesTheAddressesAndGivesThemBack) {
  char* const place = Bytes(mappings_[0]);
  absl::StatusOr<Mappings> kept = MapHostAgain({mappings_[0].get()}, {});
  ASSERT_TRUE(kept.ok()) << kept.status();
  for (const Mapping* memory : {mappings_[1].get(), mappings_[2].get(), kept->front().get()}) {
    absl::StatusOr<Reserved> reserved = Detach(mappings_[0]);
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    EXPECT_DEATH(*place = 'x', "");
    absl::StatusOr<Mappings> mapped = MapHostAgain({memory}, reserved->options);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    mappings_[0] = std::move(mapped->front());
    EXPECT_EQ(mappings_[0]->data(), place);
    EXPECT_EQ(*place, *static_cast<char*>(memory->data()));
  }
}

TEST_F(MapHostAgainTest, TheOptionsSayWhoMayWrite) {
  absl::StatusOr<Mappings> again = MapHostAgain({mappings_[0].get()}, {.read_only = true});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*Bytes(again->front()), 'a');
  EXPECT_DEATH(*Bytes(again->front()) = 'x', "");
  absl::StatusOr<Mappings> writable = MapHostAgain({again->front().get()}, {});
  ASSERT_TRUE(writable.ok()) << writable.status();
  *Bytes(writable->front()) = 'x';
  EXPECT_EQ(*Bytes(mappings_[0]), 'x');
}

TEST_F(MapHostAgainTest, OnlySharedMemoryAndAtLeastOne) {
  EXPECT_EQ(MapHostAgain({}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mmap(mappings_[2]->data(), kBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            mappings_[2]->data());
  EXPECT_EQ(MapHostAgain(All(), {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*Bytes(mappings_[0]), 'a');
}

TEST(MapCudaAgain, RefusesAnEmptyList) { EXPECT_FALSE(MapCudaAgain({}, {}).ok()); }

}  // namespace again_test
}  // namespace gpumem
