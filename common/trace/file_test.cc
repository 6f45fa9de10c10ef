// SPDX-License-Identifier: Apache-2.0
#include "common/trace/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "common/trace/reader.h"
#include "common/trace/span.h"

namespace gpumem::trace {
namespace {

std::string NewPath(const std::string& name) {
  const std::string path = testing::TempDir() + "/" + name + "." + std::to_string(getpid());
  unlink(path.c_str());
  return path;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

Reader ReadAll(const std::string& path) {
  const std::string contents = Contents(path);
  Reader reader;
  const absl::StatusOr<size_t> read = reader.Add(contents);
  EXPECT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read.value_or(0), contents.size());
  return reader;
}

TEST(FileTraceTest, WritesWhatIsRecordedUntilItEnds) {
  const std::string path = NewPath("spans");
  {
    auto trace = FileTrace::Open(path);
    ASSERT_TRUE(trace.ok()) << trace.status();
    const Span span("written");
  }
  { const Span span("not written"); }
  const Reader reader = ReadAll(path);
  ASSERT_EQ(reader.slices().size(), 1u);
  EXPECT_EQ(reader.slices()[0].name, "written");
  EXPECT_FALSE(reader.slices()[0].daemon);
  struct stat file = {};
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

TEST(FileTraceTest, AppendsToAFile) {
  const std::string path = NewPath("appended");
  for (int i = 0; i < 2; ++i) {
    auto trace = FileTrace::Open(path);
    ASSERT_TRUE(trace.ok()) << trace.status();
    const Span span("span");
  }
  EXPECT_EQ(ReadAll(path).slices().size(), 2u);
}

TEST(FileTraceTest, MakesAFileInAFolder) {
  const std::string folder = NewPath("folder");
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  { ASSERT_TRUE(FileTrace::Open(folder).ok()); }
  EXPECT_TRUE(
      ReadAll(folder + "/gpumem-" + std::to_string(getpid()) + ".pftrace").slices().empty());
}

TEST(FileTraceTest, StopsAtItsBound) {
  const std::string path = NewPath("bounded");
  constexpr size_t kBytes = 100'000;
  {
    auto trace = FileTrace::Open(path, kBytes);
    ASSERT_TRUE(trace.ok()) << trace.status();
    while (IsOn()) const Span span("span");
  }
  // The rest says how many are missing.
  EXPECT_LE(Contents(path).size(), kBytes + 1000);
  EXPECT_GT(ReadAll(path).dropped(), 0u);
}

TEST(FileTraceTest, SaysWhatIsWrong) {
  const absl::Status status = FileTrace::Open("/nonexistent/spans").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "GPUMEM_TRACE_FILE: cannot write to /nonexistent/spans: No such file or directory");
  EXPECT_FALSE(IsOn());
}

TEST(FileTraceTest, EnvironmentsFileIsWrittenAtTheEndOfTheProcess) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "in a forked process the thread sanitizer does not know the parent's threads";
#endif
  const std::string path = NewPath("environment");
  const pid_t child = fork();
  if (child == 0) {
    setenv(kFileVariable, path.c_str(), 1);
    const bool ok = TraceToFileOfEnvironment().ok() && TraceToFileOfEnvironment().ok();
    { const Span span("parent"); }
    // A process that it forks neither writes nor waits.
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      { const Span span("child"); }
      exit(IsOn() ? 1 : 0);
    }
    int status = 1;
    waitpid(grandchild, &status, 0);
    exit(ok && status == 0 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const Reader reader = ReadAll(path);
  ASSERT_EQ(reader.slices().size(), 1u);
  EXPECT_EQ(reader.slices()[0].name, "parent");
}

}  // namespace
}  // namespace gpumem::trace
