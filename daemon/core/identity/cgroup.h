// SPDX-License-Identifier: Apache-2.0
// Facts about a process from its cgroups, in the terms of systemd, container managers, Kubernetes
// and Slurm. Pure: the text of /proc/PID/cgroup (cgroups(7)) in, facts out.
//
// Trust. A path is read from its root, and only as far as the machine's root user has named its
// parts: down to the first unit (a service or scope), container or Slurm step. Parts below are
// named by the user or program that runs there: "user@1000.service" belongs to user 1000, a
// container's inside to the container. So a user cannot gain a unit, a pod or a job by making a
// group of that name. Below a unit only Slurm's scope and the units of container managers are read
// on, since root's daemons name the groups there.
//
// Ambiguity. With cgroup v1 a process is in one group of each hierarchy. If two hierarchies give
// different answers to one question, the fact is ambiguous. A hierarchy that says nothing (a
// process in its root) does not disagree. All facts are unknown for a path outside the daemon's
// cgroup namespace ("/../…"), for a deleted group, and for a text that makes no sense.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumemd {

enum class CgroupFact {
  kPath,       // the whole path, the deepest of all hierarchies
  kUnit,       // systemd's: "infer.service", "session-3.scope"
  kSlice,      // all slices around the unit, the outermost first
  kUser,       // the uid in "user-UID.slice": the user who logged in
  kContainer,  // 64 hexadecimal digits
  kPod,        // the uid of a Kubernetes pod, with dashes
  kQos,        // "guaranteed", "burstable" or "besteffort"; present with every pod
  kSlurmJob,   // a number
  kSlurmStep,  // "0", "batch", "extern", …
};
inline constexpr size_t kCgroupFacts = 9;

// Returns "cgroup", "unit", "slice", "user", "container", "pod", "qos", "slurm_job", "slurm_step".
// They are also the keys of the conditions in the configuration.
absl::string_view NameOf(CgroupFact fact);

class Cgroup {
 public:
  // Nothing is known: the cgroup was not read.
  Cgroup() : unknown_("it has not been read") {}
  // Nothing is known; `why` completes "the cgroup is unknown (…)".
  static Cgroup Unknown(absl::string_view why);
  // Parses the text of /proc/PID/cgroup.
  static Cgroup Parse(absl::string_view text);

  // Returns why nothing is known; empty if anything is.
  const std::string& unknown() const { return unknown_; }

  // The answer of one or more hierarchies to one question.
  struct Answer {
    std::vector<std::string> values;  // one; kSlice: all; kSlurmStep: none for a job alone
    std::string key;                  // answers are the same if their keys are
    std::string said_by;              // "v2", "v1 memory": the first that says so
  };
  // Returns the different answers: none if no hierarchy says anything, or nothing is known.
  const std::vector<Answer>& Answers(CgroupFact fact) const {
    return answers_[static_cast<size_t>(fact)];
  }
  // Returns the values if all hierarchies that answer agree; else none.
  const std::vector<std::string>& Values(CgroupFact fact) const;
  // Returns the one value of a fact that has one; else empty.
  const std::string& Value(CgroupFact fact) const;
  // Returns each hierarchy's answer if they disagree: "v1 memory says 42, v1 pids says 43"; else
  // empty.
  std::string Ambiguity(CgroupFact fact) const;

 private:
  void Add(CgroupFact fact, Answer answer);

  std::string unknown_;
  std::array<std::vector<Answer>, kCgroupFacts> answers_;
};

}  // namespace gpumemd
