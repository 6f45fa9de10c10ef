// SPDX-License-Identifier: Apache-2.0
// The progress of long work, on one line of the terminal that is redrawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gpumem::cli {

// Returns "weights.bin  [#########...........]  45%  4.50 GiB of 10.00 GiB  3.10 GiB/s  2s left",
// in at most `columns` characters. First the bar is shortened, then the fields at the end are
// dropped. Pure.
std::string ProgressLine(absl::string_view what, uint64_t done, uint64_t total,
                         absl::Duration elapsed, size_t columns);

// Draws on stderr if that is a terminal and `wanted`; else does nothing. The destructor clears the
// line. Used by one thread.
class Progress {
 public:
  Progress(std::string what, uint64_t total, bool wanted);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Draws at most ten times a second.
  void Show(uint64_t done);

 private:
  const std::string what_;
  const uint64_t total_;
  const bool draws_;
  const absl::Time begun_;
  absl::Time next_;
  bool drawn_ = false;
};

}  // namespace gpumem::cli
