// SPDX-License-Identifier: Apache-2.0
// Takes over from an earlier daemon: finds the sessions whose processes still live, and describes
// the result to the operator.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/identity/rules.h"
#include "daemon/core/journal/image.h"
#include "daemon/transport/peer/peer.h"

namespace gpumemd {

// A session's process that predates this daemon.
struct Survivor {
  Peer peer;
  TenantMatch match;  // with the tenant that it has had
  SessionDetails details;
};

// Returns those of the image's sessions whose processes live: same pid, same start time. Each has
// the rule that gives it its tenant now. The daemon has not been told of any pod yet: for a process
// in a pod, no rule is found from the first one on that asks for facts of pods. An error, of
// FindPeer, if it is not known whether one lives: its memory must not be given to others then.
absl::StatusOr<std::map<SessionId, Survivor>> FindSurvivors(const JournalImage& image,
                                                            absl::Span<const Rule> rules);

// Describes what was taken over and what was lost, with owners, in sentences for the log: first a
// summary, then one for each loss.
std::vector<std::string> DescribeInheritance(const Broker::Restored& restored,
                                             const JournalImage& image,
                                             const std::map<SessionId, Survivor>& survivors);

}  // namespace gpumemd
