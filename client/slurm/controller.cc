// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/controller.h"

#include <signal.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace gpumem::slurm {
namespace {

// Reads slurm.conf ($SLURM_CONF, or the default) once.
void Initialize() {
  static const bool initialized = (slurm_init(nullptr), true);
  (void)initialized;
}

// Returns the node's place in a list of Slurm ("node[1-3]"); -1: it is not in it.
int PlaceIn(const char* nodes, const std::string& node) {
  if (nodes == nullptr) return -1;
  hostlist_t list = slurm_hostlist_create(nodes);
  if (list == nullptr) return -1;
  const int place = slurm_hostlist_find(list, node.c_str());
  slurm_hostlist_destroy(list);
  return place;
}

using Jobs = std::unique_ptr<job_info_msg_t, void (*)(job_info_msg_t*)>;

//   NOT_FOUND    slurmctld does not know the job
//   UNAVAILABLE  slurmctld does not answer
absl::StatusOr<Jobs> Load(uint32_t job, uint16_t flags) {
  Initialize();
  job_info_msg_t* found = nullptr;
  if (slurm_load_job(&found, job, flags) != SLURM_SUCCESS) {
    const int error = errno;
    const std::string why = absl::StrCat("job ", job, ": ", slurm_strerror(error));
    return error == ESLURM_INVALID_JOB_ID ? absl::NotFoundError(why) : absl::UnavailableError(why);
  }
  return Jobs(found, slurm_free_job_info_msg);
}

// Returns the job's record; null: there is none. Of the parts of an array or of a heterogeneous
// job there are several.
const slurm_job_info_t* RecordOf(const job_info_msg_t& jobs, uint32_t job) {
  for (uint32_t i = 0; i < jobs.record_count; ++i) {
    if (jobs.job_array[i].job_id == job) return &jobs.job_array[i];
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::string> GresOfJob(uint32_t job, const std::string& node) {
  const auto jobs = Load(job, SHOW_DETAIL);
  if (!jobs.ok()) return jobs.status();
  const slurm_job_info_t* it = RecordOf(**jobs, job);
  const int place = it == nullptr ? -1 : PlaceIn(it->nodes, node);
  if (place < 0) {
    return absl::NotFoundError(absl::StrCat("job ", job, " has no part of node ", node));
  }
  if (it->gres_detail_str == nullptr || static_cast<uint32_t>(place) >= it->gres_detail_cnt ||
      it->gres_detail_str[place] == nullptr) {
    return "";
  }
  return it->gres_detail_str[place];
}

absl::StatusOr<bool> AsksForGres(uint32_t job, const std::string& gres) {
  const auto jobs = Load(job, 0);
  if (!jobs.ok()) return jobs.status();
  const slurm_job_info_t* it = RecordOf(**jobs, job);
  if (it == nullptr) return absl::NotFoundError(absl::StrCat("job ", job, " is not known"));
  const absl::string_view asked = it->tres_per_node == nullptr ? "" : it->tres_per_node;
  for (absl::string_view part : absl::StrSplit(asked, ',')) {
    // "gres:NAME[:TYPE][:COUNT]"; later versions of Slurm write "gres/".
    if (!absl::ConsumePrefix(&part, "gres:")) absl::ConsumePrefix(&part, "gres/");
    if (part.substr(0, part.find_first_of(":=")) == gres) return true;
  }
  return false;
}

absl::StatusOr<bool> IsOnNode(uint32_t job, const std::string& node) {
  const auto jobs = Load(job, 0);
  if (absl::IsNotFound(jobs.status())) return false;
  if (!jobs.ok()) return jobs.status();
  const slurm_job_info_t* it = RecordOf(**jobs, job);
  if (it == nullptr) return false;
  const uint32_t base = it->job_state & JOB_STATE_BASE;
  const bool allocated =
      base == JOB_RUNNING || base == JOB_SUSPENDED || (it->job_state & JOB_COMPLETING) != 0;
  return allocated && PlaceIn(it->nodes, node) >= 0;
}

absl::StatusOr<JobState> StateOf(uint32_t job) {
  const auto jobs = Load(job, 0);
  if (!jobs.ok()) return jobs.status();
  const slurm_job_info_t* it = RecordOf(**jobs, job);
  if (it == nullptr) return absl::NotFoundError(absl::StrCat("job ", job, " is not known"));
  return JobState{.runs = it->job_state == JOB_RUNNING,
                  .is_suspended = it->job_state == JOB_SUSPENDED,
                  .nodes = it->num_nodes};
}

absl::Status GiveBack(uint32_t job, bool hold) {
  const auto jobs = Load(job, 0);
  if (absl::IsNotFound(jobs.status())) return absl::OkStatus();
  if (!jobs.ok()) return jobs.status();
  const slurm_job_info_t* it = RecordOf(**jobs, job);
  // Cancelled, or given back by the prolog of another node. slurm_requeue would start a cancelled
  // job again, and refuse a pending one, which slurm_kill_job would then end.
  if (it == nullptr || (it->job_state & JOB_STATE_BASE) != JOB_RUNNING) return absl::OkStatus();
  if (slurm_requeue(job, hold ? JOB_REQUEUE_HOLD : 0) == SLURM_SUCCESS) return absl::OkStatus();
  if (errno == ESLURM_JOB_PENDING) return absl::OkStatus();
  if (slurm_kill_job(job, SIGKILL, 0) == SLURM_SUCCESS) return absl::OkStatus();
  if (errno == ESLURM_ALREADY_DONE) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("end job ", job, ": ", slurm_strerror(errno)));
}

absl::Status SuspendProcesses(uint32_t job) {
  Initialize();
  if (slurm_suspend(job) == SLURM_SUCCESS) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("suspend job ", job, ": ", slurm_strerror(errno)));
}

absl::Status ResumeProcesses(uint32_t job) {
  Initialize();
  if (slurm_resume(job) == SLURM_SUCCESS) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("resume job ", job, ": ", slurm_strerror(errno)));
}

