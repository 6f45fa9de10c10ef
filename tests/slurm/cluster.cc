// SPDX-License-Identifier: Apache-2.0
#include "tests/slurm/cluster.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "tests/support/child.h"

namespace gpumem::testing {
namespace {

// Process 1, which adopts and reaps what daemons leave.
constexpr char kInit[] = ": >\"$1/up\"; while :; do sleep 1000 & wait; done";

constexpr char kPath[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
constexpr absl::Duration kPatience = absl::Seconds(60);

// Returns the one word in a file.
std::string Word(const std::string& path) {
  std::string word = ReadText(path);
  absl::StripTrailingAsciiWhitespace(&word);
  return word;
}

std::string TailOf(const std::string& path) {
  const std::string text = ReadText(path);
  return absl::StrCat("--- ", path, "\n",
                      text.substr(text.size() - std::min<size_t>(text.size(), 4000)));
}

// Returns "VALUE" of "… FIELD=VALUE …" in what scontrol prints.
std::string FieldOf(const std::string& text, const std::string& field) {
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"))) {
    if (absl::ConsumePrefix(&word, field + "=")) return std::string(word);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const Options& options) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return absl::FailedPreconditionError("Slurm's programs can load no plug-in with a sanitizer");
#endif
  if (geteuid() != 0) return absl::FailedPreconditionError("a cluster of Slurm takes root");
  for (const char* program : {"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged",
                              "/usr/bin/scontrol", "/usr/sbin/ip"}) {
    if (access(program, X_OK) != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Slurm is not installed here (", program, "): slurmctld, slurmd, slurm-client, munge"));
    }
  }
  for (const char* program :
       {"/usr/sbin/slurmdbd", "/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db"}) {
    if (options.database && access(program, X_OK) != 0) {
      return absl::FailedPreconditionError(absl::StrCat("Slurm's database is not installed here (",
                                                        program, "): slurmdbd, mariadb-server"));
    }
  }
  // Jobs in a container of Slurm have another /tmp, and read slurm.conf in it.
  absl::StatusOr<std::unique_ptr<Namespaces>> namespaces = Namespaces::Make(kInit, {}, "/var/tmp");
  if (!namespaces.ok()) return namespaces.status();
  std::unique_ptr<Cluster> cluster(new Cluster);
  cluster->namespaces_ = *std::move(namespaces);
  const absl::Status is_up = cluster->Boot(options);
  if (absl::IsInternal(is_up)) {
    return absl::InternalError(absl::StrCat(is_up.message(), "\n", cluster->Logs()));
  }
  if (!is_up.ok()) return is_up;
  return cluster;
}

absl::Status Cluster::Boot(const Options& options) {
  WriteClusterFiles(folder(), options);
  if (!Eventually([this] {
        return namespaces_->pid() != 0 && access((folder() + "/up").c_str(), F_OK) == 0;
      })) {
    return absl::InternalError(absl::StrCat("no process 1: ", namespaces_->Log()));
  }
  const Result network = namespaces_->Run({"/bin/sh", folder() + "/machine.sh", folder()});
  if (network.code != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine permits no network or group of a cluster: ", network.output));
  }
  const Result controller = namespaces_->Run({"/bin/sh", folder() + "/controller.sh", folder()});
  if (controller.code != 0) return absl::InternalError(controller.output);
  for (int node = 1; node <= kNodes; ++node) {
    for (const char* daemon : {"gpumemd", "slurmd"}) {
      if (absl::Status runs = Run(node, daemon); !runs.ok()) return runs;
    }
  }
  return absl::OkStatus();
}

Cluster::~Cluster() {
  Child end = namespaces_->Start({"/bin/sh", folder() + "/end.sh", folder()}, "/dev/null");
  end.Wait();
}

Cluster::Result Cluster::AsRoot(const std::vector<std::string>& args) const {
  std::vector<std::string> all = {"/usr/bin/env", kPath,
                                  absl::StrCat("SLURM_CONF=", folder(), "/slurm.conf")};
  all.insert(all.end(), args.begin(), args.end());
  return namespaces_->Run(all);
}

Cluster::Result Cluster::AsUser(uid_t uid, const std::vector<std::string>& args) const {
  std::vector<std::string> all = {"/usr/bin/env",
                                  "-C",
                                  shared(),
                                  "/usr/bin/setpriv",
                                  absl::StrCat("--reuid=", uid),
                                  absl::StrCat("--regid=", uid),
                                  "--clear-groups"};
  all.insert(all.end(), args.begin(), args.end());
  return AsRoot(all);
}

uint32_t Cluster::Submit(uid_t uid, const std::vector<std::string>& options,
                         const std::string& script) {
  std::vector<std::string> all = {"sbatch", "--parsable", "--output=%j.out"};
  all.insert(all.end(), options.begin(), options.end());
  all.push_back(absl::StrCat("--wrap=", script));
  const Result result = AsUser(uid, all);
  uint32_t job = 0;
  if (result.code != 0 || !absl::SimpleAtoi(result.output, &job)) return 0;
  return job;
}

std::string Cluster::Output(uint32_t job) const {
  return ReadText(absl::StrCat(shared(), "/", job, ".out"));
}

std::string Cluster::JobField(uint32_t job, const std::string& field) const {
  return FieldOf(AsRoot({"scontrol", "show", "job", "-d", absl::StrCat(job)}).output, field);
}

std::string Cluster::NodeField(int node, const std::string& field) const {
  return FieldOf(AsRoot({"scontrol", "show", "node", absl::StrCat("node", node)}).output, field);
}

bool Cluster::WaitForState(uint32_t job, const std::string& state) const {
  return Eventually([&] { return JobField(job, "JobState") == state; }, kPatience);
}

bool Cluster::WaitForQuiet() const {
  return Eventually([&] { return AsRoot({"squeue", "--noheader"}).output.empty(); }, kPatience);
}

Cluster::Result Cluster::OnNode(int node, const std::vector<std::string>& args) const {
  const std::string holder = Word(absl::StrCat(folder(), "/node", node, "/holder"));
  std::vector<std::string> all = {"/usr/bin/nsenter",
                                  "-t",
                                  holder,
                                  "-m",
                                  "-u",
                                  "-C",
                                  "-n",
                                  "-i",
                                  "--",
                                  "/usr/bin/env",
                                  kPath,
                                  absl::StrCat("SLURM_CONF=", folder(), "/slurm.conf"),
                                  absl::StrCat("SLURMD_NODENAME=node", node)};
  all.insert(all.end(), args.begin(), args.end());
  return namespaces_->Run(all);
}

nlohmann::json Cluster::Gpumemctl(int node, std::vector<std::string> args) const {
  args.insert(args.begin(), {Program("gpumemctl"), "-o", "json"});
  const Result result = OnNode(node, args);
  return result.code == 0 ? nlohmann::json::parse(result.output) : nlohmann::json();
}

std::vector<std::string> Cluster::Tenants(int node) const {
  std::vector<std::string> names;
  const nlohmann::json all = Gpumemctl(node, {"tenant", "list"});
  if (!all.is_object()) return {all.dump()};
  for (const auto& tenant : all["tenants"]) names.push_back(tenant["usage"]["tenant"]);
  return names;
}

uint64_t Cluster::Charged(int node) const {
  uint64_t bytes = 0;
  const nlohmann::json status = Gpumemctl(node, {"status"});
  if (!status.is_object()) return ~uint64_t{0};
  for (const auto& device : status["devices"]) bytes += device["charged_bytes"].get<uint64_t>();
  return bytes;
}

void Cluster::Stop(int node, const std::string& daemon) {
  const std::string pid = Word(absl::StrCat(folder(), "/node", node, "/", daemon, ".pid"));
  // The keeper ends its daemon.
  namespaces_->Run({"/bin/kill", daemon == "slurmd" ? "-KILL" : "-TERM", pid});
  Eventually([&] { return namespaces_->Run({"/bin/kill", "-0", pid}).code != 0; });
}

absl::Status Cluster::Crash(int node, const std::string& daemon) {
  if (daemon == "slurmd") {
    Stop(node, daemon);
    return Run(node, daemon);
  }
  const nlohmann::json before = Gpumemctl(node, {"status"});
  if (!before.is_object()) return absl::InternalError(daemon + " does not serve");
  namespaces_->Run({"/bin/kill", "-KILL", absl::StrCat(before["pid"].get<int>())});
  const bool is_up = Eventually(
      [&] {
        const nlohmann::json now = Gpumemctl(node, {"status"});
        return now.is_object() && now["pid"] != before["pid"];
      },
      kPatience);
  return is_up ? absl::OkStatus() : absl::InternalError(daemon + " does not serve");
}

absl::Status Cluster::Run(int node, const std::string& daemon) {
  const std::string home = absl::StrCat(folder(), "/node", node);
  if (!Eventually([&] { return access((home + "/holder").c_str(), F_OK) == 0; })) {
    return absl::InternalError(daemon + " does not serve");
  }
  // slurmctld takes a slurmd that was killed for well until it misses it.
  const auto starts = [&] {
    const std::vector<std::string> parts =
        absl::StrSplit(ReadText(home + "/slurmd.log"), "slurmd started on ");
    return parts.size();
  };
  const size_t before = starts();
  OnNode(node, {"/bin/sh", "-c", "setsid /bin/sh \"$1/daemon.sh\" \"$@\" >/dev/null 2>&1 &", "sh",
                folder(), absl::StrCat(node), daemon});
  const bool is_up = Eventually(
      [&] {
        if (daemon == "gpumemd") return Gpumemctl(node, {"status"}).is_object();
        const std::string state = NodeField(node, "State");
        return starts() > before && !state.empty() && !absl::StrContains(state, "DOWN") &&
               !absl::StrContains(state, "UNKNOWN") && !absl::StrContains(state, "NOT_RESPONDING");
      },
      kPatience);
  if (!is_up) return absl::InternalError(daemon + " does not serve");
  return absl::OkStatus();
}

std::string Cluster::Logs() const {
  std::string logs = namespaces_->Log();
  for (const char* name : {"log", "db.log", "slurmdbd.out", "slurmdbd.log", "sacctmgr.log"}) {
    absl::StrAppend(&logs, TailOf(absl::StrCat(folder(), "/ctl/", name)));
  }
  for (int node = 1; node <= kNodes; ++node) {
    for (const char* name : {"/log", "/slurmd.log", "/gpumemd.log"}) {
      absl::StrAppend(&logs, TailOf(absl::StrCat(folder(), "/node", node, name)));
    }
  }
  return logs;
}

}  // namespace gpumem::testing
