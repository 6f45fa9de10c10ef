// SPDX-License-Identifier: Apache-2.0
#include "client/files/contents.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/files/names.h"
#include "client/files/tree_hash.h"

namespace gpumem::internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "gpumem-arrays/1";
// What gpumemctl wrote before: files as bytes, one for each segment. Its "xxh128" is that of the
// whole file at once.
constexpr char kOldFormat[] = "gpumem-files/1";
constexpr size_t kMaxMetadata = size_t{1} << 20;
// Copies of deeply nested JSON recurse: deeper levels are dropped during parsing.
constexpr int kMaxDepth = 16;

constexpr uint64_t kSegmentBytes = uint64_t{1} << 30;
// What every framework asks for; the driver's own allocations have 256 (CUDA C++ Programming Guide,
// "Size and Alignment Requirement").
constexpr uint64_t kAlignment = 512;

template <typename C, typename E>
std::vector<E*> Extents(C& contents, const PublishedFile& file) {
  std::vector<E*> extents;
  if (file.header.has_value()) {
    extents.push_back(const_cast<E*>(&*file.header));  // of contents.files
  }
  for (size_t i = 0; i < file.arrays; ++i) {
    extents.push_back(&contents.arrays[file.first_array + i].extent);
  }
  return extents;
}

bool IsXxh128(absl::string_view text) {
  return text.size() == 32 && std::all_of(text.begin(), text.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return absl::ascii_isxdigit(byte) && !absl::ascii_isupper(byte);
         });
}

bool IsUtf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)) == text;
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the publication's metadata is invalid: ", what));
}

void PutHash(Json& json, const Extent& extent) {
  if (extent.xxh128.has_value()) json["xxh128"] = *extent.xxh128;
}

Json ArrayJson(const PublishedArray& array) {
  Json json = Json::object();
  json["name"] = array.name;
  json["dtype"] = array.dtype;
  json["shape"] = array.shape;
  json["strides"] = nullptr;
  json["segment"] = nullptr;
  if (array.extent.bytes > 0) json["segment"] = array.extent.segment;
  json["offset"] = array.extent.bytes > 0 ? array.extent.offset : 0;
  json["framework"] = "";
  PutHash(json, array.extent);
  return json;
}

Json FileJson(const PublishedFile& file) {
  Json json = Json::object();
  json["name"] = file.name;
  json["bytes"] = file.bytes;
  json["header"] = nullptr;
  if (file.header.has_value()) {
    Json header = Json::object();
    header["segment"] = file.header->segment;
    header["offset"] = file.header->offset;
    header["bytes"] = file.header->bytes;
    PutHash(header, *file.header);
    json["header"] = std::move(header);
  }
  json["arrays"] = {file.first_array, file.arrays};
  return json;
}

// Sizes of elements that the names of NumPy's and DLPack's types end with, in bits.
absl::StatusOr<uint64_t> ItemBytes(absl::string_view dtype) {
  if (dtype == "bool" || absl::StartsWith(dtype, "float8_")) return 1;
  for (const auto& [name, bytes] : {std::pair("16", 2), std::pair("32", 4), std::pair("64", 8),
                                    std::pair("128", 16), std::pair("8", 1)}) {
    if (absl::EndsWith(dtype, name)) return bytes;
  }
  // A typestr of the array interface: "<f4", "|S10".
  size_t digits = dtype.size();
  while (digits > 0 && absl::ascii_isdigit(static_cast<unsigned char>(dtype[digits - 1]))) --digits;
  uint64_t bytes = 0;
  if (digits < 2 || !absl::SimpleAtoi(dtype.substr(digits), &bytes) || bytes == 0 ||
      bytes > uint64_t{1} << 31) {
    return Malformed(
        absl::StrCat("the dtype ", absl::CHexEscape(dtype.substr(0, 40)), " is unknown"));
  }
  return dtype[digits - 1] == 'U' ? 4 * bytes : bytes;
}

class Decoder {
 public:
  explicit Decoder(absl::Span<const uint64_t> segments) : segments_(segments) {}

