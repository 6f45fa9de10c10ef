// SPDX-License-Identifier: Apache-2.0
#include "tests/preload/run_preloaded.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

namespace gpumem::preload {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

// Makes a folder with the driver, under two names which are one file as on a real machine, and
// NVML.
std::string LibraryFolder(const std::string& folder, const std::string& driver,
                          const std::string& nvml) {
  mkdir(folder.c_str(), 0700);
  const std::pair<const char*, const std::string&> files[] = {
      {"/libcuda.so.1", driver}, {"/libcuda.so", driver}, {"/libnvidia-ml.so.1", nvml}};
  for (const auto& [name, file] : files) {
    std::string path = folder + name;
    unlink(path.c_str());
    EXPECT_EQ(symlink(file.c_str(), path.c_str()), 0);
  }
  return folder;
}

}  // namespace

std::vector<std::string> Finished::values(const std::string& key) const {
  std::vector<std::string> found;
  std::istringstream words(output);
  for (std::string word; words >> word;) {
    if (word.compare(0, key.size() + 1, key + "=") == 0)
      found.push_back(word.substr(key.size() + 1));
  }
  return found;
}

std::string Finished::value(const std::string& key) const {
  std::vector<std::string> found = values(key);
  return found.empty() ? "" : found.back();
}

std::string NameOf(const ::testing::TestParamInfo<Via>& info) {
  return info.param == Via::kInjection ? "Injection" : "Preload";
}

void PreloadTest::SetUp() {
#if !GPUMEM_PRELOAD_BUILT
  GTEST_SKIP() << "built without CUDA";
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's runtime has to be the first library";
#endif
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  state_ = std::string(::testing::TempDir()) + "/" + info->test_suite_name() + info->name();
  for (char& c : state_) {
    if (&c - state_.data() > static_cast<long>(::testing::TempDir().size()) && c == '/') c = '_';
  }
  unlink(state_.c_str());
  unlink((state_ + ".peaks").c_str());
  environment = {
      {"FAKE_CUDA_PEAKS", state_ + ".peaks"},
      {"FAKE_CUDA_MEMORY", std::to_string(4096 * kMiB)},
      {"GPUMEM_PRELOAD_ACCOUNTANT", Path("ACCOUNTANT")},
      {"GPUMEM_PRELOAD_CHUNK", std::to_string(2 * kMiB)},
      {"GPUMEM_PRELOAD_RELOCATOR", Path("RELOCATOR")},
      {"GPUMEM_TEST_LIMIT", std::to_string(256 * kMiB)},
      {"GPUMEM_TEST_STATE", state_},
      {"LD_LIBRARY_PATH", LibraryFolder(state_ + ".lib", Path("LIBCUDA"), Path("NVML"))},
      {"PATH", "/usr/bin:/bin"},
  };
}

std::string PreloadTest::Path(const std::string& name) {
  const char* path = std::getenv(("TEST_" + name).c_str());
  char resolved[PATH_MAX] = {};
  // Not through the symbolic links of runfiles: the library's own folder counts.
  if (path == nullptr || realpath(path, resolved) == nullptr) return "";
  return resolved;
}

bool PreloadTest::SkipsInjection() {
#if defined(__x86_64__)
  return false;
#else
  []() { GTEST_SKIP() << "injection is for x86-64"; }();
  return true;
#endif
}

Finished PreloadTest::Run(std::vector<std::string> arguments, Via via) {
  std::map<std::string, std::string> variables = environment;
  std::string list = preloads;
  if (via == Via::kPreload) list += (list.empty() ? "" : ":") + Path("PRELOAD");
  if (!list.empty()) variables["LD_PRELOAD"] = list;
  if (via == Via::kInjection) variables["CUDA_INJECTION64_PATH"] = Path("PRELOAD");
  std::vector<std::string> settings;
  for (const auto& [name, value] : variables) {
    settings.push_back(name);
    settings.back().append("=").append(value);
  }
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& setting : settings) envp.push_back(setting.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  std::string output = state_ + ".out";
  std::string errors = state_ + ".err";
  pid_t child = fork();
  if (child == 0) {
    int out = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int err = open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(126);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  Finished finished;
  finished.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  finished.output = Contents(output);
  finished.errors = Contents(errors);
  return finished;
}

uint64_t PreloadTest::Number(int index) const {
  std::string contents = Contents(state_);
  uint64_t numbers[16] = {};
  if (contents.size() == sizeof(numbers))
    contents.copy(reinterpret_cast<char*>(numbers), sizeof(numbers));
  return numbers[index];
}

uint64_t PreloadTest::driver_peak() const {
  return std::strtoull(Contents(state_ + ".peaks").c_str(), nullptr, 10);
}

uint64_t PreloadTest::used() const { return Number(0); }
uint64_t PreloadTest::peak() const { return Number(1); }
uint64_t PreloadTest::contexts() const { return Number(4); }
uint64_t PreloadTest::processes() const { return Number(5); }

}  // namespace gpumem::preload
