// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/verdict.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes.h"

namespace gpumem::soak {
namespace {

constexpr double kKiB = 1024;
constexpr double kMiBs = kKiB * kKiB;
constexpr double kWarmUp = 0.2;
constexpr double kHour = 3600;      // in seconds
constexpr double kLeastSpan = 240;  // the same
// Of a daemon's life: it has taken over the state by then, and its clients are back.
constexpr double kSettled = 3;
constexpr size_t kLeastSamples = 2;

// malloc(3) takes memory in steps of 132 KiB and more, and rare coincidences of the load raise its
// peak for good. So memory may rise by some such steps in an hour. The load makes several hundred
// thousand calls in an hour: one byte lost in each call is above all of these floors.
constexpr double kMemory = 256 * kKiB;
// Bytes in use: as little as the medians of a load that comes and goes allow to see.
constexpr double kHeap = 64 * kKiB;
// The same in a daemon's first hour: its history grows by 64 bytes for each tenant that changes in
// 10 s, to less than 4 MiB. The names of up to 1,000 ended tenants are kept, too.
constexpr double kFirstHour = 1024 * kKiB;
constexpr double kKeeperMemory = 64 * kKiB;
// Of counts: gRPC opens a descriptor and a thread more at a rare peak of the load.
constexpr double kCount = 2;

bool IsBytes(const std::string& column) {
  return absl::EndsWith(column, "_rss") || absl::EndsWith(column, "_anonymous") ||
         absl::EndsWith(column, "_heap") || absl::EndsWith(column, "_bytes");
}

std::string Amount(const std::string& column, double value) {
  if (!IsBytes(column)) return absl::StrFormat("%.2f", value);
  return absl::StrFormat("%.1f KiB", value / kKiB);
}

// The median of each daemon that lived long enough, at the time of its first sample.
std::vector<Point> Lives(absl::Span<const Figures> rows, const std::string& column) {
  struct Life {
    double begin = 0;
    std::vector<double> values;
  };
  std::map<double, Life> lives;
  for (const Figures& row : rows) {
    const auto generation = row.find("generation");
    const auto value = row.find(column);
    if (generation == row.end() || value == row.end()) continue;
    const double now = row.at("seconds");
    Life& life = lives.try_emplace(generation->second, Life{.begin = now}).first->second;
    // Later samples are those of long lives: all are compared at the same age.
    if (now - life.begin >= kSettled && now - life.begin < 5 * kSettled) {
      life.values.push_back(value->second);
    }
  }
  std::vector<Point> points;
  for (const auto& [generation, life] : lives) {
    if (life.values.size() >= kLeastSamples) points.push_back({life.begin, MedianOf(life.values)});
  }
  return points;
}

// Returns the samples of a part.
std::vector<Point> SamplesOf(absl::Span<const Figures> rows, const Series& series) {
  if (series.part == Part::kLives) return Lives(rows, series.column);
  std::vector<Point> points;
  for (const Figures& row : rows) {
    const auto value = row.find(series.column);
    const auto calm = row.find("calm");
    if (value == row.end()) continue;
    if (series.part == Part::kCalm && (calm == row.end() || calm->second == 0)) continue;
    points.push_back({row.at("seconds"), value->second});
  }
  return points;
}

double SpanOf(absl::Span<const Point> points) {
  return points.empty() ? 0 : points.back().seconds - points.front().seconds;
}

absl::string_view NameOf(Part part) {
  switch (part) {
    case Part::kCalm:
      return "one daemon";
    case Part::kLives:
      return "each daemon";
    case Part::kWhole:
      return "all";
  }
  return "";
}

}  // namespace

const std::vector<Series>& AllSeries() {
  static const auto* const all = new std::vector<Series>{
      {"daemon_rss", Part::kCalm, kMemory, kFirstHour},
      {"daemon_anonymous", Part::kCalm, kMemory, kFirstHour},
      {"daemon_heap", Part::kCalm, kHeap, kFirstHour},
      {"daemon_fds", Part::kCalm, kCount},
      {"daemon_threads", Part::kCalm, kCount},
      {"children_anonymous", Part::kCalm, kMemory},
      {"journal_bytes", Part::kCalm, kMemory},
      {"daemon_heap", Part::kLives, kMemory},
      {"daemon_fds", Part::kLives, kCount},
      {"daemon_threads", Part::kLives, kCount},
      {"journal_bytes", Part::kLives, kMemory},
      {"keeper_anonymous", Part::kWhole, kKeeperMemory},
      {"keeper_fds", Part::kCalm, kCount},
      {"keeper_fds", Part::kLives, kCount},
      {"keeper_threads", Part::kWhole, 0},
      {"web_anonymous", Part::kWhole, kMemory},
      {"web_fds", Part::kWhole, kCount},
      {"web_threads", Part::kWhole, kCount},
      {"journal_records", Part::kCalm, 5 * kCount},
      {"journal_records", Part::kLives, 5 * kCount},
      {"excess_bytes", Part::kCalm, 2 * kMiBs},
      {"leases", Part::kCalm, 2 * kCount},
      {"sessions", Part::kCalm, kCount},
      {"segments", Part::kCalm, 2 * kCount},
      {"waiting", Part::kCalm, kCount},
      {"publications", Part::kCalm, kCount},
  };
  return *all;
}

std::vector<Verdict> JudgeTable(absl::Span<const Figures> rows) {
  std::vector<Verdict> verdicts;
  for (const Series& series : AllSeries()) {
    std::vector<Point> points = SamplesOf(rows, series);
    if (points.empty()) continue;
    const double begin = points.front().seconds, all = SpanOf(points);
    const bool later = series.part == Part::kCalm && all > 2 * kHour;  // than the first hour
    const double warm = begin + std::max(kWarmUp * all, later ? kHour : 0);
    std::erase_if(points, [warm](const Point& point) { return point.seconds < warm; });
    std::vector<double> values;
    for (const Point& point : points) values.push_back(point.value);
    Verdict& verdict = verdicts.emplace_back(
        Verdict{.series = series, .median = MedianOf(std::move(values)), .trend = TrendOf(points)});
    if (series.first_floor > 0 && !later) verdict.series.floor = series.first_floor;
    if (SpanOf(points) >= kLeastSpan) verdict.finding = Judge(verdict.trend, verdict.series.floor);
  }
  return verdicts;
}

std::string TextOf(absl::Span<const Verdict> verdicts) {
  std::string text =
      absl::StrFormat("%-20s %-12s %14s %14s %32s %12s  %s\n", "series", "of", "median", "growth/h",
                      "with 99.9% within", "floor/h", "finding");
  for (const Verdict& verdict : verdicts) {
    const std::string& column = verdict.series.column;
    const std::string range =
        absl::StrCat(Amount(column, verdict.trend.low), " to ", Amount(column, verdict.trend.high));
    absl::StrAppendFormat(&text, "%-20s %-12s %14s %14s %32s %12s  %s\n", column,
                          NameOf(verdict.series.part), Amount(column, verdict.median),
                          Amount(column, verdict.trend.slope),
                          verdict.trend.blocks < kLeastBlocks ? "too few samples" : range,
                          Amount(column, verdict.series.floor), NameOf(verdict.finding));
  }
  return text;
}

}  // namespace gpumem::soak
