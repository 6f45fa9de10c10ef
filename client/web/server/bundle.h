// SPDX-License-Identifier: Apache-2.0
// The files of the page, which are part of the program.
#pragma once

#include "absl/strings/string_view.h"

namespace gpumem::web {

struct File {
  absl::string_view path;  // in URLs
  absl::string_view type;
  absl::string_view etag;  // as the field has it
  absl::string_view plain;
  absl::string_view gzip;  // the same, compressed
};

// Returns the file of a path; nullptr if there is none.
const File* FindFile(absl::string_view path);

}  // namespace gpumem::web
