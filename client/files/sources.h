// SPDX-License-Identifier: Apache-2.0
// The files that a publication is made from, opened, and what they contain.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/files/contents.h"
#include "client/files/file_reader.h"
#include "gpumem/files.h"

namespace gpumem::internal {

struct Sources {
  std::vector<std::unique_ptr<FileReader>> readers;  // in the order of contents.files
  Contents contents;                                 // not placed
};

// Reads the headers of the files, and no more. An index ("*.safetensors.index.json") stands for the
// files that it names, in the index's folder.
//   NOT_FOUND         a file, or one of the shards that a file's name or the index tells of
//   INVALID_ARGUMENT  a file is empty, or not what its format says; arrays or files of one name
// and statuses of FileReader.
absl::StatusOr<Sources> OpenSources(absl::Span<const std::string> paths, FileFormat format);

}  // namespace gpumem::internal
