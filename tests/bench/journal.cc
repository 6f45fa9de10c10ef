// SPDX-License-Identifier: Apache-2.0
// The cost of journaling each change of the ledger, with a given number of segments in it. A batch
// of an acquire (segment, lease, exposure, and the allotted numbers) alternates with one of the
// release of another segment. First the number of segments grows, and the file with it; then it
// runs long enough that periodic work is repeated often. The floor in the same run: the same bytes
// copied to such places, with their checksums.
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "daemon/core/journal/records.h"
#include "daemon/restart/journal_file.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"
#include "xxhash.h"

namespace gpumem::bench {
namespace {

namespace journal = gpumemd::journal;
using gpumemd::JournalFile;

constexpr size_t kRecord = gpumemd::kJournalRecordBytes;

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
          journal::Put(journal::Exposure{session, segment, 1}),
          journal::Put(journal::Counters{.session = 1, .segment = id, .lease = id})};
}

std::vector<journal::Change> Released(uint64_t id) {
  const gpumemd::SegmentId segment{id};
  return {journal::Erase<journal::Segment>(segment),
          journal::Erase<journal::Lease>(gpumemd::LeaseId{id}),
          journal::Erase<journal::Exposure>({gpumemd::SessionId{1}, segment})};
}

// Reports single batches, a few dozen nanoseconds of the clock included.
void ReportBatches(benchmark::State& state, const Samples& samples) {
  state.counters["p50_us"] = samples.Median();
  state.counters["p999_us"] = samples.Quantile(0.999);
  state.counters["max_us"] = samples.Quantile(1);
}

// The mean of the acquires of so many segments.
void Fill(benchmark::State& state, uint64_t segments) {
  Samples samples;
  for (auto _ : state) {
    auto file = MakeJournal();
    absl::Duration all;
    for (uint64_t id = 1; id <= segments; ++id) {
      const std::vector<journal::Change> batch = Acquired(id);
      const absl::Duration one = Time([&] { OrDie(file->Append(batch), "journal"); });
      samples.Add(one);
      all += one;
    }
    state.SetIterationTime(absl::ToDoubleSeconds(all) / static_cast<double>(segments));
  }
  ReportBatches(state, samples);
}

// Measures the mean of an acquire and a release, without the time to make the changes.
void Churn(benchmark::State& state, uint64_t segments, size_t rounds) {
  auto file = MakeJournal();
  std::vector<uint64_t> held;
  uint64_t next = 0;
  std::mt19937_64 chance(1);
  while (next < segments) {
    OrDie(file->Append(Acquired(++next)), "journal");
    held.push_back(next);
  }
  using Pair = std::array<std::vector<journal::Change>, 2>;
  const auto more = [&] {
    std::vector<Pair> pairs;
    for (size_t i = 0; i < rounds; ++i) {
      uint64_t& place = held[chance() % held.size()];
      std::vector<journal::Change> released = Released(std::exchange(place, ++next));
      pairs.push_back({std::move(released), Acquired(next)});
    }
    return pairs;
  };
  Samples samples;
  for (auto _ : state) {
    for (const Pair& pair : more()) {
      OrDie(file->Append(pair[0]), "journal");
      samples.Add(Time([&] { OrDie(file->Append(pair[1]), "journal"); }));
    }
    const std::vector<Pair> pairs = more();
    state.SetIterationTime(absl::ToDoubleSeconds(Time([&] {
                             for (const Pair& pair : pairs) {
                               OrDie(file->Append(pair[0]), "journal");
                               OrDie(file->Append(pair[1]), "journal");
                             }
                           })) /
                           static_cast<double>(2 * rounds));
  }
  ReportBatches(state, samples);
  state.counters["MiB"] = static_cast<double>(file->bytes()) / kMiB;
}

// A batch's records: once to a place of their own, once to three among all others.
void Floor(benchmark::State& state, uint64_t segments) {
  std::vector<uint8_t> table(3 * segments * kRecord, 1), stage(3 * kRecord), source(3 * kRecord, 2);
  std::mt19937_64 chance(1);
  std::vector<size_t> places(30000);
  for (size_t& place : places) place = chance() % (3 * segments) * kRecord;
  size_t at = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < 3; ++i) {
      uint8_t* const staged = stage.data() + i * kRecord;
      std::memcpy(staged, source.data() + i * kRecord, kRecord);
      benchmark::DoNotOptimize(XXH3_64bits(staged + 8, kRecord - 8));
      std::memcpy(table.data() + places[at++ % places.size()], staged, kRecord);
    }
    benchmark::ClobberMemory();
  }
}

}  // namespace

void RegisterJournal() {
  for (uint64_t segments : {100, 1000, 10000}) {
    const std::string with = absl::StrCat(", ", segments, " segments");
    benchmark::RegisterBenchmark(absl::StrCat("Journal/batch of 3", with).c_str(), Churn, segments,
                                 50000)
        ->UseManualTime()
        ->Unit(benchmark::kNanosecond)
        ->Iterations(4);
    benchmark::RegisterBenchmark(absl::StrCat("Journal/as it grows", with).c_str(), Fill, segments)
        ->UseManualTime()
        ->Unit(benchmark::kNanosecond)
        ->Iterations(static_cast<int64_t>(100000 / segments));
    benchmark::RegisterBenchmark(absl::StrCat("Journal/floor", with).c_str(), Floor, segments)
        ->Unit(benchmark::kNanosecond);
  }
}

}  // namespace gpumem::bench
