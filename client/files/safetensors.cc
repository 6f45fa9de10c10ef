// SPDX-License-Identifier: Apache-2.0
#include "client/files/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/files/names.h"

namespace gpumem::internal {
namespace {

using Json = nlohmann::json;

// The reference implementation's limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDimensions = 32;
constexpr uint64_t kMaxShards = 100'000;
constexpr char kExtension[] = ".safetensors";

struct Dtype {
  const char* name;
  const char* numpy;
  unsigned bits;
};
constexpr Dtype kDtypes[] = {
    {"BOOL", "bool", 8},
    {"U8", "uint8", 8},
    {"I8", "int8", 8},
    {"F8_E5M2", "float8_e5m2", 8},
    {"F8_E4M3", "float8_e4m3fn", 8},
    {"F8_E8M0", "float8_e8m0fnu", 8},
    {"F8_E4M3FNUZ", "float8_e4m3fnuz", 8},
    {"F8_E5M2FNUZ", "float8_e5m2fnuz", 8},
    {"I16", "int16", 16},
    {"U16", "uint16", 16},
    {"F16", "float16", 16},
    {"BF16", "bfloat16", 16},
    {"I32", "int32", 32},
    {"U32", "uint32", 32},
    {"F32", "float32", 32},
    {"C64", "complex64", 64},
    {"F64", "float64", 64},
    {"I64", "int64", 64},
    {"U64", "uint64", 64},
    {"F4", "uint8", 4},
    {"F6_E2M3", "uint8", 6},
    {"F6_E3M2", "uint8", 6},
};

const Dtype* FindDtype(absl::string_view name) {
  const auto* const found = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                         [&](const Dtype& dtype) { return name == dtype.name; });
  return found == std::end(kDtypes) ? nullptr : found;
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("invalid safetensors: ", what));
}

std::string Quoted(absl::string_view name) {
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, 200)), "\"");
}

// Parses an object of objects. Deeper levels than `depth` and names that occur twice are an error:
// parsers differ in which of two they take.
absl::StatusOr<Json> ParseObject(absl::string_view text, int depth) {
  std::vector<std::set<std::string>> keys;
  std::string twice;
  bool deep = false;
  const Json json = Json::parse(
      text.begin(), text.end(),
      [&](int at, Json::parse_event_t event, Json& parsed) {
        if (at > depth) deep = true;
        if (event == Json::parse_event_t::object_start) {
          keys.resize(static_cast<size_t>(at) + 1);
          keys.back().clear();
        }
        if (event == Json::parse_event_t::key && !deep) {
          const auto& key = parsed.get_ref<const std::string&>();
          if (!keys[static_cast<size_t>(at) - 1].insert(key).second) twice = key;
        }
        return !deep;
      },
      /*allow_exceptions=*/false);
  if (deep) return Malformed("its JSON is nested too deeply");
  if (!json.is_object()) return Malformed("its header is no JSON object");
  if (!twice.empty()) return Malformed(absl::StrCat(Quoted(twice), " occurs twice"));
  return json;
}

// The bytes of a tensor, or an error if they are more than 2^63.
absl::StatusOr<uint64_t> BytesOf(const std::vector<uint64_t>& shape, unsigned bits) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  uint64_t elements = 1;
  for (const uint64_t extent : shape) {
    if (extent > kMax / 8 / elements) return Malformed("a shape is too large");
    elements *= extent;
  }
  // Below 2^60 elements of at most 64 bits.
  if (elements > kMax / bits || elements * bits % 8 != 0) {
    return Malformed("a shape is too large, or no whole number of bytes");
  }
  return elements * bits / 8;
}

absl::StatusOr<SafetensorsTensor> ParseTensor(const std::string& name, const Json& json,
                                              uint64_t header_bytes, uint64_t file_bytes) {
  const auto malformed = [&](absl::string_view what) {
    return Malformed(absl::StrCat("tensor ", Quoted(name), ": ", what));
  };
  if (!IsArrayName(name)) return malformed("the name is empty, too long or has control characters");
  if (!json.is_object()) return malformed("it is no JSON object");
  const Json dtype = json.value("dtype", Json());
  const Json shape = json.value("shape", Json());
  const Json offsets = json.value("data_offsets", Json());
  const Dtype* const type =
      dtype.is_string() ? FindDtype(dtype.get_ref<const std::string&>()) : nullptr;
  if (type == nullptr) {
    return malformed(
        absl::StrCat("the dtype ", absl::CHexEscape(dtype.dump().substr(0, 40)), " is unknown"));
  }
  if (!shape.is_array() || shape.size() > kMaxDimensions) return malformed("it has no valid shape");
  SafetensorsTensor tensor{.name = name, .dtype = type->numpy};
  for (const Json& extent : shape) {
    if (!extent.is_number_unsigned()) return malformed("it has no valid shape");
    tensor.shape.push_back(extent.get<uint64_t>());
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return malformed("it has no valid data_offsets");
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (begin > end || end > file_bytes - header_bytes) return malformed("it lies outside the file");
  const absl::StatusOr<uint64_t> bytes = BytesOf(tensor.shape, type->bits);
  if (!bytes.ok()) return malformed(bytes.status().message());
  if (*bytes != end - begin) {
    return malformed(absl::StrCat("its shape takes ", *bytes, " bytes, and its data_offsets have ",
                                  end - begin));
  }
  if (type->bits < 8) tensor.shape = {*bytes};
  tensor.offset = header_bytes + begin;
  tensor.bytes = *bytes;
  return tensor;
}

}  // namespace

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view begin, uint64_t file_bytes) {
  if (begin.size() < kSafetensorsLengthBytes || file_bytes < kSafetensorsLengthBytes) {
    return Malformed("the file is too short");
  }
  uint64_t length = 0;
  for (size_t i = kSafetensorsLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(begin[i]);
  }
  if (length > kMaxHeaderBytes) return Malformed("the header is too large");
  if (length > file_bytes - kSafetensorsLengthBytes) {
    return Malformed("the file is shorter than its header says");
  }
  return kSafetensorsLengthBytes + length;
}

