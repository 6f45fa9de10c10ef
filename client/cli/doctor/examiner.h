// SPDX-License-Identifier: Apache-2.0
// Finds the problems in the facts of gpumemctl doctor. Pure; examine.h is its interface.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "client/cli/doctor/examine.h"
#include "client/cli/doctor/facts.h"

namespace gpumem::cli {

class Examiner {
 public:
  // `facts` outlives this.
  explicit Examiner(const Facts& facts) : facts_(facts) {}

  std::vector<Finding> All();

 private:
  void Say(const char* area, Level level, std::string text, std::string help = "") {
    findings_.push_back({area, level, std::move(text), std::move(help)});
  }
  SocketFacts::State StateOf(const std::string& socket) const;
  // True if a daemon listens at any socket.
  bool AnyOpen() const;

  // Of the daemon (examine.cc).
  void Daemon();
  void Sockets();
  void Kept();
  void PastTheBroker();
  // Of the machine (examine_machine.cc).
  void Driver();
  void Files();
  void Cgroups();

  const Facts& facts_;
  std::vector<Finding> findings_;
};

}  // namespace gpumem::cli
