// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/identity/cgroup.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpumemd {
namespace {

constexpr size_t kMaxShown = 120;  // characters of a value in a sentence

bool IsNumber(absl::string_view text) {
  return !text.empty() && text.size() <= 10 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_isdigit(c); });
}

bool IsLowerHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool IsContainerId(absl::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), IsLowerHex);
}

// Returns a pod's uid: a UUID or, for static pods, 32 digits. Empty if `text` is none. In the names
// of slices dashes are underscores, since a dash there means a slice inside another.
std::string PodUid(absl::string_view text, char dash) {
  constexpr size_t kDashes[] = {8, 13, 18, 23};
  if (text.size() != 32 && text.size() != 36) return "";
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_dash = text.size() == 36 && std::count(std::begin(kDashes), std::end(kDashes), i);
    if (is_dash ? text[i] != dash : !IsLowerHex(text[i])) return "";
  }
  return absl::StrReplaceAll(text, {{"_", "-"}});
}

// Returns the container's id of "docker-ID.scope", or of "crio-ID" as it is without systemd. Empty
// for other names: "crio-conmon-ID.scope" only watches a container.
std::string ContainerOf(absl::string_view name) {
  absl::ConsumeSuffix(&name, ".scope");
  for (absl::string_view prefix : {"docker-", "cri-containerd-", "crio-", "libpod-"}) {
    absl::string_view id = name;
    if (absl::ConsumePrefix(&id, prefix) && IsContainerId(id)) return std::string(id);
  }
  return "";
}

// True for root's units that name the groups below them for others.
bool IsContainerManager(absl::string_view unit) {
  for (absl::string_view name :
       {"containerd.service", "docker.service", "crio.service", "kubelet.service", "k3s.service",
        "k3s-agent.service", "rke2-server.service", "rke2-agent.service"}) {
    if (unit == name) return true;
  }
  return false;
}

bool IsSlurmScope(absl::string_view unit) {
  // With several slurmd on one machine each has a scope: "node7_slurmstepd.scope".
  return unit == "slurmstepd.scope" || absl::EndsWith(unit, "_slurmstepd.scope");
}

// The facts of one path.
struct PathFacts {
  std::vector<std::string> slices;
  std::string unit, user, container, pod, qos, slurm_job, slurm_step;
};

// Reads one path, part by part. Stops at parts below which others than root name the groups.
class PathReader {
 public:
  explicit PathReader(absl::string_view path)
      : parts_(absl::StrSplit(path, '/', absl::SkipEmpty())) {}

  PathFacts Read() {
    while (next_ < parts_.size() && ReadPart(parts_[next_])) ++next_;
    return std::move(facts_);
  }

 private:
  absl::string_view Before(size_t back) const {
    return next_ >= back ? parts_[next_ - back] : absl::string_view();
  }

  // False: no part after this one may be read.
  bool ReadPart(absl::string_view part) {
    if (absl::StrContains(part, ".slice:")) {
      ReadColonForm(part);
      return false;
    }
    if (absl::EndsWith(part, ".slice")) {
      ReadSlice(part);
      return true;
    }
    facts_.container = ContainerOf(part);
    if (absl::EndsWith(part, ".service") || absl::EndsWith(part, ".scope")) {
      return ReadUnit(part) && facts_.container.empty();
    }
    const bool after_pod = !facts_.pod.empty();
    if (!facts_.container.empty()) {
      // Without systemd: below its pod, or below podman's own group.
      if (!after_pod && Before(1) != "libpod_parent") facts_.container.clear();
      return false;
    }
    if (IsContainerId(part)) {
      if (after_pod || Before(1) == "docker") facts_.container = std::string(part);
      return false;
    }
    if (next_ == 0 && (part == "slurm" || absl::StartsWith(part, "slurm_"))) {
      ++next_;
      if (next_ < parts_.size() && absl::StartsWith(parts_[next_], "uid_")) ++next_;
      ReadSlurm();
      return false;
    }
    return ReadGroup(part);
  }

  void ReadSlice(absl::string_view slice) {
    if (facts_.unit.empty()) facts_.slices.emplace_back(slice);
    ReadPodSlice(slice);
    absl::string_view uid = slice;
    if (facts_.unit.empty() && absl::ConsumePrefix(&uid, "user-") &&
        absl::ConsumeSuffix(&uid, ".slice") && IsNumber(uid)) {
      facts_.user = std::string(uid);
    }
  }

