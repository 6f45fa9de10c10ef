// SPDX-License-Identifier: Apache-2.0
// What a publication contains, as its metadata says: arrays by name, and the files that they came
// from. The metadata is JSON, for any reader:
//
//   {"format": "gpumem-arrays/1", "metadata": {…},
//    "arrays": [{"name": "w", "dtype": "bfloat16", "shape": [2, 3], "strides": null,
//                "segment": 0, "offset": 512, "xxh128": "99aa…"}],
//    "files": [{"name": "model.safetensors", "bytes": 92, "header": {"segment": 0, …},
//               "arrays": [0, 1]}]}
//
// An array lies in a segment, at an offset in bytes; without elements it has the segment null.
// Strides are bytes, null in C order. "xxh128" is the checksum of client/files/tree_hash.h; without
// it, none was computed. A file consists of its header, if it has one, and of arrays one after
// another: the first one's number, and how many. A file that was published as bytes is one array.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gpumem::internal {

// Bytes of a publication.
struct Extent {
  size_t segment = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::optional<std::string> xxh128;  // 32 hexadecimal digits

  bool operator==(const Extent&) const = default;
};

struct PublishedArray {
  std::string name;
  std::string dtype;  // as in SafetensorsTensor, or another of NumPy's names
  std::vector<uint64_t> shape;
  // False: it has strides, and its extent reaches from its first to its last byte.
  bool contiguous = true;
  Extent extent;

  bool operator==(const PublishedArray&) const = default;
};

struct PublishedFile {
  std::string name;  // without a folder
  uint64_t bytes = 0;
  std::optional<Extent> header;
  size_t first_array = 0;
  size_t arrays = 0;

  bool operator==(const PublishedFile&) const = default;
};

struct Contents {
  std::vector<PublishedArray> arrays;
  std::vector<PublishedFile> files;  // empty: the arrays came from no files
  std::map<std::string, std::string> metadata;

  bool operator==(const Contents&) const = default;
};

// Returns the extents of a file, in its order.
std::vector<Extent*> ExtentsOf(Contents& contents, const PublishedFile& file);
std::vector<const Extent*> ExtentsOf(const Contents& contents, const PublishedFile& file);

// Gives each array and header its place, and returns the sizes of the segments in bytes. A file of
// bytes has a separate segment; the arrays of others share segments of at most a GiB (one array
// may take more), each aligned for every use on a GPU.
std::vector<uint64_t> Place(Contents& contents);

// INVALID_ARGUMENT: more than a publication's metadata can hold; two files or arrays of one name;
// an invalid name, or one that is not UTF-8.
absl::StatusOr<std::string> EncodeContents(const Contents& contents);

// segments: their sizes in bytes.
//   NOT_FOUND         it describes neither arrays nor files: another program made the publication
//   INVALID_ARGUMENT  it claims to, and is malformed, or exceeds the segments
absl::StatusOr<Contents> DecodeContents(absl::string_view metadata,
                                        absl::Span<const uint64_t> segments);

}  // namespace gpumem::internal