  absl::StatusOr<Contents> Arrays(const Json& json) {
    const Json arrays = json.value("arrays", Json());
    const Json files = json.value("files", Json::array());
    const Json metadata = json.value("metadata", Json());
    if (!arrays.is_array() || !files.is_array()) return Malformed("it has no list of arrays");
    Contents contents;
    std::set<std::string> names;
    for (const Json& each : arrays) {
      auto array = Array(each);
      if (!array.ok()) return array.status();
      if (!names.insert(array->name).second) return Malformed("two arrays have one name");
      contents.arrays.push_back(*std::move(array));
    }
    names.clear();
    for (const Json& each : files) {
      auto file = File(each, contents.arrays);
      if (!file.ok()) return file.status();
      if (!names.insert(file->name).second) return Malformed("two files have one name");
      contents.files.push_back(*std::move(file));
    }
    if (metadata.is_object()) {
      for (const auto& [key, value] : metadata.items()) {
        if (value.is_string()) contents.metadata[key] = value.get<std::string>();
      }
    }
    return contents;
  }

  absl::StatusOr<Contents> OldFiles(const Json& json) {
    const Json files = json.value("files", Json());
    if (!files.is_array() || files.size() != segments_.size()) {
      return Malformed("its list of files does not match its segments");
    }
    Contents contents;
    for (size_t i = 0; i < files.size(); ++i) {
      if (!files[i].is_object()) return Malformed("a file is not a JSON object");
      const Json name = files[i].value("name", Json());
      const Json bytes = files[i].value("bytes", Json());
      if (!name.is_string() || !IsFileName(name.get_ref<const std::string&>())) {
        return Malformed("a file has an invalid name");
      }
      if (!bytes.is_number_unsigned()) return Malformed("a file has no size");
      Extent extent{.segment = i, .offset = 0, .bytes = bytes.get<uint64_t>()};
      if (extent.bytes > segments_[i]) return Malformed("a file exceeds its segment");
      auto hash = Hash(files[i]);
      if (!hash.ok()) return hash.status();
      // Of a larger file it is another hash than ours.
      if (extent.bytes <= kChunkBytes) extent.xxh128 = *std::move(hash);
      contents.files.push_back({.name = name.get<std::string>(),
                                .bytes = extent.bytes,
                                .header = std::nullopt,
                                .first_array = i,
                                .arrays = 1});
      contents.arrays.push_back({.name = name.get<std::string>(),
                                 .dtype = "uint8",
                                 .shape = {extent.bytes},
                                 .extent = std::move(extent)});
    }
    return contents;
  }

 private:
  static absl::StatusOr<std::optional<std::string>> Hash(const Json& json) {
    const Json hash = json.value("xxh128", Json());
    if (hash.is_null()) return std::optional<std::string>();
    if (!hash.is_string() || !IsXxh128(hash.get_ref<const std::string&>())) {
      return Malformed("a checksum is invalid");
    }
    return std::optional<std::string>(hash.get<std::string>());
  }

  // Returns the extent of these bytes, the first of which lies `below` the place that the JSON
  // names.
  absl::StatusOr<Extent> Place(const Json& json, uint64_t below, uint64_t bytes) {
    const Json segment = json.value("segment", Json());
    const Json offset = json.value("offset", Json());
    Extent extent{.bytes = bytes};
    auto hash = Hash(json);
    if (!hash.ok()) return hash.status();
    extent.xxh128 = *std::move(hash);
    if (bytes == 0) return extent;
    if (!segment.is_number_unsigned() || segment.get<uint64_t>() >= segments_.size()) {
      return Malformed("a segment does not exist");
    }
    extent.segment = segment.get<size_t>();
    if (!offset.is_number_unsigned()) return Malformed("an offset is invalid");
    extent.offset = offset.get<uint64_t>();
    if (extent.offset < below) return Malformed("an array exceeds its segment");
    extent.offset -= below;
    const uint64_t size = segments_[extent.segment];
    if (extent.offset > size || bytes > size - extent.offset) {
      return Malformed("an array exceeds its segment");
    }
    return extent;
  }