absl::Status SetAdminComment(uint32_t job,
                             const std::vector<std::pair<std::string, std::string>>& words_to_set) {
  const auto jobs = Load(job, 0);
  if (!jobs.ok()) return jobs.status();
  const slurm_job_info_t* it = RecordOf(**jobs, job);
  if (it == nullptr) return absl::NotFoundError(absl::StrCat("job ", job, " is not known"));
  std::vector<std::string> words;
  for (absl::string_view word : absl::StrSplit(
           it->admin_comment == nullptr ? "" : it->admin_comment, ' ', absl::SkipEmpty())) {
    const bool is_set =
        std::any_of(words_to_set.begin(), words_to_set.end(),
                    [&](const auto& each) { return absl::StartsWith(word, each.first); });
    if (!is_set) words.emplace_back(word);
  }
  for (const auto& [key, value] : words_to_set) words.push_back(absl::StrCat(key, value));
  std::string comment = absl::StrJoin(words, " ");
  job_desc_msg_t message;
  slurm_init_job_desc_msg(&message);
  message.job_id = job;
  message.admin_comment = comment.data();
  if (slurm_update_job(&message) == SLURM_SUCCESS) return absl::OkStatus();
  const int error = errno;
  const std::string why = absl::StrCat("AdminComment of job ", job, ": ", slurm_strerror(error));
  return error == ESLURM_JOB_FINISHED ? absl::FailedPreconditionError(why)
                                      : absl::UnavailableError(why);
}

absl::StatusOr<std::string> NameOfThisNode() {
  Initialize();
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) return absl::ErrnoToStatus(errno, "gethostname");
  const std::string full = host, brief = full.substr(0, full.find('.'));
  node_info_msg_t* found = nullptr;
  if (slurm_load_node(0, &found, SHOW_ALL) != SLURM_SUCCESS) {
    return absl::UnavailableError(absl::StrCat("nodes: ", slurm_strerror(errno)));
  }
  const std::unique_ptr<node_info_msg_t, void (*)(node_info_msg_t*)> nodes(
      found, slurm_free_node_info_msg);
  std::string name;
  for (uint32_t i = 0; i < nodes->record_count; ++i) {
    const node_info_t& it = nodes->node_array[i];
    if (it.name == nullptr || it.node_hostname == nullptr) continue;
    if (full != it.node_hostname && brief != it.node_hostname) continue;
    if (!name.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("several nodes of Slurm are on ", full, ": name one, node=NAME"));
    }
    name = it.name;
  }
  if (name.empty()) return absl::NotFoundError(absl::StrCat("Slurm has no node on ", full));
  return name;
}

absl::Status DrainNode(const std::string& node, const std::string& reason) {
  Initialize();
  std::string node_names = node, words = reason;
  update_node_msg_t message;
  slurm_init_update_node_msg(&message);
  message.node_names = node_names.data();
  message.node_state = NODE_STATE_DRAIN;
  message.reason = words.data();
  message.reason_uid = 0;
  if (slurm_update_node(&message) != SLURM_SUCCESS) {
    return absl::UnavailableError(absl::StrCat("drain ", node, ": ", slurm_strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace gpumem::slurm
