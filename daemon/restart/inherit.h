// Going on where an earlier daemon stopped: which of its sessions' processes still live, and what
// an operator should know of it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/identity/rules.h"
#include "daemon/core/journal/image.h"
#include "daemon/transport/peer/peer.h"

namespace gpumemd {

// A session's process that was there before this daemon.
struct Survivor {
  Peer peer;
  TenantMatch match;  // its tenant is the one that it has had
  SessionDetails details;
};

// Those of the image's sessions whose processes live: of the same pid, begun at the same time.
std::map<SessionId, Survivor> FindSurvivors(const JournalImage& image,
                                            absl::Span<const Rule> rules);

// What was taken over and what was lost, and whose it was, in sentences for the log: first one
// about all of it, then one for each loss.
std::vector<std::string> DescribeInheritance(const Broker::Restored& restored,
                                             const JournalImage& image,
                                             const std::map<SessionId, Survivor>& survivors);

}  // namespace gpumemd
