// SPDX-License-Identifier: Apache-2.0
// A process that can open few files more, or none.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "common/unique_fd.h"

namespace gpumem::testing {

// While it lives, this process has `left` descriptors left. Of the whole process: not for tests
// with threads that open files meanwhile.
class DescriptorsLeft {
 public:
  explicit DescriptorsLeft(rlim_t left) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<UniqueFd> free;  // the lowest free numbers
    for (rlim_t i = 0; i <= left; ++i) free.emplace_back(dup(STDIN_FILENO));
    const rlimit few = {static_cast<rlim_t>(free.back().get()), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~DescriptorsLeft() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_ = {};
};

}  // namespace gpumem::testing
