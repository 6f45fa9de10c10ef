// SPDX-License-Identifier: Apache-2.0
// The headers of safetensors files, and the index of a model in several such files.
//
// A file is 8 bytes with the header's length N (little-endian), N bytes of JSON, and the tensors'
// bytes without gaps (https://github.com/huggingface/safetensors, "Format"). Files are untrusted:
// whatever is parsed here is complete and consistent.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/files/contents.h"

namespace gpumem::internal {

struct SafetensorsTensor {
  std::string name;
  // As NumPy and DLPack name it: "float32", "bfloat16", "float8_e4m3fn". Types of less than a byte
  // are "uint8" with one dimension.
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
};

struct Safetensors {
  uint64_t header_bytes = 0;               // with the 8 bytes of its length
  std::vector<SafetensorsTensor> tensors;  // in the order of the file
  std::map<std::string, std::string> metadata;
};

// The bytes of the header's length.
inline constexpr uint64_t kSafetensorsLengthBytes = 8;

// Returns the size of the header with its length, of a file of `file_bytes` that begins with these
// 8 bytes. INVALID_ARGUMENT: it is no safetensors file.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view begin, uint64_t file_bytes);

// `header`: the file's first SafetensorsHeaderBytes. INVALID_ARGUMENT, with the reason: no JSON,
// a tensor outside the file, gaps, overlaps, a size that does not fit the shape, an unknown dtype,
// a name that is empty, doubled, or has control characters.
absl::StatusOr<Safetensors> ParseSafetensors(absl::string_view header, uint64_t file_bytes);

// Parses "model.safetensors.index.json". Returns the name of each tensor's file, without a folder.
// INVALID_ARGUMENT, as above.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view json);

// Returns the header, with its length, of a file with the bytes of these arrays one after another.
// INVALID_ARGUMENT: an array has a dtype or a name that the format does not have, or strides.
absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const PublishedArray* const> arrays,
    const std::map<std::string, std::string>& metadata);

// Returns the names of the other files of a model, for one named
// "PREFIX-00002-of-00005.safetensors"; itself included. Empty: the name says nothing of others.
std::vector<std::string> ShardNames(absl::string_view name);

}  // namespace gpumem::internal