absl::StatusOr<Safetensors> ParseSafetensors(absl::string_view header, uint64_t file_bytes) {
  const absl::StatusOr<uint64_t> header_bytes = SafetensorsHeaderBytes(header, file_bytes);
  if (!header_bytes.ok()) return header_bytes.status();
  if (header.size() != *header_bytes) return Malformed("the header is not complete");
  constexpr int kDepth = 3;  // the object, a tensor, its shape
  const absl::StatusOr<Json> json = ParseObject(header.substr(kSafetensorsLengthBytes), kDepth);
  if (!json.ok()) return json.status();
  Safetensors parsed{.header_bytes = *header_bytes};
  for (const auto& [name, value] : json->items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return Malformed("its __metadata__ is no JSON object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) return Malformed("its __metadata__ is not all strings");
        parsed.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    auto tensor = ParseTensor(name, value, *header_bytes, file_bytes);
    if (!tensor.ok()) return tensor.status();
    parsed.tensors.push_back(*std::move(tensor));
  }
  std::sort(parsed.tensors.begin(), parsed.tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
            });
  uint64_t next = *header_bytes;
  for (const SafetensorsTensor& tensor : parsed.tensors) {
    if (tensor.offset != next) {
      return Malformed(absl::StrCat("there is ", tensor.offset < next ? "an overlap" : "a gap",
                                    " before tensor ", Quoted(tensor.name)));
    }
    next += tensor.bytes;
  }
  if (next != file_bytes) {
    return Malformed(absl::StrCat("the file has ", file_bytes - next, " bytes behind its tensors"));
  }
  return parsed;
}

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view json) {
  const absl::StatusOr<Json> parsed = ParseObject(json, 8);
  if (!parsed.ok()) return parsed.status();
  const Json map = parsed->value("weight_map", Json());
  if (!map.is_object() || map.empty()) return Malformed("the index has no weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map.items()) {
    if (!IsArrayName(name)) return Malformed("the index has an invalid name of a tensor");
    if (!file.is_string() || !IsFileName(file.get_ref<const std::string&>())) {
      return Malformed(absl::StrCat("the index names no valid file for ", Quoted(name)));
    }
    files[name] = file.get<std::string>();
  }
  return files;
}

absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const PublishedArray* const> arrays,
    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const PublishedArray* array : arrays) {
    const auto malformed = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("array ", Quoted(array->name), " ", what,
                                                     ", which safetensors cannot have"));
    };
    const auto* const dtype =
        std::find_if(std::begin(kDtypes), std::end(kDtypes),
                     [&](const Dtype& each) { return array->dtype == each.numpy; });
    if (dtype == std::end(kDtypes)) {
      return malformed(absl::StrCat("has the dtype ", absl::CHexEscape(array->dtype)));
    }
    if (!array->contiguous) return malformed("has strides");
    if (!IsArrayName(array->name) || array->name == "__metadata__") {
      return malformed("has this name");
    }
    json[array->name] = {{"dtype", dtype->name},
                         {"shape", array->shape},
                         {"data_offsets", {offset, offset + array->extent.bytes}}};
    offset += array->extent.bytes;
  }
  std::string header = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  // The tensors begin at a multiple of 8 bytes, as in files of the reference implementation.
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes) return Malformed("the header would be too large");
  std::string length(kSafetensorsLengthBytes, '\0');
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  return length + header;
}

std::vector<std::string> ShardNames(absl::string_view name) {
  // PREFIX-NNNNN-of-NNNNN.safetensors
  constexpr size_t kDigits = 5;
  constexpr absl::string_view kOf = "-of-";
  absl::string_view rest = name;
  uint64_t index = 0;
  uint64_t count = 0;
  if (!absl::ConsumeSuffix(&rest, kExtension) || rest.size() < 2 * kDigits + kOf.size() + 2) {
    return {};
  }
  const auto take = [&](uint64_t* number) {
    // Alone, SimpleAtoi takes signs and blanks for parts of a number.
    const absl::string_view digits = rest.substr(rest.size() - kDigits);
    rest.remove_suffix(kDigits);
    return std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
           absl::SimpleAtoi(digits, number);
  };
  if (!take(&count) || !absl::ConsumeSuffix(&rest, kOf) || rest.size() < kDigits + 2 ||
      !take(&index) || !absl::EndsWith(rest, "-")) {
    return {};
  }
  if (index == 0 || index > count || count >= kMaxShards) return {};
  std::vector<std::string> names;
  for (uint64_t i = 1; i <= count; ++i) {
    names.push_back(absl::StrFormat("%s%05d-of-%05d%s", rest, i, count, kExtension));
  }
  return names;
}

}  // namespace gpumem::internal