  absl::StatusOr<PublishedArray> Array(const Json& json) {
    if (!json.is_object()) return Malformed("an array is not a JSON object");
    const Json name = json.value("name", Json());
    const Json dtype = json.value("dtype", Json());
    const Json shape = json.value("shape", Json());
    const Json strides = json.value("strides", Json());
    if (!name.is_string() || !dtype.is_string() || !shape.is_array()) {
      return Malformed("an array has no name, dtype or shape");
    }
    PublishedArray array{.name = name.get<std::string>(), .dtype = dtype.get<std::string>()};
    auto bytes = ItemBytes(array.dtype);
    if (!bytes.ok()) return bytes.status();
    const bool strided = strides.is_array() && strides.size() == shape.size();
    if (!strided && !strides.is_null()) return Malformed("an array has invalid strides");
    array.contiguous = !strided;
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    uint64_t span = *bytes;  // from the first to the last byte
    uint64_t below = 0;      // of these, those before the first element
    bool empty = false;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (!shape[i].is_number_unsigned()) return Malformed("an array has an invalid shape");
      const auto extent = shape[i].get<uint64_t>();
      array.shape.push_back(extent);
      if (extent == 0) empty = true;
      if (empty) continue;
      if (!strided) {
        if (extent > kMax / span) return Malformed("an array is too large");
        span *= extent;
        continue;
      }
      if (!strides[i].is_number_integer()) return Malformed("an array has invalid strides");
      const auto stride = strides[i].get<int64_t>();
      const uint64_t step =
          stride < 0 ? uint64_t{0} - static_cast<uint64_t>(stride) : static_cast<uint64_t>(stride);
      if (step != 0 && extent - 1 > (kMax - span) / step) return Malformed("an array is too large");
      span += (extent - 1) * step;
      if (stride < 0) below += (extent - 1) * step;
    }
    auto extent = Place(json, below, empty ? 0 : span);
    if (!extent.ok()) return extent.status();
    array.extent = *std::move(extent);
    return array;
  }

  absl::StatusOr<PublishedFile> File(const Json& json, absl::Span<const PublishedArray> arrays) {
    if (!json.is_object()) return Malformed("a file is not a JSON object");
    const Json name = json.value("name", Json());
    const Json bytes = json.value("bytes", Json());
    const Json header = json.value("header", Json());
    const Json range = json.value("arrays", Json());
    if (!name.is_string() || !IsFileName(name.get_ref<const std::string&>())) {
      return Malformed("a file has an invalid name");
    }
    if (!bytes.is_number_unsigned() || !range.is_array() || range.size() != 2 ||
        !range[0].is_number_unsigned() || !range[1].is_number_unsigned()) {
      return Malformed("a file has no size or no arrays");
    }
    PublishedFile file{.name = name.get<std::string>(), .bytes = bytes.get<uint64_t>()};
    file.first_array = range[0].get<size_t>();
    file.arrays = range[1].get<size_t>();
    if (file.first_array > arrays.size() || file.arrays > arrays.size() - file.first_array) {
      return Malformed("a file has arrays that do not exist");
    }
    uint64_t sum = 0;
    if (!header.is_null()) {
      if (!header.is_object() || !header.value("bytes", Json()).is_number_unsigned()) {
        return Malformed("a file has an invalid header");
      }
      auto extent = Place(header, 0, header["bytes"].get<uint64_t>());
      if (!extent.ok()) return extent.status();
      sum = extent->bytes;
      file.header = *std::move(extent);
    }
    // Below 2^63 each, and no more than segments have: the sum of many could overflow.
    for (const PublishedArray& array : arrays.subspan(file.first_array, file.arrays)) {
      if (!array.contiguous || array.extent.bytes > file.bytes - std::min(file.bytes, sum)) {
        return Malformed("a file does not consist of its arrays");
      }
      sum += array.extent.bytes;
    }
    if (sum != file.bytes) return Malformed("a file does not consist of its arrays");
    return file;
  }

  const absl::Span<const uint64_t> segments_;
};

}  // namespace

