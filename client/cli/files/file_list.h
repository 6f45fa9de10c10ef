// SPDX-License-Identifier: Apache-2.0
// The metadata of a publication that gpumemctl made from files: the files in the order of its
// segments. JSON, readable by any program:
//
//   {"format": "gpumem-files/1",
//    "files": [{"name": "model.bin", "bytes": 12345,
//               "xxh128": "99aa06d3014798d86001c324468d497f"}]}
//
// Each file is at the start of its segment; the rest of the segment is zero. "xxh128" is the output
// of `xxh128sum` for the file (XXH3 of 128 bits, https://xxhash.com); null: not computed.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gpumem::cli {

struct ListedFile {
  std::string name;  // without a folder
  uint64_t bytes = 0;
  std::optional<std::string> xxh128;  // 32 hexadecimal digits

  bool operator==(const ListedFile&) const = default;
};

// True if a file in a folder can have this name. Publications are untrusted: a name must not lead
// out of the folder of a fetch.
bool IsFileName(absl::string_view name);

// True if a file of this name is hidden from ls(1), as the start-up files of shells and programs
// are.
bool IsHidden(absl::string_view name);

// INVALID_ARGUMENT: more than a publication's metadata can hold; two files of one name; an invalid
// name, or one that is not UTF-8.
absl::StatusOr<std::string> EncodeFileList(absl::Span<const ListedFile> files);

//   NOT_FOUND         it is no such list: another program made the publication
//   INVALID_ARGUMENT  it claims to be one, and is malformed or nested too deeply
absl::StatusOr<std::vector<ListedFile>> DecodeFileList(absl::string_view metadata);

}  // namespace gpumem::cli
