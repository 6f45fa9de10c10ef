// SPDX-License-Identifier: Apache-2.0
// Operators' changes of quotas, on disk: STATE_DIR/overrides.txt, in protobuf's text format
// (proto/gpumem/v1/state.proto), so that people can read it.
//
// The file is replaced as a whole: if the machine stops, either the old one or the new one is
// there. One daemon at a time uses a state folder (a lock in it). Another daemon starts all the
// same, remembers nothing and says so. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/unique_fd.h"
#include "daemon/core/quota/overrides.h"

namespace gpumemd {

class OverrideStore {
 public:
  // Makes the folder, for its owner alone, if it is missing. notices() reports problems: an
  // unusable folder, or a malformed file (kept as overrides.txt.broken).
  explicit OverrideStore(std::string dir);

  // Returns the file's contents.
  const Overrides& remembered() const { return remembered_; }
  // Returns problems, one sentence each, for the log and for operators.
  const std::vector<std::string>& notices() const { return notices_; }

  // Returns when it is on disk.
  //   FAILED_PRECONDITION  it cannot be written; the old contents stay
  absl::Status Save(const Overrides& overrides);

 private:
  absl::Status OpenFolder();
  absl::Status Read();

  const std::string dir_;
  const std::string file_;
  absl::Status usable_;  // why nothing can be saved
  gpumem::UniqueFd folder_, lock_;
  Overrides remembered_;
  std::vector<std::string> notices_;
};

}  // namespace gpumemd
