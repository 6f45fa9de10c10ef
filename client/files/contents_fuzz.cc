// SPDX-License-Identifier: Apache-2.0
// The metadata of publications: JSON that another process wrote, read against the sizes of its
// segments. Byte 0 is their number, and each has two bytes for its size.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/files/contents.h"
#include "common/testing/fuzz/input.h"

namespace gpumem::internal {
namespace {

void CheckExtent(const Extent& extent, const std::vector<uint64_t>& segments) {
  if (extent.bytes == 0) return;
  FUZZ_CHECK(extent.segment < segments.size());
  FUZZ_CHECK(extent.offset <= segments[extent.segment]);
  FUZZ_CHECK(extent.bytes <= segments[extent.segment] - extent.offset);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  testing::FuzzInput input(data, size);
  std::vector<uint64_t> segments(input.Below(4));
  for (uint64_t& bytes : segments) bytes = input.Take<uint16_t>();
  absl::StatusOr<Contents> contents = DecodeContents(input.Rest(), segments);
  if (!contents.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(contents.status()) || absl::IsNotFound(contents.status()));
    return 0;
  }
  bool contiguous = true;
  for (const PublishedArray& array : contents->arrays) {
    CheckExtent(array.extent, segments);
    contiguous = contiguous && array.contiguous;
  }
  for (const PublishedFile& file : contents->files) {
    uint64_t bytes = 0;
    for (const Extent* extent : ExtentsOf(std::as_const(*contents), file)) {
      CheckExtent(*extent, segments);
      bytes += extent->bytes;
    }
    FUZZ_CHECK(bytes == file.bytes);
  }
  // What can be written again is read as the same.
  if (!contiguous) return 0;
  const absl::StatusOr<std::string> again = EncodeContents(*contents);
  if (!again.ok()) return 0;
  const absl::StatusOr<Contents> reread = DecodeContents(*again, segments);
  FUZZ_CHECK(reread.ok());
  FUZZ_CHECK(reread->files == contents->files);
  FUZZ_CHECK(reread->arrays == contents->arrays);
  // A publisher gives them other places.
  const std::vector<uint64_t> sizes = Place(*contents);
  for (const PublishedFile& file : contents->files) {
    for (const Extent* extent : ExtentsOf(std::as_const(*contents), file))
      CheckExtent(*extent, sizes);
  }
  return 0;
}

}  // namespace gpumem::internal
