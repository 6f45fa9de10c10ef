// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/device_plugin/preferred.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace gpumem::kubernetes {
namespace preferred_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::vector<std::string> Units(const std::string& gpu, uint32_t begin, uint32_t end) {
  std::vector<std::string> ids;
  for (uint32_t number = begin; number < end; ++number) ids.push_back(IdOf({gpu, kGiB, number}));
  return ids;
}

std::vector<std::string> Both(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(PreferredUnitsTest, TheGpuWithTheFewestOfEnoughUnitsIsChosen) {
  const auto available = Both(Both(Units("a", 0, 10), Units("b", 4, 8)), Units("c", 0, 3));
  EXPECT_EQ(*PreferredUnits(available, {}, 4), Units("b", 4, 8));
  EXPECT_EQ(*PreferredUnits(available, {}, 3), Units("c", 0, 3));
  EXPECT_EQ(*PreferredUnits(available, {}, 5), Units("a", 0, 5));
  EXPECT_THAT(*PreferredUnits(available, {}, 0), IsEmpty());
  EXPECT_EQ(*PreferredUnits(available, {}, 12), Both(Units("a", 0, 10), Units("c", 0, 2)));
  EXPECT_EQ(*PreferredUnits(available, Units("b", 4, 5), 3), Units("b", 4, 7)) << "it is begun";
}

TEST(PreferredUnitsTest, RequestsThatMakeNoSenseAreRefused) {
  const auto refused = [](const std::vector<std::string>& available,
                          const std::vector<std::string>& required, size_t size) {
    return absl::IsInvalidArgument(PreferredUnits(available, required, size).status());
  };
  EXPECT_TRUE(refused(Units("a", 0, 2), {}, 3));
  EXPECT_TRUE(refused(Units("a", 0, 2), Units("a", 0, 2), 1));
  EXPECT_TRUE(refused(Both(Units("a", 0, 2), Units("a", 1, 2)), {}, 1)) << "twice";
  EXPECT_TRUE(refused(Units("a", 0, 2), Both(Units("a", 0, 1), Units("a", 0, 1)), 2));
  EXPECT_TRUE(refused({"GPU-0"}, {}, 1));
  EXPECT_TRUE(refused(Units("a", 0, 2), {"x"}, 1));
}

// The least number of GPUs that `size` units of these take, those of `begun` included.
size_t FewestGpus(const std::map<std::string, std::set<uint32_t>>& free,
                  const std::set<std::string>& begun, size_t size) {
  std::vector<std::string> gpus;
  for (const auto& [gpu, numbers] : free) gpus.push_back(gpu);
  size_t fewest = gpus.size() + begun.size() + 1;
  for (size_t chosen = 0; chosen < size_t{1} << gpus.size(); ++chosen) {
    size_t units = 0;
    std::set<std::string> used = begun;
    for (size_t i = 0; i < gpus.size(); ++i) {
      if ((chosen >> i & 1) == 0) continue;
      units += free.at(gpus[i]).size();
      used.insert(gpus[i]);
    }
    if (units >= size) fewest = std::min(fewest, used.size());
  }
  return fewest;
}

TEST(PreferredUnitsTest, AgreesWithAModel) {
  std::mt19937_64 random(7);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (int round = 0; round < 20'000; ++round) {
    std::map<std::string, std::set<uint32_t>> free;
    std::vector<std::string> available, required;
    std::set<std::string> begun;
    for (size_t gpu = 1 + below(4); gpu > 0; --gpu) {
      const std::string name = absl::StrCat("g", gpu);
      for (uint32_t number = 0; number < 6; ++number) {
        const std::string id = IdOf({name, kGiB, number});
        const size_t what = below(5);
        if (what == 0 && below(3) == 0) {
          required.push_back(id);
          begun.insert(name);
          if (below(2) == 0) available.push_back(id);  // the kubelet does so
        } else if (what < 3) {
          available.push_back(id);
          free[name].insert(number);
        }
      }
    }
    std::shuffle(available.begin(), available.end(), random);
    size_t left = 0;
    for (const auto& [gpu, numbers] : free) left += numbers.size();
    const size_t size = required.size() + (left == 0 ? 0 : below(left + 1));
    const size_t more = size - required.size();
    const auto chosen = PreferredUnits(available, required, size);
    ASSERT_TRUE(chosen.ok()) << chosen.status();

    const std::set<std::string> distinct(chosen->begin(), chosen->end());
    ASSERT_EQ(distinct.size(), size);
    std::set<std::string> used;
    for (const std::string& id : distinct) {
      const bool known = std::find(available.begin(), available.end(), id) != available.end() ||
                         std::find(required.begin(), required.end(), id) != required.end();
      ASSERT_TRUE(known) << id;
      used.insert(ParseId(id)->uuid);
    }
    for (const std::string& id : required) ASSERT_TRUE(distinct.contains(id));
    const size_t fewest = more == 0 ? begun.size() : FewestGpus(free, begun, more);
    ASSERT_EQ(used.size(), fewest);
    // If one GPU has all, none with fewer units had them.
    if (required.empty() && used.size() == 1) {
      for (const auto& [gpu, numbers] : free) {
        if (numbers.size() < more) continue;
        ASSERT_GE(numbers.size(), free.at(*used.begin()).size());
      }
    }
    std::shuffle(available.begin(), available.end(), random);
    ASSERT_EQ(*PreferredUnits(available, required, size), *chosen) << "in any order";
  }
}

UnitList TwoGpus() {
  return {.step = kGiB, .gpus = {{"GPU-a", {.count = 4}}, {"GPU-b", {.count = 4}}}};
}

TEST(GrantTest, AContainerGetsItsGpusAndTheSockets) {
  const GrantOptions options = {.runtime_dir = "/srv/gpumem"};
  const auto ids = Both(Units("GPU-b", 0, 2), Units("GPU-a", 3, 4));
  const auto grant = GrantOf(ids, TwoGpus(), options);
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_EQ(grant->host_path, "/srv/gpumem");
  EXPECT_EQ(grant->container_path, "/run/gpumem");
  EXPECT_THAT(grant->cdi_devices, ElementsAre("nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"));
  EXPECT_THAT(grant->environment, UnorderedElementsAre(Pair("GPUMEM_RUNTIME_DIR", "/run/gpumem"),
                                                       Pair("NVIDIA_VISIBLE_DEVICES", "void")));
}

TEST(GrantTest, OptionsSayHowGpusComeIntoContainers) {
  GrantOptions options = {.runtime_dir = "/run/gpumem", .gpu_kind = "", .visible_devices = true};
  const auto ids = Both(Units("GPU-b", 0, 2), Units("GPU-a", 3, 4));
  auto grant = GrantOf(ids, TwoGpus(), options);
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_THAT(grant->cdi_devices, IsEmpty());
  EXPECT_EQ(grant->environment["NVIDIA_VISIBLE_DEVICES"], "GPU-a,GPU-b");
  options.visible_devices = false;
  grant = GrantOf(ids, TwoGpus(), options);
  EXPECT_FALSE(grant->environment.contains("NVIDIA_VISIBLE_DEVICES"));
}

TEST(GrantTest, OtherUnitsAreRefused) {
  const GrantOptions options = {.runtime_dir = "/run/gpumem"};
  const auto code = [&](const std::vector<std::string>& ids) {
    return GrantOf(ids, TwoGpus(), options).status().code();
  };
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"GPU-a"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Both(Units("GPU-a", 0, 1), Units("GPU-a", 0, 1))),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Units("GPU-a", 3, 5)), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(Units("GPU-c", 0, 1)), absl::StatusCode::kNotFound);
  EXPECT_EQ(code({IdOf({"GPU-a", 256 * kMiB, 0})}), absl::StatusCode::kNotFound) << "another step";
}

TEST(GrantTest, OneGpuIsEnoughIfTheSiteSaysSo) {
  const GrantOptions options = {.runtime_dir = "/run/gpumem", .one_gpu = true};
  EXPECT_TRUE(GrantOf(Units("GPU-a", 0, 4), TwoGpus(), options).ok());
  const auto grant = GrantOf(Both(Units("GPU-a", 0, 2), Units("GPU-b", 0, 2)), TwoGpus(), options);
  EXPECT_TRUE(absl::IsFailedPrecondition(grant.status())) << grant.status();
  EXPECT_THAT(std::string(grant.status().message()), HasSubstr("no GPU of this node has 4 free"));
  EXPECT_TRUE(GrantOf(Both(Units("GPU-a", 0, 2), Units("GPU-b", 0, 3)), TwoGpus(), options).ok())
      << "more than a GPU has";
}

}  // namespace preferred_test
}  // namespace gpumem::kubernetes