  // "kubepods-burstable-podUID.slice"; a pod without a class in its name is guaranteed.
  void ReadPodSlice(absl::string_view slice) {
    const size_t kubepods = slice.rfind("kubepods-");
    if (kubepods == absl::string_view::npos) return;
    // "kubelet-kubepods-…" if the kubelet has a separate root.
    if (kubepods != 0 && slice[kubepods - 1] != '-') return;
    absl::string_view rest = slice.substr(kubepods + strlen("kubepods-"));
    std::string qos = "guaranteed";
    for (absl::string_view named : {"burstable", "besteffort"}) {
      if (absl::ConsumePrefix(&rest, absl::StrCat(named, "-"))) {
        qos = std::string(named);
        break;
      }
    }
    if (!absl::ConsumePrefix(&rest, "pod") || !absl::ConsumeSuffix(&rest, ".slice")) return;
    SetPod(PodUid(rest, '_'), qos);
  }

  // "kubepods-burstable-podUID.slice:cri-containerd:ID": a name that a runtime hands to systemd. A
  // runtime that was told to do without systemd uses it as a folder's name.
  void ReadColonForm(absl::string_view part) {
    const std::vector<absl::string_view> names = absl::StrSplit(part, ':');
    if (names.size() != 3) return;
    ReadPodSlice(names[0]);
    if (!facts_.pod.empty() && IsContainerId(names[2])) facts_.container = std::string(names[2]);
  }

  bool ReadUnit(absl::string_view unit) {
    if (!facts_.unit.empty()) return false;
    facts_.unit = std::string(unit);
    if (IsSlurmScope(unit)) {
      ++next_;
      ReadSlurm();
      return false;
    }
    return !facts_.container.empty() || IsContainerManager(unit);
  }

  // "job_42/step_0/…".
  void ReadSlurm() {
    absl::string_view job = next_ < parts_.size() ? parts_[next_] : absl::string_view();
    if (!absl::ConsumePrefix(&job, "job_") || !IsNumber(job)) return;
    facts_.slurm_job = std::string(job);
    absl::string_view step = next_ + 1 < parts_.size() ? parts_[next_ + 1] : absl::string_view();
    if (!absl::ConsumePrefix(&step, "step_") || step.empty() || step.size() > 32) return;
    if (std::all_of(step.begin(), step.end(), [](unsigned char c) {
          return absl::ascii_isalnum(c) || c == '.' || c == '+' || c == '_' || c == '-';
        })) {
      facts_.slurm_step = std::string(step);
    }
  }

  // Groups that are made without systemd.
  bool ReadGroup(absl::string_view part) {
    if (part == "kubepods" || part == "docker" || part == "libpod_parent") return true;
    const bool has_class = Before(1) == "burstable" || Before(1) == "besteffort";
    if (part == "burstable" || part == "besteffort") return Before(1) == "kubepods";
    absl::string_view uid = part;
    if (absl::ConsumePrefix(&uid, "pod") &&
        (Before(1) == "kubepods" || (has_class && Before(2) == "kubepods"))) {
      SetPod(PodUid(uid, '-'), has_class ? std::string(Before(1)) : "guaranteed");
      return !facts_.pod.empty();
    }
    return false;
  }

  void SetPod(std::string uid, const std::string& qos) {
    if (uid.empty() || !facts_.pod.empty()) return;
    facts_.pod = std::move(uid);
    facts_.qos = qos;
  }

  const std::vector<absl::string_view> parts_;
  size_t next_ = 0;
  PathFacts facts_;
};

// True if `key` is `other`, or a group that contains it.
bool IsPrefix(absl::string_view key, absl::string_view other) {
  return absl::ConsumePrefix(&other, key) &&
         (other.empty() || other.front() == '/' || absl::EndsWith(key, "/"));
}

std::string Shown(const std::string& text) {
  if (text.size() <= kMaxShown) return text;
  return absl::StrCat(text.substr(0, kMaxShown - 3), "...");
}

