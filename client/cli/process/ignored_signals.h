// SPDX-License-Identifier: Apache-2.0
// Ignores SIGINT, SIGTERM and SIGHUP in the whole program while it lives: for steps that must not
// end halfway. Used by one thread at a time.
#pragma once

#include <signal.h>

#include <array>
#include <cstddef>

namespace gpumem::cli {

class IgnoredSignals {
 public:
  IgnoredSignals() {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &ignore, &before_[i]);
  }
  ~IgnoredSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  IgnoredSignals(const IgnoredSignals&) = delete;
  IgnoredSignals& operator=(const IgnoredSignals&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

}  // namespace gpumem::cli
