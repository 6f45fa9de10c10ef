// SPDX-License-Identifier: Apache-2.0
// Clients that keep a daemon busy while it dies again and again, and see to it that nothing of
// theirs is lost or mixed up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gpumem/client.h"

namespace gpumem::testing {

// How a client in such a test connects: it waits longer than any daemon takes to come back.
ConnectOptions PatientOptions(const std::string& runtime_dir);

// Writes words that identify the owner, at the beginning, in the middle and at the end.
void Stamp(void* data, uint64_t size, uint64_t stamp);
bool HasStamp(const void* data, uint64_t size, uint64_t stamp);

// Publishes 60 segments under the name "weights"; the second checks them.
absl::Status PublishWeights(Client& client, std::vector<Segment>& segments);
absl::Status CheckWeights(Client& client);
inline constexpr uint64_t kWeightsBytes = 60 * (uint64_t{2} << 20);

// The work of a process that is a Child::Self: so many clients that acquire, share, open, publish,
// attach and release until the parent sends a message. It sends "working" when all are connected,
// and at the end "well done", or the error. Then it lives until the next message of the parent.
// Returns its exit code.
int RunCrashLoad(const std::string& runtime_dir, int clients);

// The parent's next word, however late.
void HearAtLast();

}  // namespace gpumem::testing
