// SPDX-License-Identifier: Apache-2.0
// The pool beside its peers, and beside the figures that it is to reach.
#include <iostream>
#include <utility>

#include "absl/strings/str_format.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/pool_results.h"
#include "tests/bench/pool_stage.h"
#include "tests/bench/trace.h"

namespace gpumem::bench {
namespace {

constexpr char kPool[] = "pool";
constexpr int kScaleThreads = 16;

std::vector<PeerKind>& Peers() {
  static auto* const peers = new std::vector<PeerKind>;
  return *peers;
}

// Returns the peer whose row took least; empty if none was measured.
std::string Fastest(const std::function<double(const std::string&)>& ns) {
  std::string fastest;
  for (const PeerKind& peer : Peers()) {
    if (peer.name == kPool || ns(peer.name) <= 0) continue;
    if (fastest.empty() || ns(peer.name) < ns(fastest)) fastest = peer.name;
  }
  return fastest;
}

void PrintSizes() {
  std::string head =
      absl::StrFormat("\n%-36s %11s %11s  %-18s %-18s %8s\n", "pool: allocate + free, one thread",
                      "ns", "peer's ns", "fastest peer", "to reach", "ratio");
  const double floor = ResultOf("PoolAllocFree/floor").ns;
  for (const uint64_t bytes : kBlockSizes) {
    const auto ns = [bytes](const std::string& peer) {
      return ResultOf(absl::StrCat("PoolAllocFree/", peer, "/", BlockSizeName(bytes))).ns;
    };
    const std::string peer = Fastest(ns);
    if (ns(kPool) <= 0) continue;
    std::cout << std::exchange(head, "")
              << absl::StreamFormat("%-36s %11.1f %11.1f  %-18s %-18s %7.3fx\n",
                                    BlockSizeName(bytes), ns(kPool), ns(peer), peer,
                                    OnGpu() ? "<= 50 ns, <= 0.1x" : "<= 50 ns",
                                    peer.empty() ? 0 : ns(kPool) / ns(peer));
  }
  if (floor > 0 && head.empty()) {
    std::cout << absl::StreamFormat("%-36s %11.1f\n", "the driver's two answers of them", floor);
    for (const uint64_t bytes : kBlockSizes) {
      std::cout << absl::StreamFormat(
          "%-36s %11.1f\n", absl::StrCat(BlockSizeName(bytes), ", default stream: it is not asked"),
          ResultOf(absl::StrCat("PoolAllocFree/", kPool, "-default/", BlockSizeName(bytes))).ns);
    }
  }
}

void PrintThreads() {
  std::string head = absl::StrFormat("\n%-36s", "pool: million pairs a second, threads");
  for (const int threads : {1, 2, 4, 8, 16, 32}) absl::StrAppendFormat(&head, " %7d", threads);
  absl::StrAppendFormat(&head, "  %-10s %8s\n", "to reach", "16 to 1");
  for (const char* streams : {"own", "one"}) {
    for (const uint64_t bytes : kBlockSizes) {
      for (const PeerKind& peer : Peers()) {
        const std::string name =
            absl::StrCat("PoolThreads/", streams, "/", peer.name, "/", BlockSizeName(bytes));
        const auto rate = [&](int threads) {
          return ResultOf(name, threads).Counter("items_per_second") / 1e6;
        };
        if (rate(1) <= 0) continue;
        std::cout << std::exchange(head, "")
                  << absl::StreamFormat("%-36s", absl::StrCat(peer.name, " ", BlockSizeName(bytes),
                                                              ", streams: ", streams));
        for (const int threads : {1, 2, 4, 8, 16, 32}) {
          std::cout << absl::StreamFormat(" %7.2f", rate(threads));
        }
        const bool to_reach = peer.name == kPool;
        std::cout << absl::StreamFormat("  %-10s %7.2fx\n", to_reach ? ">= 10x" : "",
                                        rate(kScaleThreads) / rate(1));
      }
    }
  }
}

void PrintTraces() {
  std::string head = absl::StrFormat("\n%-36s %9s %9s %9s %12s %12s  %-10s %13s\n",
                                     "pool: traces replayed", "ns/op", "first", "of pool's",
                                     "live MiB", "reserved MiB", "to reach", "reserved/live");
  for (const std::string& trace : TraceNames()) {
    const auto row = [&](const std::string& peer) -> const Result& {
      return ResultOf(absl::StrCat("PoolTrace/", trace, "/", peer));
    };
    const double pool = row(kPool).Counter("ns_per_op");
    for (const PeerKind& peer : Peers()) {
      const Result& result = row(peer.name);
      const double ns = result.Counter("ns_per_op");
      if (ns <= 0) continue;
      std::cout << std::exchange(head, "")
                << absl::StreamFormat("%-36s %9.1f %9.1f %8.2fx %12.0f",
                                      absl::StrCat(trace, ", ", peer.name), ns,
                                      result.Counter("cold_ns_per_op"), pool > 0 ? ns / pool : 0,
                                      result.Counter("live_MiB"));
      const double reserved = result.Counter("reserved_MiB");
      if (reserved > 0) {
        const bool to_reach = peer.name == kPool && (trace == "training" || trace == "serving");
        std::cout << absl::StreamFormat(" %12.0f  %-10s %13.3f", reserved,
                                        to_reach ? "<= 1.10" : "",
                                        result.Counter("reserved_per_live"));
      }
      std::cout << '\n';
    }
  }
}

void PrintRandomThreads() {
  std::string head = absl::StrFormat("\n%-36s", "pool: random-1MiB, ns/op, threads");
  for (const int threads : {1, 2, 4, 8, 16, 32}) absl::StrAppendFormat(&head, " %9d", threads);
  for (const PeerKind& peer : Peers()) {
    const auto ns = [&](int threads) {
      return ResultOf(absl::StrCat("PoolRandom/", peer.name), threads).Counter("ns_per_op");
    };
    if (ns(1) <= 0) continue;
    std::cout << std::exchange(head, "") << absl::StreamFormat("\n%-36s", peer.name);
    for (const int threads : {1, 2, 4, 8, 16, 32}) {
      std::cout << absl::StreamFormat(" %9.1f", ns(threads));
    }
  }
  if (head.empty()) std::cout << '\n';
}

void PrintFragmentation() {
  std::string head =
      absl::StrFormat("\n%-36s %12s %13s %13s %13s\n", "pool: fragmentation, reserved/live",
                      "operations", "at the end", "worst tenth", "peak/peak");
  for (const char* sizes : {"steady", "shifting"}) {
    for (const PeerKind& peer : Peers()) {
      const Result& result = ResultOf(absl::StrCat("PoolFragmentation/", sizes, "/", peer.name));
      if (result.ns <= 0) continue;
      std::cout << std::exchange(head, "")
                << absl::StreamFormat(
                       "%-36s %12.0f %13.3f %13.3f %13.3f\n", absl::StrCat(sizes, ", ", peer.name),
                       result.Counter("operations"), result.Counter("reserved_per_live"),
                       result.Counter("worst"), result.Counter("peak_per_live"));
    }
  }
}

void PrintStreams() {
  std::string head =
      absl::StrFormat("\n%-36s %11s %9s %13s %13s %9s\n", "pool: one stream's memory for another",
                      "ns", "same", "seen done", "made to wait", "growths");
  for (const char* work : {"idle", "busy"}) {
    for (const uint64_t bytes : {uint64_t{64} << 10, 16 * kMiB}) {
      for (const PeerKind& peer : Peers()) {
        const Result& result = ResultOf(
            absl::StrCat("PoolCrossStream/", work, "/", peer.name, "/", BlockSizeName(bytes)));
        if (result.ns <= 0) continue;
        std::cout << std::exchange(head, "")
                  << absl::StreamFormat(
                         "%-36s %11.1f %8.0f%% %13.0f %13.0f %9.0f\n",
                         absl::StrCat(peer.name, " ", BlockSizeName(bytes), ", ", work), result.ns,
                         100 * result.Counter("same"), result.Counter("after_event"),
                         result.Counter("dependencies"), result.Counter("growths"));
      }
    }
  }
}

}  // namespace

void RegisterPool(const PoolRun& run) {
  Peers() = PoolPeers(run.check_blocks);
  RegisterPoolSizes(Peers());
  RegisterPoolStreams(Peers());
  RegisterPoolTraces(Peers());
  RegisterPoolFragmentation(Peers(), run.fragmentation_operations);
}

void PrintPool() {
  PrintSizes();
  PrintThreads();
  PrintTraces();
  PrintRandomThreads();
  PrintFragmentation();
  PrintStreams();
}

}  // namespace gpumem::bench
