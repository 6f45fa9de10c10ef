// The bytes of files, from disk to mapped memory and back, in pieces of Staging::kPieceBytes that
// go through it one behind the other: while one is copied, others are read and one is checked.
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

// A file's place in memory.
struct Placed {
  void* mapped = nullptr;  // begins at a page, and has room up to the end of a page
  uint64_t bytes = 0;
};

// Called with how many bytes are done with, more each time; another status than OK ends the work
// with it.
using OnProgress = absl::FunctionRef<absl::Status(uint64_t)>;

// Reads whole files, each to its place. Where `checksums` is set, it gets the XXH128 of each.
// Statuses of FileReader::Read and of Staging.
absl::Status Load(absl::Span<FileReader* const> files, absl::Span<const Placed> places,
                  Staging& staging, OnProgress on_progress, std::vector<std::string>* checksums);

// What is at a place, in order: `use` gets it piece by piece. Answers its XXH128.
// Statuses of `use` and of Staging.
absl::StatusOr<std::string> Unload(const Placed& place, Staging& staging, OnProgress on_progress,
                                   absl::FunctionRef<absl::Status(absl::string_view)> use);

}  // namespace gpumem::cli
