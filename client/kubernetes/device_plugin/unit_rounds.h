// SPDX-License-Identifier: Apache-2.0
// The device plug-in's rounds: each makes gpumemd's tenants those of the pods with units.
//
// Nothing is stored. A round begins with what gpumemd, the kubelet and the API server say, so the
// plug-in may be killed at any moment. Pods' names are remembered while the plug-in runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/kubernetes/api/api_server.h"
#include "client/kubernetes/device_plugin/holders.h"
#include "client/kubernetes/device_plugin/unit_board.h"
#include "client/kubernetes/device_plugin/units.h"
#include "client/kubernetes/log.h"
#include "client/kubernetes/node.h"
#include "client/kubernetes/plugin.h"
#include "client/kubernetes/step_runner.h"

namespace gpumem::kubernetes {

struct UnitRoundsOptions {
  PluginOptions node;  // `driver` is not used
  uint64_t step = kDefaultStep;
  std::string resource;
  // How long gpumemd may be away before its GPUs are unhealthy: a restart takes less.
  absl::Duration grace = absl::Seconds(10);
};

// Thread-safe.
class UnitRounds {
 public:
  // `board` outlives it, and gets the node's units. `say` writes a line of the log, from several
  // threads.
  UnitRounds(const UnitRoundsOptions& options, UnitBoard* board,
             std::function<void(absl::string_view)> say);

  // Makes a round.
  //   UNAVAILABLE, …       a peer does not answer: all tenants are as they were, or some are
  //   FAILED_PRECONDITION  some steps have failed, or pods are not known yet
  absl::Status Round();

  // Waits until the pod that has these units has its tenant, with its share. Makes rounds for that.
  //   FAILED_PRECONDITION  a guarantee does not fit yet, or gpumemd does not have the GPU
  //   INVALID_ARGUMENT     an id is no unit's
  //   UNAVAILABLE          gpumemd, the kubelet or the API server does not answer, or it is not
  //                        known yet which pod it is
  // OK also in two cases. The API server does not answer, and the pod has its tenant already. Or no
  // container is listed with these units: those of init containers may not be.
  absl::Status Prepare(absl::Span<const std::string> ids, const std::function<bool()>& cancelled,
                       absl::Time deadline);

  // True if the kubelet lists other units of pods than in the last round. False if it does not
  // answer.
  bool PodsHaveChanged() const;

 private:
  // What a round has found.
  struct Result {
    absl::Status status;
    std::vector<Holder> pods;
    bool pods_known = false;  // false: the kubelet was not asked, or does not answer
  };

  // Returns the result of a round that begins after the call: this thread's or another one's.
  // Rounds begin at least 250 ms apart.
  Result RoundFromNow(bool at_once) ABSL_LOCKS_EXCLUDED(mutex_);
  Result MakeRound(bool at_once);
  // Returns the GPUs of which pods had units in the last round.
  std::set<std::string> HeldGpus() const ABSL_LOCKS_EXCLUDED(mutex_);
  void SetUnits(const absl::StatusOr<v1::GetStatusResponse>& status);
  absl::StatusOr<std::vector<DevicePod>> AskKubelet() const;
  absl::StatusOr<std::vector<DevicePod>> ListPods() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<PodNames> ListNames();
  // Carries out the steps to these tenants. Statuses as StepRunner::Carry.
  absl::StatusOr<std::map<std::string, absl::Status>> CarryOut(
      const Desired& desired, absl::Span<const PresentTenant> present, bool at_once);

  const UnitRoundsOptions options_;
  UnitBoard* const board_;

  mutable absl::Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;  // rounds
  uint64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time begun_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // the last round
  Result last_ ABSL_GUARDED_BY(mutex_);
  std::vector<DevicePod> listed_ ABSL_GUARDED_BY(mutex_);  // in the last round

  // Of the thread that makes a round.
  Log log_;
  ApiServer api_server_;
  Node daemon_;
  StepRunner steps_{&daemon_, &log_};
  PodNames names_;                        // as the API server last listed them
  std::map<std::string, PodName> known_;  // the pods of tenants
  std::optional<absl::Time> away_;        // gpumemd, since then
};

}  // namespace gpumem::kubernetes
