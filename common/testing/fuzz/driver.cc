// SPDX-License-Identifier: Apache-2.0
// The main function of a fuzz target where no engine brings one: runs seeds, and mutations of them
// that are the same in each run.
//
//   TARGET [--rounds=N] [--seed=N] [--dictionary=FILE] FILES OF SEEDS...
//
// GPUMEM_FUZZ_ROUNDS and GPUMEM_FUZZ_SEED override the flags. If the process dies, it leaves the
// input in $TEST_UNDECLARED_OUTPUTS_DIR, or else in the present folder, as "fuzz-crash".
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/testing/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace gpumem::testing {
namespace {

// Of one input. Mutations never grow beyond.
constexpr size_t kMostBytes = 1 << 16;

// For the handler of signals.
const std::string* current_input = nullptr;
std::string crash_path;  // NOLINT: set once

void LeaveInput(int signal) {
  if (current_input != nullptr) {
    const int file = open(crash_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const bool written = file >= 0 && write(file, current_input->data(), current_input->size()) ==
                                          static_cast<ssize_t>(current_input->size());
    constexpr char kText[] = "the input is in fuzz-crash\n";
    if (written && write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(1);
  }
  raise(signal);
}

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = LeaveInput;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM}) {
    sigaction(signal, &action, nullptr);
  }
}

class Mutator {
 public:
  Mutator(uint64_t seed, std::vector<std::string> seeds, std::vector<std::string> words)
      : numbers_(seed), seeds_(std::move(seeds)), words_(std::move(words)) {}

  std::string Next() {
    std::string input = seeds_[numbers_.Below(seeds_.size())];
    for (size_t changes = 1 + numbers_.Below(6); changes > 0; --changes) Change(input);
    if (input.size() > kMostBytes) input.resize(kMostBytes);
    return input;
  }

 private:
  char Byte() { return static_cast<char>(numbers_.Next()); }

  void Change(std::string& input) {
    const size_t at = numbers_.Below(input.size() + 1);
    const size_t length = std::min(1 + numbers_.Below(16), input.size() - at);
    switch (numbers_.Below(words_.empty() ? 7 : 9)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << numbers_.Below(8)));
        break;
      case 1:
        if (at < input.size()) input[at] = Byte();
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, 1 + numbers_.Below(8), Byte());
        break;
      case 4:  // a part of itself again
        input.insert(numbers_.Below(input.size() + 1), input.substr(at, length));
        break;
      case 5: {  // a part of another one
        const std::string& other = seeds_[numbers_.Below(seeds_.size())];
        const size_t from = numbers_.Below(other.size() + 1);
        input.replace(at, length, other.substr(from, numbers_.Below(64)));
        break;
      }
      case 6: {  // a number that is at the edge of something
        constexpr uint64_t kEdges[] = {0,         1,      0x7f,       0x80,       0xff,
                                       0x7fff,    0xffff, 0x7fffffff, 0xffffffff, uint64_t{1} << 63,
                                       UINT64_MAX};
        const uint64_t edge = kEdges[numbers_.Below(std::size(kEdges))];
        const size_t bytes = std::min(size_t{1} << numbers_.Below(4), input.size() - at);
        input.replace(at, bytes, reinterpret_cast<const char*>(&edge), bytes);
        break;
      }
      case 7:
        input.insert(at, words_[numbers_.Below(words_.size())]);
        break;
      default:
        input.replace(at, length, words_[numbers_.Below(words_.size())]);
    }
  }

  Random numbers_;
  const std::vector<std::string> seeds_, words_;
};

bool ReadFile(const std::string& path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  text->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return file.is_open() && !file.bad();
}

// Returns the words of a dictionary: lines of `"WORD"` or `NAME="WORD"`, with escapes as in C.
std::vector<std::string> WordsOf(const std::string& text) {
  std::vector<std::string> words;
  absl::string_view left = text;
  while (!left.empty()) {
    const size_t end = std::min(left.find('\n'), left.size());
    const absl::string_view line = left.substr(0, end);
    left.remove_prefix(std::min(end + 1, left.size()));
    const size_t first = line.find('"');
    const size_t last = line.rfind('"');
    std::string word;
    if (absl::StartsWith(line, "#") || first == last) continue;
    if (absl::CUnescape(line.substr(first + 1, last - first - 1), &word)) words.push_back(word);
  }
  return words;
}

void Run(const std::string& input) {
  current_input = &input;
  // A copy of just this size: a sanitizer sees reads beyond its end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  current_input = nullptr;
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

int Main(int argc, char** argv) {
  // First, as engines do: the arguments may be for it.
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argc, &argv);
  uint64_t rounds = 0, seed = 1;
  std::vector<std::string> seeds, words;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    std::string text;
    if (absl::ConsumePrefix(&argument, "--rounds=")) {
      if (!absl::SimpleAtoi(argument, &rounds)) return 2;
    } else if (absl::ConsumePrefix(&argument, "--seed=")) {
      if (!absl::SimpleAtoi(argument, &seed)) return 2;
    } else if (absl::ConsumePrefix(&argument, "--dictionary=")) {
      if (!ReadFile(std::string(argument), &text)) return 2;
      words = WordsOf(text);
    } else if (ReadFile(argv[i], &text)) {
      seeds.push_back(std::move(text));
    } else {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 2;
    }
  }
  rounds = FromEnvironment("GPUMEM_FUZZ_ROUNDS", rounds);
  seed = FromEnvironment("GPUMEM_FUZZ_SEED", seed);
  const char* outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  crash_path = absl::StrCat(outputs != nullptr ? outputs : ".", "/fuzz-crash");
  CatchSignals();

  for (const std::string& input : seeds) Run(input);
  Run("");
  if (seeds.empty()) seeds.emplace_back();
  Mutator mutator(seed, seeds, words);
  for (uint64_t round = 0; round < rounds; ++round) Run(mutator.Next());
  std::printf("%zu seeds and %llu mutations from seed %llu\n", seeds.size(),
              static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(seed));
  return 0;
}

}  // namespace
}  // namespace gpumem::testing

int main(int argc, char** argv) { return gpumem::testing::Main(argc, argv); }
