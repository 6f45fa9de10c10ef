// SPDX-License-Identifier: Apache-2.0
// The content id of files: equal only for files of equal names and bytes.
//
//   chunk     the SHA-256 of up to 4 MiB of a file
//   file      the SHA-256 of its chunks' hashes, in order
//   content   the SHA-256 of "gpumem-content/1\n" and, for each file by name, "SIZE NAME\0" and the
//             file's hash
//
// Chunks are hashed by several threads; the hash of a file is cached (hash_cache.h).
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/files/file_reader.h"
#include "client/files/hash_cache.h"

namespace gpumem::internal {

// Returns the 32 bytes. Calls `poll` several times a second while files are read; its error ends
// the work. Statuses of FileReader; ABORTED: a file changed while it was read.
absl::StatusOr<std::string> ContentId(absl::Span<FileReader* const> files, const HashCache& cache,
                                      absl::FunctionRef<absl::Status()> poll);

}  // namespace gpumem::internal
