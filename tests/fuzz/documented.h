// SPDX-License-Identifier: Apache-2.0
// The statuses that the interface documents, read from the comments of its .proto files.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gpumem::testing {

class DocumentedStatuses {
 public:
  // Reads a file of a service. Aborts if it cannot. A method has the statuses that its comment
  // names, those of methods to which it refers ("as Acquire", "as for Acquire"), and those of the
  // comment at the beginning of the file.
  explicit DocumentedStatuses(const std::string& path);

  // True if `method` may end with `code`.
  bool Has(const std::string& method, absl::StatusCode code) const;

 private:
  std::map<std::string, std::set<std::string>, std::less<>> methods_;
};

}  // namespace gpumem::testing
