// SPDX-License-Identifier: Apache-2.0
// Lines of a stream that comes in pieces. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gpumem::kubernetes {

class LineSplitter {
 public:
  explicit LineSplitter(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Adds a piece, and calls `on_line` for each line that is complete now. Empty ones do not count.
  //   RESOURCE_EXHAUSTED  a line is longer than the most; later pieces have no meaning
  //   others              of `on_line`, for which the same holds
  absl::Status Add(absl::string_view piece,
                   absl::FunctionRef<absl::Status(absl::string_view)> on_line) {
    while (!piece.empty()) {
      const size_t end = piece.find('\n');
      const absl::string_view text = piece.substr(0, end);
      if (begun_.size() + text.size() > most_bytes_) {
        return absl::ResourceExhaustedError(
            absl::StrCat("a line has more than ", most_bytes_, " bytes"));
      }
      if (end == absl::string_view::npos) {
        begun_.append(text.data(), text.size());
        return absl::OkStatus();
      }
      piece.remove_prefix(end + 1);
      absl::Status done;
      if (begun_.empty()) {
        if (!text.empty()) done = on_line(text);
      } else {
        begun_.append(text.data(), text.size());
        const std::string line = std::move(begun_);
        begun_.clear();
        done = on_line(line);
      }
      if (!done.ok()) return done;
    }
    return absl::OkStatus();
  }

 private:
  const size_t most_bytes_;
  std::string begun_;
};

}  // namespace gpumem::kubernetes
