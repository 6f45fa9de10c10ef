// What the metadata of a publication says that gpumemctl made from files: which they were, in the
// order of its segments. JSON, for anybody to read:
//
//   {"format": "gpumem-files/1",
//    "files": [{"name": "model.bin", "bytes": 12345, "xxh128":
//    "99aa06d3014798d86001c324468d497f"}]}
//
// Each file is at the start of its segment, and what is behind it there is zero. "xxh128" is what
// `xxh128sum` prints for the file (XXH3 of 128 bits, https://xxhash.com); null: it was not
// computed.
//
// Pure.
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
  std::string name;  // of no folder
  uint64_t bytes = 0;
  std::optional<std::string> xxh128;  // 32 hexadecimal digits

  bool operator==(const ListedFile&) const = default;
};

// Whether a file in a folder can have this name. Publications are others' to make: a name must not
// lead out of the folder that it is fetched to.
bool IsFileName(absl::string_view name);

// True if a file of this name is hidden from ls(1), as the start-up files of shells and programs
// are.
bool IsHidden(absl::string_view name);

// INVALID_ARGUMENT: more than a publication's metadata can be; two files of one name; a name that
// is none, or no UTF-8.
absl::StatusOr<std::string> EncodeFileList(absl::Span<const ListedFile> files);

//   NOT_FOUND         it is no such list: the publication was made by something else
//   INVALID_ARGUMENT  it says that it is one, and is not well-formed, or nested too deeply
absl::StatusOr<std::vector<ListedFile>> DecodeFileList(absl::string_view metadata);

}  // namespace gpumem::cli
