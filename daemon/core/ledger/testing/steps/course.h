// SPDX-License-Identifier: Apache-2.0
// One course of random calls of a ledger, with the model beside it: what all steps of the model
// test have in common. The steps are free functions, by subject; step_list.h has the list of them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/steps/audit_check.h"
#include "daemon/core/ledger/testing/steps/chance.h"

namespace gpumemd::steps {

// Counts the cases that the episodes have met, so that a run that tests nothing does not pass.
using Coverage = std::map<std::string, uint64_t, std::less<>>;

struct Course {
  Course(uint64_t seed, Coverage* counts);
  Course(const Course&) = delete;

  // --- Choices -----------------------------------------------------------------------

  // Returns a session of the model, mostly a live one; now and then one that is gone or never
  // existed.
  SessionId AnySession();
  // Returns mostly a session that has leases.
  SessionId AnyHolder();
  // Returns a session that has ended, if there is any.
  SessionId SessionOver();
  SessionId SessionToEnd();
  LeaseId AnyLeaseOf(SessionId session);

  // --- After each call ---------------------------------------------------------------

  // Call after every call. `result` is the model's status for the answer. Then compares
  // everything.
  template <typename... What>
  absl::Status After(const absl::Status& result, const What&... what) {
    return AfterCall(result, absl::StrCat(what...));
  }
  // Checks that the recorded changes add up to the present state.
  absl::Status CheckImage();
  // Counts a case that has been met.
  void Cover(absl::string_view what) { ++coverage[std::string(what)]; }
  // Returns the cause of a denial, or the name of the code, and counts it as met.
  std::string Describe(const absl::Status& status);
  std::string LastCalls() const;

  Chance chance;
  const std::vector<DeviceInfo> devices;
  const Bounds bounds;
  absl::Time now = absl::FromUnixSeconds(1000);
  AuditCheck audit;
  Ledger ledger;
  JournalImage image;  // what the next daemon would know
  model::LedgerModel model;
  Coverage& coverage;
  std::deque<std::string> log;
  uint64_t calls = 0;

  // --- What steps remember -----------------------------------------------------------

  bool sound = true;  // all guarantees can be kept at the same time
  std::map<std::string, Quota> configured;
  Quota defaults;
  std::vector<Secret> old_tickets;
  std::set<WaiterId> granted_waiters;
  std::set<SessionId> killed;  // ended by force; the process may be gone later
  bool ends_at_once = false;   // sessions, before the next call
  Admission admission;         // the last
  std::optional<std::pair<SessionId, uint64_t>> last_register;
  std::optional<PublishSpec> last_publish;
  std::optional<std::pair<std::optional<SessionId>, uint64_t>> last_unpublish;

 private:
  absl::Status AfterCall(const absl::Status& result, const std::string& call);
  void Record();
  // As after each call of the broker.
  absl::Status AdmitWaiting();
  // Admits at once, or checks only a few at a time, which has the same result.
  std::vector<AdmissionControl::Admitted> AdmitInSlices();
};

}  // namespace gpumemd::steps
