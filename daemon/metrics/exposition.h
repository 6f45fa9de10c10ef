// SPDX-License-Identifier: Apache-2.0
// Writes Prometheus' text format, version 0.0.4:
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "daemon/core/latency.h"

namespace gpumemd {

// Not thread-safe.
class Exposition {
 public:
  enum class Type { kCounter, kGauge, kHistogram };
  using Labels = std::initializer_list<std::pair<absl::string_view, absl::string_view>>;

  // Begins a family: later samples belong to it. Each family is begun once; `help` is one sentence.
  void Family(absl::string_view name, Type type, absl::string_view help);
  void Sample(Labels labels, uint64_t value);
  void Seconds(Labels labels, absl::Duration value);
  // Its buckets, sum and count.
  void Histogram(Labels labels, const LatencyCounts& counts);

  // Returns all of the text, and empties this.
  std::string Take() { return std::exchange(text_, {}); }

 private:
  void Line(absl::string_view suffix, Labels labels, absl::string_view bound,
            absl::string_view value);

  std::string name_;
  std::string text_;
};

// Returns a label's value as it stands between its quotes. Prometheus refuses a scrape with one
// byte that is no UTF-8 as a whole, so all but printable ASCII becomes '?'.
std::string EscapeLabelValue(absl::string_view value);

}  // namespace gpumemd
