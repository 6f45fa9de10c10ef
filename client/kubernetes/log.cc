// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/log.h"

#include "absl/strings/str_cat.h"

namespace gpumem::kubernetes {

void Log::SayOnce(const std::string& subject, const std::string& line) {
  std::string& last = said_[subject];
  if (line == last) return;
  say_(line.empty() ? absl::StrCat(subject, ": works again") : absl::StrCat(subject, ": ", line));
  last = line;
}

}  // namespace gpumem::kubernetes
