// SPDX-License-Identifier: Apache-2.0
// The log of a node's program.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace gpumem::kubernetes {

class Log {
 public:
  // `say` writes a line.
  explicit Log(std::function<void(absl::string_view)> say) : say_(std::move(say)) {}

  void Say(absl::string_view line) const { say_(line); }
  // Says a line unless the subject's last one was the same. An empty line ends what was said.
  void SayOnce(const std::string& subject, const std::string& line);

 private:
  const std::function<void(absl::string_view)> say_;
  std::map<std::string, std::string> said_;  // by subject
};

}  // namespace gpumem::kubernetes
