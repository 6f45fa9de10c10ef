// SPDX-License-Identifier: Apache-2.0
// An operator's work in a soak: gpumemctl, reloads, scrapes of the metrics, the page of gpumem-web.
// Not thread-safe.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/soak/tally.h"
#include "tests/support/child.h"
#include "tests/support/kept_daemon.h"

namespace gpumem::soak {

class Operator {
 public:
  // `folder`: for sockets and files of this soak.
  Operator(testing::KeptDaemon& daemon, std::string folder, uint64_t seed);

  // The daemon's configuration; `variant` changes quotas.
  static std::string ConfigOf(const std::string& folder, int variant);

  // Starts gpumem-web, if this program has one beside it or in its environment.
  void StartWeb();
  pid_t web_pid() const { return web_.pid(); }
  // Does one thing; each once, in a random order, before any comes again.
  void Step();
  // Undoes what changes the daemon for good, and ends gpumem-web.
  void End();

  // By what it did.
  const Counts& counts() const { return counts_; }
  const std::vector<std::string>& wrong() const { return wrong_; }
  static const std::vector<std::string>& Tasks();

 private:
  void Do(const std::string& task);
  // Runs gpumemctl, at the second attempt after an error, and counts it as `what`. An error counts
  // as refused if `may_fail`, else it is wrong.
  void Ctl(const std::string& what, const std::vector<std::string>& args, bool may_fail = false);
  void Get(const std::string& what, const std::string& url);

  testing::KeptDaemon& daemon_;
  const std::string folder_;
  std::mt19937_64 random_;
  int variant_ = 0;
  std::vector<std::string> bag_;
  testing::Child web_, follower_;
  Counts counts_;
  std::vector<std::string> wrong_;
};

}  // namespace gpumem::soak
