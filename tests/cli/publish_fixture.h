// SPDX-License-Identifier: Apache-2.0
// For tests of publish, fetch and verify: files of random bytes, and workers beside gpumemctl.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gpumem/client.h"
#include "tests/cli/gpumemctl.h"

namespace gpumem {

inline std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PublishTest : public GpumemctlTest {
 protected:
  // A file of random bytes.
  std::string Make(const std::string& name, size_t bytes) {
    std::string content(bytes, '\0');
    std::mt19937 random(static_cast<uint32_t>(bytes));
    for (char& c : content) c = static_cast<char>(random());
    std::string path = absl::StrCat(dir_, "/", name);
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string Folder(const std::string& name) {
    std::string path = absl::StrCat(dir_, "/", name);
    std::filesystem::create_directory(path);
    return path;
  }
  std::unique_ptr<Client> Connect() {
    auto client = Client::Connect({.runtime_dir = dir_});
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  uint64_t SegmentsThere() {
    return Run({"segments", "--json"}).AsJson().value("segments", nlohmann::json::array()).size();
  }
};

}  // namespace gpumem
