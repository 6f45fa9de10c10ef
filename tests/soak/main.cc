// SPDX-License-Identifier: Apache-2.0
// gpumem_soak: a soak (soak.h), and the verdict on its figures (verdict.h).
//
//   gpumem_soak [--time SECONDS] [--backend host|cuda] [--seed N] [--pause MS] [--out FOLDER]
//   gpumem_soak --judge samples.csv
//
// SIGTERM ends the load early. SIGUSR1 has it rest until SIGUSR2.
//
// Needs gpumemd, gpumem-keeper and gpumemctl beside it, or where GPUMEM_GPUMEMD, GPUMEM_KEEPER and
// GPUMEM_GPUMEMCTL say; and gpumem-web (GPUMEM_GPUMEM_WEB), if that is to be part of it.
//
// Exit codes: 0 all is well; 1 something is wrong, or grows; 2 wrong arguments.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/soak/crew.h"
#include "tests/soak/soak.h"
#include "tests/soak/verdict.h"
#include "tests/soak/worker.h"

namespace gpumem::soak {
namespace {

// A shorter soak need not have seen everything.
constexpr absl::Duration kWhole = absl::Seconds(40);

// Prints the verdict. True if nothing grows.
bool ShowVerdict(const std::vector<Figures>& rows) {
  const std::vector<Verdict> verdicts = JudgeTable(rows);
  std::cout << "\n" << TextOf(verdicts);
  bool flat = true;
  for (const Verdict& verdict : verdicts) flat = flat && verdict.finding != Finding::kGrows;
  return flat;
}

int JudgeFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const auto rows = ReadTable(text.str());
  if (!rows.ok()) {
    std::cerr << "gpumem_soak: " << path << ": " << rows.status().message() << "\n";
    return 2;
  }
  return ShowVerdict(*rows) ? 0 : 1;
}

int RunSoak(const SoakOptions& options) {
  std::cout << "seed " << options.seed << ": repeats the choices, but not the times at which "
            << "processes run\n"
            << std::flush;
  Soak soak(options);
  if (const absl::Status ran = soak.Run(); !ran.ok()) {
    std::cerr << "gpumem_soak: " << ran << "\n";
    return 1;
  }
  std::vector<std::string> wrong = soak.wrong();
  const Counts counts = soak.counts();
  if (options.time >= kWhole) {
    for (const std::string& name : Soak::Needed(options.backend)) {
      if (!counts.contains(name)) wrong.push_back(absl::StrCat("it did not happen: ", name));
    }
  }
  std::cout << "\nwhat happened, and how often:\n";
  for (const auto& [name, count] : counts) std::cout << "  " << name << " " << count << "\n";
  const bool flat = ShowVerdict(soak.rows());
  for (const std::string& words : wrong) std::cout << "wrong: " << words << "\n";
  if (!flat) std::cout << "wrong: a figure grows\n";
  const bool well = wrong.empty() && flat;
  std::cout << "soak: " << (well ? "passed" : "failed") << "\n";
  return well ? 0 : 1;
}

int Main(const std::vector<std::string>& args) {
  SoakOptions options = {.out = "soak", .seed = std::random_device()()};
  for (size_t i = 0; i < args.size(); i += 2) {
    const std::string& name = args[i];
    if (i + 1 >= args.size()) return 2;
    const std::string& value = args[i + 1];
    uint64_t number = 0;
    const bool is_number = absl::SimpleAtoi(value, &number);
    if (name == "--judge") return JudgeFile(value);
    if (name == "--out") {
      options.out = value;
    } else if (name == "--backend" && (value == "host" || value == "cuda")) {
      options.backend = value;
    } else if (name == "--time" && is_number && number > 0) {
      options.time = absl::Seconds(number);
    } else if (name == "--pause" && is_number) {
      options.pause = absl::Milliseconds(number);
    } else if (name == "--seed" && is_number) {
      options.seed = number;
    } else {
      return 2;
    }
  }
  return RunSoak(options);
}

}  // namespace
}  // namespace gpumem::soak

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() > 2 && args[0] == "--role") {
    const std::string role = args[1];
    args.erase(args.begin(), args.begin() + 2);
    return role == "worker" ? gpumem::soak::RunWorker(args) : gpumem::soak::RunAttacker(args);
  }
  const int code = gpumem::soak::Main(args);
  if (code == 2) {
    std::cerr
        << "usage: gpumem_soak [--time SECONDS] [--backend host|cuda] [--seed N] [--pause MS] "
           "[--out FOLDER]\n       gpumem_soak --judge samples.csv\n";
  }
  return code;
}
