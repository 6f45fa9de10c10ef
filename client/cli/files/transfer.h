// SPDX-License-Identifier: Apache-2.0
// Copies files between disk and mapped memory, in a pipeline of pieces of Staging::kPieceBytes:
// while one is copied, others are read and one is checked.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cli/files/file_reader.h"
#include "common/cuda/staging.h"

namespace gpumem::cli {

// The place of a file in memory.
struct Placed {
  void* mapped = nullptr;  // aligned to a page, with room up to the end of a page
  uint64_t bytes = 0;
};

// Called with the number of bytes done, ascending. An error ends the work with that status.
using OnProgress = absl::FunctionRef<absl::Status(uint64_t)>;

// Reads whole files, each to its place. Stores the XXH128 of each in `checksums`, unless it is
// null. Statuses of FileReader::Read and of Staging.
absl::Status Load(absl::Span<FileReader* const> files, absl::Span<const Placed> places,
                  Staging& staging, OnProgress on_progress, std::vector<std::string>* checksums);

// Passes the bytes at a place to `use`, piece by piece in order. Returns their XXH128. Statuses of
// `use` and of Staging.
absl::StatusOr<std::string> Unload(const Placed& place, Staging& staging, OnProgress on_progress,
                                   absl::FunctionRef<absl::Status(absl::string_view)> use);

}  // namespace gpumem::cli
