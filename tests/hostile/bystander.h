// SPDX-License-Identifier: Apache-2.0
// A well-behaved client, through libgpumem, that measures its waits.
//
// It acquires and releases 4 KiB every 5 ms. The latency of a request counts from the instant at
// which it should have started, whether or not the one before was answered by then. So a stall of
// one second shows in the 200 requests that should have started in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::hostile {

// The waits of the requests that should have started in one phase.
struct Latencies {
  uint64_t calls = 0;   // that were answered
  uint64_t failed = 0;  // that were refused, or could not be made while one before failed
  double p50_ms = 0, p99_ms = 0, max_ms = 0;
  std::string first_error;

  static Latencies Of(std::vector<double> ms, uint64_t failed, std::string first_error);
  std::string ToJson() const;
  //   INVALID_ARGUMENT  no such JSON
  static absl::StatusOr<Latencies> FromJson(absl::string_view json);
};

// Runs the bystander in this process until its parent says "stop", or has gone. It serves these
// words on kParentChannel (tests/support/child.h), each with one answer:
//   (nothing, at first)  "ready" once it is connected, else an error in words
//   phase                the Latencies of the phase that ends now, as JSON; the next one begins
//   cut                  "cut": all of this process's connected stream sockets are shut down
//   stop                 "stopped"
// `device`: as in AcquireOptions. Returns the process's exit code.
int RunBystander(const std::string& runtime_dir, const std::string& device);

// Connects, acquires, releases, once: a client that comes while others attack. Says how many
// milliseconds it took ("12.5"), or an error in words. Returns the process's exit code.
int RunNewcomer(const std::string& runtime_dir, const std::string& device);

}  // namespace gpumem::hostile
