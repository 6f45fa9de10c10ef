// SPDX-License-Identifier: Apache-2.0
// What the programs of a node have in common: options, log, signals and rounds.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/kubernetes/facts/fact_teller.h"
#include "client/kubernetes/plugin.h"

namespace gpumem::kubernetes {

// Writes a line of the log to standard error.
void Say(absl::string_view line);

// Tells systemd that the program is ready (sd_notify(3)), if it asks for that.
void NotifyReady();

// Ends the process at SIGTERM or SIGINT, also during a call: a round may be cut off anywhere. Calls
// `at_end` before that. Requires that no thread is running yet: all of them block these signals.
void EndAtSignal(std::function<void()> at_end);

// The value of an option that turns something off. (CLI11 takes no "--option=".)
inline constexpr char kNone[] = "none";
// Returns the text; "" for kNone.
std::string UnlessNone(const std::string& text);

struct ProgramOptions {
  PluginOptions plugin;
  ViewOptions view;
  FactOptions facts;
  std::string pod_facts = "off";
  std::string api_server;
  std::string token_file;
  std::string ca_file;
  std::string interval = "5s";
  std::string timeout = "30s";
  absl::Duration pause;
};

// Declares the options and sets their defaults.
void DeclareOptions(CLI::App* app, ProgramOptions* options);
// Reads the texts of the options. Returns the mistake, or "".
std::string CompleteOptions(ProgramOptions* options);

// Starts a thread that tells gpumemd of the node's pods, without end.
void StartTelling(const ProgramOptions& options);

// Makes rounds without end. Calls `before` before each.
[[noreturn]] void MakeRounds(Plugin* plugin, absl::Duration pause,
                             const std::function<void()>& before);

}  // namespace gpumem::kubernetes