std::vector<Extent*> ExtentsOf(Contents& contents, const PublishedFile& file) {
  return Extents<Contents, Extent>(contents, file);
}

std::vector<const Extent*> ExtentsOf(const Contents& contents, const PublishedFile& file) {
  return Extents<const Contents, const Extent>(contents, file);
}

std::vector<uint64_t> Place(Contents& contents) {
  std::vector<uint64_t> sizes;
  bool open = false;  // others may join the last segment
  const auto put = [&](Extent& extent, bool alone) {
    if (extent.bytes == 0) return;
    const uint64_t used =
        sizes.empty() ? 0 : (sizes.back() + kAlignment - 1) / kAlignment * kAlignment;
    if (!open || alone || used + extent.bytes > kSegmentBytes) {
      extent.segment = sizes.size();
      extent.offset = 0;
      sizes.push_back(extent.bytes);
    } else {
      extent.segment = sizes.size() - 1;
      extent.offset = used;
      sizes.back() = used + extent.bytes;
    }
    open = !alone;
  };
  for (PublishedFile& file : contents.files) {
    for (Extent* extent : ExtentsOf(contents, file)) put(*extent, !file.header.has_value());
  }
  return sizes;
}

absl::StatusOr<std::string> EncodeContents(const Contents& contents) {
  const auto twice = [](absl::string_view what, absl::string_view name) {
    return absl::InvalidArgumentError(
        absl::StrCat("two ", what, " are named ", absl::CHexEscape(name),
                     ": a publication keeps names without folders, so rename one"));
  };
  Json json = Json::object();
  json["format"] = kFormat;
  json["single"] = false;
  json["metadata"] = nullptr;
  if (!contents.metadata.empty()) json["metadata"] = contents.metadata;
  json["arrays"] = Json::array();
  std::set<absl::string_view> names;
  // Files first: if these have one name, so have their arrays.
  Json files = Json::array();
  for (const PublishedFile& file : contents.files) {
    if (!IsFileName(file.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", absl::CHexEscape(file.name), "\" is not a valid file name"));
    }
    if (!IsUtf8(file.name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the name of file ", absl::CHexEscape(file.name), " is not UTF-8: rename it"));
    }
    if (!names.insert(file.name).second) return twice("files", file.name);
    files.push_back(FileJson(file));
  }
  names.clear();
  for (const PublishedArray& array : contents.arrays) {
    if (!names.insert(array.name).second) return twice("arrays", array.name);
    json["arrays"].push_back(ArrayJson(array));
  }
  json["files"] = std::move(files);
  const std::string text = json.dump();
  if (text.size() > kMaxMetadata) {
    return absl::InvalidArgumentError(
        absl::StrCat("the list of ", contents.arrays.size(), " arrays and ", contents.files.size(),
                     " files takes ", text.size(), " bytes, more than the ", kMaxMetadata,
                     " of a publication's metadata: publish the files in several publications"));
  }
  return text;
}

absl::StatusOr<Contents> DecodeContents(absl::string_view metadata,
                                        absl::Span<const uint64_t> segments) {
  const Json json = Json::parse(
      metadata.begin(), metadata.end(),
      [](int depth, Json::parse_event_t, Json&) { return depth <= kMaxDepth; },
      /*allow_exceptions=*/false);
  const Json named = json.is_object() ? json.value("format", Json()) : Json();
  const std::string format = named.is_string() ? named.get<std::string>() : "";
  Decoder decoder(segments);
  if (format == kFormat) return decoder.Arrays(json);
  if (format == kOldFormat) return decoder.OldFiles(json);
  if (absl::StartsWith(format, "gpumem-arrays/") || absl::StartsWith(format, "gpumem-files/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("the publication has the format ", absl::CHexEscape(format.substr(0, 60)),
                     ", and this program knows ", kFormat, ": use a newer one"));
  }
  return absl::NotFoundError("the publication describes no arrays or files");
}

}  // namespace gpumem::internal
