// What the daemon's journal takes of each change of the ledger: a batch as an acquire makes it
// (segment, lease, exposure) and one as its release does, into a log that never gets longer, with
// the compactions in between; and a compaction of what 10,000 segments leave.
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "daemon/core/journal_records.h"
#include "daemon/journal_file.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"

namespace gpumem::bench {
namespace {

namespace journal = gpumemd::journal;
using gpumemd::JournalFile;

std::unique_ptr<JournalFile> MakeJournal() {
  auto file = OrDie(JournalFile::Create({}), "journal");
  OrDie(file->Append({journal::Put(
            journal::Session{.id = gpumemd::SessionId{1}, .tenant = "alice", .command = "bench"})}),
        "journal");
  return file;
}

std::vector<journal::Change> Acquired(uint64_t id) {
  const gpumemd::SessionId session{1};
  const gpumemd::SegmentId segment{id};
  return {journal::Put(journal::Segment{.id = segment,
                                        .bytes = kMiB,
                                        .made = true,
                                        .tenant = "alice",
                                        .device_uuid = "GPU-00000000-0000-0000-0000-000000000000"}),
          journal::Put(
              journal::Lease{.id = gpumemd::LeaseId{id}, .session = session, .segment = segment}),
          journal::Put(journal::Exposure{session, segment, 1})};
}

void Batches(benchmark::State& state) {
  auto file = MakeJournal();
  const std::vector<journal::Change> acquired = Acquired(1);
  std::vector<journal::Change> released = acquired;
  for (journal::Change& change : released) change.op = journal::Op::kErase;
  bool held = false;
  for (auto _ : state) {
    OrDie(file->Append(held ? released : acquired), "journal");
    held = !held;
  }
  state.counters["compactions"] = static_cast<double>(file->compactions());
}

void CompactTenThousand(benchmark::State& state) {
  auto file = MakeJournal();
  for (uint64_t id = 1; id <= 10000; ++id) OrDie(file->Append(Acquired(id)), "journal");
  const std::vector<journal::Change> again = Acquired(1);
  for (auto _ : state) {
    const uint64_t before = file->compactions();
    absl::Duration last;
    while (file->compactions() == before) {
      last = Time([&] { OrDie(file->Append(again), "journal"); });
    }
    state.SetIterationTime(absl::ToDoubleSeconds(last));
  }
  state.counters["MiB"] = static_cast<double>(file->bytes()) / kMiB;
}

}  // namespace

void RegisterJournal() {
  benchmark::RegisterBenchmark("Journal/batch of 3", Batches)->UseRealTime();
  benchmark::RegisterBenchmark("Journal/compaction, 10000 segments", CompactTenThousand)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(20);
}

}  // namespace gpumem::bench
