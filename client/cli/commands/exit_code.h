// SPDX-License-Identifier: Apache-2.0
// The exit codes of gpumemctl. Scripts rely on them; --help lists them.
#pragma once

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace gpumem::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitRefused = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoDaemon = 3;
inline constexpr int kExitNotAllowed = 4;
inline constexpr int kExitNoRoom = 5;
inline constexpr int kExitNotFound = 6;
inline constexpr int kExitRevoked = 7;
inline constexpr int kExitDiffers = 8;
inline constexpr int kExitProblem = 9;

// Marks a status that reports revoked memory.
inline constexpr char kRevokedPayload[] = "gpumemctl/revoked";

// Marks a status that reports memory with other bytes than were published.
inline constexpr char kDiffersPayload[] = "gpumemctl/differs";

// Marks a status that reports a problem that the command was to look for.
inline constexpr char kProblemPayload[] = "gpumemctl/problem";

// Has the exit code of a program that gpumemctl run has run.
inline constexpr char kProgramPayload[] = "gpumemctl/program";

// Marks a status whose message the command's output has already: it is not printed.
inline constexpr char kSilentPayload[] = "gpumemctl/silent";

inline absl::Status Silent(absl::Status status) {
  status.SetPayload(kSilentPayload, absl::Cord());
  return status;
}

inline int ExitCodeOf(const absl::Status& status) {
  if (status.GetPayload(kRevokedPayload).has_value()) return kExitRevoked;
  if (status.GetPayload(kDiffersPayload).has_value()) return kExitDiffers;
  if (status.GetPayload(kProblemPayload).has_value()) return kExitProblem;
  if (const auto code = status.GetPayload(kProgramPayload))
    return std::atoi(std::string(*code).c_str());
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kUnavailable:
      return kExitNoDaemon;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitNotAllowed;
    case absl::StatusCode::kResourceExhausted:
      return kExitNoRoom;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    default:
      return kExitRefused;
  }
}

}  // namespace gpumem::cli
