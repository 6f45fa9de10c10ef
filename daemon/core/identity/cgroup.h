// What a process's cgroups say of it, in the words of systemd, of container managers, of
// Kubernetes and of Slurm. Pure: the text of /proc/PID/cgroup (cgroups(7)) in, facts out.
//
// Who may be believed. A path is read from its root, and only for as long as the machine's own
// root has named its parts: down to the first unit (a service or scope), container or Slurm step.
// What stands below has been named by whoever runs there: "user@1000.service" belongs to user
// 1000, a container's inside to the container. So a user cannot give himself a unit, a pod or a
// job by making a group of that name. Below a unit only Slurm's scope and the units of container
// managers are read on, since root's daemons name what is there.
//
// When it is ambiguous. With cgroup v1 a process is in one group of each hierarchy. Where two
// hierarchies give different answers to one question, there is none; one that says nothing (a
// process in its root) does not disagree. A path out of the daemon's cgroup namespace
// ("/../…"), one that is gone, and a text that makes no sense leave all facts unknown.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumemd {

enum class CgroupFact {
  kPath,       // the whole path, the deepest of the hierarchies'
  kUnit,       // systemd's: "infer.service", "session-3.scope"
  kSlice,      // all slices around the unit, the outermost first
  kUser,       // the uid in "user-UID.slice": who has logged in
  kContainer,  // 64 hexadecimal digits
  kPod,        // the uid of a Kubernetes pod, with dashes
  kQos,        // "guaranteed", "burstable" or "besteffort"; wherever there is a pod
  kSlurmJob,   // a number
  kSlurmStep,  // "0", "batch", "extern", …
};
inline constexpr size_t kCgroupFacts = 9;

// "cgroup", "unit", "slice", "user", "container", "pod", "qos", "slurm_job", "slurm_step": also
// the keys of the conditions in the configuration.
absl::string_view NameOf(CgroupFact fact);

class Cgroup {
 public:
  // Nothing is known, and nobody has looked.
  Cgroup() : unknown_("it has not been read") {}
  // Nothing is known, and that is why: completes "the cgroup is unknown (…)".
  static Cgroup Unknown(absl::string_view why);
  // By the text of /proc/PID/cgroup.
  static Cgroup Parse(absl::string_view text);

  // Why nothing is known; empty where something is.
  const std::string& unknown() const { return unknown_; }

  // What one or more hierarchies say to one question.
  struct Answer {
    std::vector<std::string> values;  // one; of kSlice all; none of kSlurmStep where only a job is
    std::string key;                  // answers are the same where these are
    std::string said_by;              // "v2", "v1 memory": the first that says so
  };
  // Different answers: none where no hierarchy says anything, or nothing is known.
  const std::vector<Answer>& Answers(CgroupFact fact) const {
    return answers_[static_cast<size_t>(fact)];
  }
  // The values, where all who say anything agree; else none.
  const std::vector<std::string>& Values(CgroupFact fact) const;
  // The one value of a fact that has one; empty where there is none.
  const std::string& Value(CgroupFact fact) const;
  // Who says what, where they disagree: "v1 memory says 42, v1 pids says 43"; else empty.
  std::string Ambiguity(CgroupFact fact) const;

 private:
  void Add(CgroupFact fact, Answer answer);

  std::string unknown_;
  std::array<std::vector<Answer>, kCgroupFacts> answers_;
};

}  // namespace gpumemd
