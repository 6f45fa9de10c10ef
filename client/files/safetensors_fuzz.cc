// SPDX-License-Identifier: Apache-2.0
// Headers of safetensors files, and the index of a model in several.
//
//   byte 0    1: an index; 2: a file's name; else a header
//   4 bytes   of a header: the bytes of the tensors
//   the rest  JSON, without the bytes of its length, or the name
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/files/contents.h"
#include "client/files/safetensors.h"
#include "common/testing/fuzz/input.h"

namespace gpumem::internal {
namespace {

using testing::FuzzInput;

std::string WithLength(absl::string_view json) {
  std::string header(kSafetensorsLengthBytes, '\0');
  for (size_t i = 0; i < header.size(); ++i) header[i] = static_cast<char>(json.size() >> (8 * i));
  return absl::StrCat(header, json);
}

// What was parsed is complete: written again and read, it is the same.
void CheckEncoded(const Safetensors& parsed) {
  std::vector<PublishedArray> arrays;
  for (const SafetensorsTensor& tensor : parsed.tensors) {
    arrays.push_back({.name = tensor.name,
                      .dtype = tensor.dtype,
                      .shape = tensor.shape,
                      .extent = {.bytes = tensor.bytes}});
  }
  std::vector<const PublishedArray*> pointers;
  uint64_t bytes = 0;
  for (const PublishedArray& array : arrays) {
    pointers.push_back(&array);
    bytes += array.extent.bytes;
  }
  const absl::StatusOr<std::string> header = EncodeSafetensorsHeader(pointers, parsed.metadata);
  FUZZ_CHECK(header.ok());
  const absl::StatusOr<Safetensors> again = ParseSafetensors(*header, header->size() + bytes);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->tensors.size() == parsed.tensors.size());
  for (size_t i = 0; i < parsed.tensors.size(); ++i) {
    const SafetensorsTensor& before = parsed.tensors[i];
    const SafetensorsTensor& after = again->tensors[i];
    FUZZ_CHECK(after.name == before.name && after.dtype == before.dtype);
    FUZZ_CHECK(after.shape == before.shape && after.bytes == before.bytes);
  }
  FUZZ_CHECK(again->metadata == parsed.metadata);
}

void Header(FuzzInput& input) {
  const auto data_bytes = input.Take<uint32_t>();
  const std::string header = WithLength(input.Rest());
  const uint64_t file_bytes = header.size() + data_bytes;
  const absl::StatusOr<Safetensors> parsed = ParseSafetensors(header, file_bytes);
  if (!parsed.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(parsed.status()));
    return;
  }
  uint64_t next = parsed->header_bytes;
  for (const SafetensorsTensor& tensor : parsed->tensors) {
    FUZZ_CHECK(tensor.offset == next && !tensor.name.empty() && tensor.shape.size() <= 32);
    next += tensor.bytes;
  }
  FUZZ_CHECK(next == file_bytes);
  CheckEncoded(*parsed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  (void)SafetensorsHeaderBytes({reinterpret_cast<const char*>(data), size}, size);
  switch (input.Byte()) {
    case 1: {
      const auto index = ParseSafetensorsIndex(input.Rest());
      FUZZ_CHECK(index.ok() ? !index->empty() : absl::IsInvalidArgument(index.status()));
      break;
    }
    case 2: {
      const std::string name(input.Rest());
      const std::vector<std::string> names = ShardNames(name);
      FUZZ_CHECK(names.size() < 100'000);
      bool itself = names.empty();
      for (const std::string& each : names) itself |= each == name;
      FUZZ_CHECK(itself);
      break;
    }
    default:
      Header(input);
  }
  return 0;
}

}  // namespace gpumem::internal
