// SPDX-License-Identifier: Apache-2.0
// Checks of the ledger's answers: status codes, and the numbers and holders of denials.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// Returns INTERNAL: the ledger's answer is wrong.
template <typename... What>
absl::Status Wrong(const What&... what) {
  return absl::InternalError(absl::StrCat(what...));
}

// A denial as the model expects it.
struct Expected {
  LimitName name;  // its cause is the denial's cause
  uint64_t asked = 0, used = 0, limit = 0;
  Denial::Cause queued_at = Denial::Cause::kUnspecified;  // of kQueue: the limit with that queue
};

absl::Status ExpectCode(const absl::Status& answer, absl::StatusCode code);
absl::Status CheckDenial(const LedgerModel& model, const Denial& denial, const std::string& tenant,
                         const Expected& expected);

// Checks that the tenant was denied it, and counts the denial.
absl::Status ExpectDenial(LedgerModel& model, const absl::Status& answer, const std::string& tenant,
                          const Expected& expected);
absl::Status ExpectUnbrokered(LedgerModel& model, const Request& request,
                              const absl::Status& answer);

// Checks the denial if there are too many waiters already; else nullopt.
std::optional<absl::Status> NoRoomToWait(LedgerModel& model, const std::string& tenant,
                                         const absl::Status& answer);
// Returns how many requests of the tenant and those under it wait.
uint64_t WaitingOf(const LedgerModel& model, const std::string& tenant);

// Checks the denial if there are too many leases already; else nullopt.
std::optional<absl::Status> NoRoomForLeases(LedgerModel& model, SessionId session, uint64_t more,
                                            const absl::Status& answer);

// Returns the earlier answer to the session's request; 0 is no request.
std::optional<uint64_t> AnswerTo(const LedgerModel& model, SessionId session, uint64_t request);
// Keeps the answer to a request, in case it is asked again.
void Answered(LedgerModel& model, SessionId session, uint64_t request, uint64_t number);

}  // namespace gpumemd::model