// Returns why a path cannot be used; empty if it can.
std::string Objection(absl::string_view path) {
  if (path.empty() || path.front() != '/') return "the kernel's answer does not parse";
  if (absl::EndsWith(path, " (deleted)")) return "its group was removed";
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") return "its group is outside of the daemon's cgroup namespace";
  }
  return "";
}

}  // namespace

absl::string_view NameOf(CgroupFact fact) {
  constexpr absl::string_view kNames[kCgroupFacts] = {
      "cgroup", "unit", "slice", "user", "container", "pod", "qos", "slurm_job", "slurm_step"};
  return kNames[static_cast<size_t>(fact)];
}

Cgroup Cgroup::Unknown(absl::string_view why) {
  Cgroup cgroup;
  cgroup.unknown_ = std::string(why);
  return cgroup;
}

Cgroup Cgroup::Parse(absl::string_view text) {
  Cgroup cgroup;
  cgroup.unknown_.clear();
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    // "hierarchy-ID:controllers:path". The path may hold colons, but no newline (the kernel makes
    // no such group).
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) return Unknown("the kernel's answer does not parse");
    const std::string& path = parts[2];
    if (std::string why = Objection(path); !why.empty()) return Unknown(why);
    const std::string by = parts[1].empty() ? "v2" : absl::StrCat("v1 ", parts[1]);

    PathFacts facts = PathReader(path).Read();
    const auto add = [&](CgroupFact fact, const std::string& value, absl::string_view around = "") {
      if (value.empty()) return;
      cgroup.Add(fact, {{value}, around.empty() ? value : absl::StrCat(around, "/", value), by});
    };
    add(CgroupFact::kPath, path);
    add(CgroupFact::kUnit, facts.unit);
    add(CgroupFact::kUser, facts.user);
    add(CgroupFact::kContainer, facts.container);
    add(CgroupFact::kPod, facts.pod);
    // The same class of two pods, or the same step of two jobs, is no agreement.
    add(CgroupFact::kQos, facts.qos, facts.pod);
    add(CgroupFact::kSlurmJob, facts.slurm_job);
    if (!facts.slurm_job.empty()) {
      Answer step{{}, facts.slurm_job, by};
      if (!facts.slurm_step.empty()) {
        step.values.push_back(facts.slurm_step);
        absl::StrAppend(&step.key, "/", facts.slurm_step);
      }
      cgroup.Add(CgroupFact::kSlurmStep, std::move(step));
    }
    if (!facts.slices.empty()) {
      const std::string chain = absl::StrJoin(facts.slices, "/");
      cgroup.Add(CgroupFact::kSlice, {std::move(facts.slices), chain, by});
    }
  }
  if (cgroup.Answers(CgroupFact::kPath).empty()) return Unknown("the kernel does not report it");
  return cgroup;
}

void Cgroup::Add(CgroupFact fact, Answer answer) {
  std::vector<Answer>& answers = answers_[static_cast<size_t>(fact)];
  // A group and one inside it agree: the deeper one says more. So do a job and a step.
  const bool nested =
      fact == CgroupFact::kPath || fact == CgroupFact::kSlice || fact == CgroupFact::kSlurmStep;
  const auto same = [nested](const Answer& less, const Answer& more) {
    return nested ? IsPrefix(less.key, more.key) : less.key == more.key;
  };
  for (const Answer& known : answers) {
    if (same(answer, known)) return;
  }
  answers.erase(std::remove_if(answers.begin(), answers.end(),
                               [&](const Answer& known) { return same(known, answer); }),
                answers.end());
  answers.push_back(std::move(answer));
}

const std::vector<std::string>& Cgroup::Values(CgroupFact fact) const {
  static const std::vector<std::string>& none = *new std::vector<std::string>;
  return Answers(fact).size() == 1 ? Answers(fact).front().values : none;
}

const std::string& Cgroup::Value(CgroupFact fact) const {
  static const std::string& none = *new std::string;
  return Values(fact).empty() ? none : Values(fact).back();
}

std::string Cgroup::Ambiguity(CgroupFact fact) const {
  if (Answers(fact).size() < 2) return "";
  return absl::StrJoin(Answers(fact), ", ", [](std::string* out, const Answer& answer) {
    absl::StrAppend(out, answer.said_by, " says ", Shown(answer.key));
  });
}

}  // namespace gpumemd
