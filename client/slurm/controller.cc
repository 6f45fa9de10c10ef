// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/controller.h"

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"

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

}  // namespace

absl::StatusOr<std::string> GresOfJob(uint32_t job, const std::string& node) {
  Initialize();
  job_info_msg_t* found = nullptr;
  if (slurm_load_job(&found, job, SHOW_DETAIL) != SLURM_SUCCESS) {
    const int error = errno;
    const std::string why = absl::StrCat("job ", job, ": ", slurm_strerror(error));
    return error == ESLURM_INVALID_JOB_ID ? absl::NotFoundError(why) : absl::UnavailableError(why);
  }
  const std::unique_ptr<job_info_msg_t, void (*)(job_info_msg_t*)> jobs(found,
                                                                        slurm_free_job_info_msg);
  for (uint32_t i = 0; i < jobs->record_count; ++i) {
    // Of the parts of an array or of a heterogeneous job there are several.
    const slurm_job_info_t& it = jobs->job_array[i];
    if (it.job_id != job) continue;
    const int place = PlaceIn(it.nodes, node);
    if (place < 0) continue;
    if (it.gres_detail_str == nullptr || static_cast<uint32_t>(place) >= it.gres_detail_cnt ||
        it.gres_detail_str[place] == nullptr) {
      return "";
    }
    return it.gres_detail_str[place];
  }
  return absl::NotFoundError(absl::StrCat("job ", job, " has no part of node ", node));
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
