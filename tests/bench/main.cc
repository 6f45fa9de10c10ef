// SPDX-License-Identifier: Apache-2.0
// gpumem_bench: the cost of brokered memory, beside the cost of the bare machine.
//
//   gpumem_bench [--backend auto|cuda|host] [--gpumemd PATH] [--fragmentation-ops N]
//                [--check-blocks] [--publish-bytes N] [--cpus LIST] [--quick]
//                [Google Benchmark's flags]
//   gpumem_bench --write-trace NAME PATH
//   gpumem_bench [--backend auto|cuda|host] [--gpumemd PATH] --trace-acquires PATH
//
// Starts a daemon for itself. Each benchmark counts one call at a time and reports the median, p99
// and worst; the floors are the bare calls, measured in the same run. The tables at the end compare
// the two: ratios are valid on other machines, times are not. To run a part:
// --benchmark_filter='^Floor(Socket|Rpc)|^Kinds/' (the round trips belong to other floors),
// '^Latency', '^Explain', '^Peers/', 'TierCopy', '^Reclaim', 'PublishFile|Cat',
// '^RestartAfterKill', '^Load', '^Pool' (PoolAllocFree is the basic one). --publish-bytes: of the
// file that is published, a multiple of 4 MiB (1 GiB). For machines: --benchmark_out=FILE
// --benchmark_out_format=json.
//
// --cpus 0-3: this program, the daemon and all other processes that it starts run on these CPUs.
// --quick: '^Latency' and '^Explain' with a few pairs, to see that they work.
//
// The client pool's flags: --fragmentation-ops is the number of operations of PoolFragmentation
// (10^7). --trace-acquires records the steps of acquires (steps/traces.cc) in Perfetto's format;
// it needs gpumemctl beside it, or $GPUMEM_GPUMEMCTL. --check-blocks checks each allocated block;
// its times mean nothing. --write-trace writes a trace for other programs (trace.h names them).
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "daemon/device/context/process.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/floors.h"
#include "tests/bench/latency/latency.h"
#include "tests/bench/latency/process_stats.h"
#include "tests/bench/pool_results.h"
#include "tests/bench/trace.h"

namespace gpumem::bench {

int Main(int argc, char** argv) {
  std::string backend = "auto";
  PoolRun pool;
  LatencyRun latency;
  uint64_t publish_bytes = kGiB;
  std::string acquire_trace;
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--backend") == 0 && i + 1 < argc) {
      backend = argv[++i];
    } else if (std::strcmp(argv[i], "--gpumemd") == 0 && i + 1 < argc) {
      setenv("GPUMEM_GPUMEMD", argv[++i], 1);
    } else if (std::strcmp(argv[i], "--fragmentation-ops") == 0 && i + 1 < argc) {
      pool.fragmentation_operations = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--publish-bytes") == 0 && i + 1 < argc) {
      publish_bytes = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--cpus") == 0 && i + 1 < argc) {
      OrDie(RunOnCpus(argv[++i]), "--cpus");
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      latency.quick = true;
    } else if (std::strcmp(argv[i], "--trace-acquires") == 0 && i + 1 < argc) {
      acquire_trace = argv[++i];
    } else if (std::strcmp(argv[i], "--check-blocks") == 0) {
      pool.check_blocks = true;
    } else if (std::strcmp(argv[i], "--write-trace") == 0 && i + 2 < argc) {
      OrDie(WriteTrace(OrDie(MakeTrace(argv[i + 1]), "trace"), argv[i + 2]), "trace");
      return 0;
    } else {
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 2;
  if (!acquire_trace.empty()) return TraceAcquires(backend, acquire_trace);
  MakeBed(backend);
  // First those that take most of a GPU, last those of many processes.
  RegisterModelPairs(latency);
  RegisterSegmentPairs(latency);
  RegisterReleasesAtLimit(latency);
  RegisterThroughput(latency);
  RegisterExplainCalls(latency);
  RegisterExplainParts(latency);
  RegisterExplainSteps(latency);
  RegisterExplainMaking(latency);
  RegisterSegments();
  RegisterKinds();
  RegisterPeers();
  RegisterTierCopy();
  RegisterDaemon();
  RegisterLoad(backend);
  RegisterJournal();
  RegisterPublish(publish_bytes);
  RegisterContinuity(backend);
  RegisterPool(pool);
  RegisterTraces();
  benchmark::RunSpecifiedBenchmarks(MakeReporter().get());
  PrintPairs();
  PrintThroughput();
  PrintReleasesAtLimit();
  PrintExplainParts();
  PrintExplainSteps();
  PrintExplainMaking();
  PrintSegments();
  PrintKinds();
  PrintPeers();
  PrintTierCopy();
  PrintDaemon();
  PrintLoad();
  PrintPublish();
  PrintContinuity();
  PrintPool();
  delete bed;
  return 0;
}

int RunRole(const std::vector<std::string>& args) {
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  if (args[0] == "bare-owner") return RunBareOwner(rest);
  if (args[0] == "holder") return RunHolder(rest);
  if (args[0] == "trips") return RunTrips(rest);
  if (args[0] == "maker") return RunMaker(rest);
  if (args[0] == "loader") return RunLoader(rest);
  if (args[0] == "keeper") return RunKeeper(rest);
  if (args[0] == "copier") return RunCopier(rest);
  return 2;
}

}  // namespace gpumem::bench

int main(int argc, char** argv) {
  if (const std::optional<int> status = gpumemd::RunAsContextProcess(argc, argv)) return *status;
  if (argc > 2 && std::strcmp(argv[1], "--role") == 0) {
    return gpumem::bench::RunRole(std::vector<std::string>(argv + 2, argv + argc));
  }
  return gpumem::bench::Main(argc, argv);
}
