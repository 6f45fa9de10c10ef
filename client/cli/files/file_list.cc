// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/file_list.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cli/text/printable.h"

namespace gpumem::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "gpumem-files/1";
constexpr char kFormats[] = "gpumem-files/";  // the prefix of future formats, too
constexpr size_t kMaxMetadata = size_t{1} << 20;

// The list has three levels. Deeper ones are dropped during parsing: copies of deeply nested JSON
// recurse.
constexpr int kMaxDepth = 16;

bool IsXxh128(absl::string_view text) {
  if (text.size() != 32) return false;
  for (const char c : text) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c)) ||
        absl::ascii_isupper(static_cast<unsigned char>(c))) {
      return false;
    }
  }
  return true;
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the publication's list of files is invalid: ", what));
}

absl::StatusOr<ListedFile> DecodeFile(const Json& json) {
  if (!json.is_object()) return Malformed("a file is not a JSON object");
  const Json name = json.value("name", Json());
  const Json bytes = json.value("bytes", Json());
  const Json xxh128 = json.value("xxh128", Json());
  ListedFile file;
  if (!name.is_string()) return Malformed("a file has no name");
  file.name = name.get<std::string>();
  if (!IsFileName(file.name)) return Malformed("a file has an invalid name");
  if (!bytes.is_number_unsigned()) return Malformed("a file has no size");
  file.bytes = bytes.get<uint64_t>();
  if (xxh128.is_null()) return file;
  if (!xxh128.is_string() || !IsXxh128(xxh128.get_ref<const std::string&>())) {
    return Malformed("a file has an invalid checksum");
  }
  file.xxh128 = xxh128.get<std::string>();
  return file;
}

}  // namespace

bool IsFileName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         !absl::StrContains(name, '/') && !absl::StrContains(name, '\0');
}

bool IsHidden(absl::string_view name) { return absl::StartsWith(name, "."); }

absl::StatusOr<std::string> EncodeFileList(absl::Span<const ListedFile> files) {
  Json list = Json::array();
  std::set<absl::string_view> names;
  for (const ListedFile& file : files) {
    if (!IsFileName(file.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", Printable(file.name), "\" is not a valid file name"));
    }
    if (!names.insert(file.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two files are named ", file.name,
                       ": rename one, since a publication keeps names without folders"));
    }
    Json json = Json::object();
    json["name"] = file.name;
    json["bytes"] = file.bytes;
    json["xxh128"] = nullptr;
    if (file.xxh128) json["xxh128"] = *file.xxh128;
    list.push_back(std::move(json));
  }
  Json json = Json::object();
  json["format"] = kFormat;
  json["files"] = std::move(list);
  // Compared afterwards, which is simpler than checking each name for UTF-8: invalid bytes were
  // replaced.
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  auto read = DecodeFileList(text);
  if (!read.ok()) return read.status();
  for (size_t i = 0; i < files.size(); ++i) {
    if ((*read)[i] == files[i]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the name of file ", i + 1, " is not UTF-8: rename it"));
  }
  if (text.size() > kMaxMetadata) {
    return absl::InvalidArgumentError(
        absl::StrCat("the list of ", files.size(), " files has ", text.size(),
                     " bytes, more than the 1 MiB of a publication's metadata: publish fewer "
                     "files, or use shorter names"));
  }
  return text;
}

absl::StatusOr<std::vector<ListedFile>> DecodeFileList(absl::string_view metadata) {
  bool too_deep = false;
  const auto keep = [&](int depth, Json::parse_event_t, const Json&) {
    too_deep |= depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  const Json json = Json::parse(metadata, keep, /*allow_exceptions=*/false);
  const std::string format =
      json.is_object() && json.contains("format") && json["format"].is_string()
          ? json["format"].get<std::string>()
          : "";
  if (!absl::StartsWith(format, kFormats)) {
    return absl::NotFoundError("the publication has no list of files");
  }
  if (format != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("this gpumemctl does not know the format of the publication's list of files: "
                     "use a newer gpumemctl"));
  }
  if (too_deep) return Malformed("it is nested too deeply");
  const Json list = json.value("files", Json());
  if (!list.is_array()) return Malformed("it has no files");
  std::vector<ListedFile> files;
  std::set<std::string> names;
  for (const Json& each : list) {
    absl::StatusOr<ListedFile> file = DecodeFile(each);
    if (!file.ok()) return file.status();
    if (!names.insert(file->name).second) return Malformed("two files have the same name");
    files.push_back(*std::move(file));
  }
  return files;
}

}  // namespace gpumem::cli
