// SPDX-License-Identifier: Apache-2.0
// Programs that do not know gpumem open an ipc segment by its 64 bytes and see the data.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/device_copy.h"
#include "gpumem/client.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/pattern.h"

namespace gpumem {
namespace foreign_test {

using testing::DaemonProcess;

// zlib's crc32.
uint32_t Crc32(const std::vector<uint8_t>& bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320 & -(crc & 1));
  }
  return ~crc;
}

std::string ProgramFolder() {
  const std::string program = testing::ProgramPath("gpumem_foreign");
  return program.substr(0, program.rfind('/'));
}

class Foreign : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({.backend = "cuda"});
    if (!daemon.ok()) GTEST_SKIP() << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = daemon_->Connect();
    ASSERT_OK(client);
    client_ = *std::move(client);
    auto segment = client_->Acquire({.bytes = 16 << 20, .kind = Kind::kIpc});
    ASSERT_OK(segment);
    segment_ = *std::move(segment);
    ASSERT_OK(testing::Fill(testing::MemoryOf(segment_), 5));
    std::vector<uint8_t> bytes(segment_.size());
    auto copier = DeviceCopier::ForCuda(segment_.device_uuid());
    ASSERT_OK(copier);
    ASSERT_OK((*copier)->CopyOut(bytes.data(), segment_.data(), bytes.size()));
    crc32_ = absl::StrCat(absl::Hex(Crc32(bytes), absl::kZeroPad8));
  }

  // Runs a program on the segment's device, with its handle, its size and `more`; returns its
  // output and its exit code.
  std::pair<std::string, int> Run(const std::string& program, const std::string& more = "") {
    const Handle handle = segment_.ipc_handle().value();
    const std::string hex = absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(handle.data()), handle.size()));
    const std::string command =
        absl::StrCat("CUDA_VISIBLE_DEVICES=", segment_.device_uuid(), " ", program, " ", hex, " ",
                     segment_.size(), " ", more, " 2>&1");
    FILE* output = popen(command.c_str(), "r");
    if (output == nullptr) return {"cannot run it", -1};
    std::string text;
    char part[256];
    while (fgets(part, sizeof part, output) != nullptr) text += part;
    return {text, pclose(output)};
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  Segment segment_;
  std::string crc32_;
};

TEST_F(Foreign, APlainCProgramSeesTheData) {
  const auto [text, code] = Run(testing::ProgramPath("gpumem_foreign"));
  EXPECT_EQ(code, 0);
  EXPECT_EQ(text, crc32_ + "\n");
}

// $GPUMEM_FOREIGN_PY, else as in a release.
TEST_F(Foreign, CuPyNumbaAndPyTorchSeeTheDataWhereTheyAreInstalled) {
  const char* script = std::getenv("GPUMEM_FOREIGN_PY");
  const std::string path =
      script != nullptr ? script : absl::StrCat(ProgramFolder(), "/../share/gpumem/foreign.py");
  if (std::system("python3 --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no python3 here";
  const auto [text, code] = Run("python3 " + path, crc32_);
  std::cout << text;
  EXPECT_EQ(code, 0) << text;
}

}  // namespace foreign_test
}  // namespace gpumem
