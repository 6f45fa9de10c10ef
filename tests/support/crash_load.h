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

// Words that say whose memory it is, at the beginning, in the middle and at the end.
void Stamp(void* data, uint64_t size, uint64_t stamp);
bool HasStamp(const void* data, uint64_t size, uint64_t stamp);

// A publication of 60 segments under the name "weights", and what it has to be.
absl::Status PublishWeights(Client& client, std::vector<Segment>& segments);
absl::Status CheckWeights(Client& client);
inline constexpr uint64_t kWeightsBytes = 60 * (uint64_t{2} << 20);

// The work of a process that is a Child::Self: so many clients that acquire, share, open, publish,
// attach and release until the parent says so. It says "working" when all are connected, and at the
// end "well done", or what went wrong; then it lives until the parent says anything. Its exit code.
int RunCrashLoad(const std::string& runtime_dir, int clients);

// The parent's next word, however late.
void HearAtLast();

}  // namespace gpumem::testing
