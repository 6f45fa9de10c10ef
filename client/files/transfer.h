// SPDX-License-Identifier: Apache-2.0
// Copies between files and mapped memory: chunks of kChunkBytes, which threads read, hash and copy
// independently. The memory may be a GPU's: each thread goes through separate pinned memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/files/file_reader.h"
#include "common/cuda/staging.h"

namespace gpumem::internal {

// An array's or a header's bytes, in memory and (for Load) in a file.
struct Part {
  void* mapped = nullptr;
  uint64_t bytes = 0;
  FileReader* file = nullptr;
  uint64_t file_offset = 0;
};

// Returns a new copier for the memory of all parts. Called by several threads.
using MakeStaging = absl::FunctionRef<absl::StatusOr<std::unique_ptr<Staging>>()>;

// Called with the number of bytes done, ascending, by the thread that made the call and several
// times a second. An error ends the work with that status.
using OnProgress = absl::FunctionRef<absl::Status(uint64_t)>;

// Load and Hash use up to Parallel::kMaxThreads threads, each with Staging::kBytes of pinned
// memory.

// Reads the parts from their files. Stores the checksum of each (tree_hash.h) in `checksums`,
// unless it is null. Statuses of FileReader::Read and of Staging.
absl::Status Load(absl::Span<const Part> parts, MakeStaging make_staging, OnProgress on_progress,
                  std::vector<std::string>* checksums);

// Returns the checksums of the parts. Statuses of Staging.
absl::StatusOr<std::vector<std::string>> Hash(absl::Span<const Part> parts,
                                              MakeStaging make_staging, OnProgress on_progress);

// Passes the bytes of the parts to `use`, in order. Returns the checksum of each. Statuses of `use`
// and of Staging.
absl::StatusOr<std::vector<std::string>> Unload(
    absl::Span<const Part> parts, Staging& staging, OnProgress on_progress,
    absl::FunctionRef<absl::Status(absl::string_view)> use);

}  // namespace gpumem::internal
