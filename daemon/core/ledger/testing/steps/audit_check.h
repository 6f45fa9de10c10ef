// SPDX-License-Identifier: Apache-2.0
// Checks the records of the ledger's audit: each has the fields of its event and no others.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "daemon/core/audit/audit.h"

namespace gpumemd::steps {

class AuditCheck : public AuditSink {
 public:
  void Record(AuditRecord record) override {
    const AuditKind& kind = KindOf(record.event);
    std::set<std::string, std::less<>> there;
    for (const AuditField& field : FieldsOf(record)) there.emplace(field.name);
    for (absl::string_view field : kind.fields) {
      const bool optional = absl::ConsumeSuffix(&field, "?");
      const bool missing = there.erase(std::string(field)) == 0;
      // The sessions of the model begin without a rule.
      if (missing && !optional && field != "rule") Note(kind, " lacks ", field);
    }
    for (const std::string& field : there) Note(kind, " has ", field);
    if (record.time == absl::Time()) Note(kind, " lacks", " its time");
  }
  // Leaves some out.
  bool LeavesOut(AuditEvent, absl::string_view, uint64_t, absl::Time) override {
    return ++asked_ % 5 == 0;
  }
  // The first record that was wrong.
  const absl::Status& status() const { return status_; }

 private:
  void Note(const AuditKind& kind, absl::string_view has, absl::string_view what) {
    status_.Update(absl::InternalError(absl::StrCat("the audit's record ", kind.name, has, what)));
  }

  uint64_t asked_ = 0;
  absl::Status status_;
};

}  // namespace gpumemd::steps
