// SPDX-License-Identifier: Apache-2.0
#include "client/files/sources.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/files/safetensors.h"

namespace gpumem::internal {
namespace {

constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

bool IsIndex(absl::string_view path) { return absl::EndsWith(path, ".safetensors.index.json"); }

bool IsSafetensors(absl::string_view path, FileFormat format) {
  return format == FileFormat::kSafetensors ||
         (format == FileFormat::kByName && absl::EndsWith(path, ".safetensors"));
}

absl::Status In(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// The files to open, and which file has each tensor, as an index says.
struct Listed {
  std::vector<std::string> paths;
  std::map<std::string, std::string> file_of;  // by the tensor's name; empty: no index
};

absl::Status AddIndex(const std::string& path, Listed& listed) {
  auto reader = FileReader::Open(path);
  if (!reader.ok()) return reader.status();
  if ((*reader)->bytes() > kMaxIndexBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is too large for an index"));
  }
  std::string text((*reader)->bytes(), '\0');
  if (absl::Status status = (*reader)->Read(0, text.size(), text.data()); !status.ok()) {
    return status;
  }
  auto files = ParseSafetensorsIndex(text);
  if (!files.ok()) return In(path, files.status());
  std::set<std::string> names;
  for (auto& [tensor, file] : *files) {
    names.insert(file);
    const auto [known, is_new] = listed.file_of.emplace(tensor, file);
    if (!is_new && known->second != file) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": another index has tensor \"", tensor, "\" in another file"));
    }
  }
  for (const std::string& name : names) {
    // A file may be given beside its index.
    const std::string beside = absl::StrCat(FolderOf(path), name);
    if (std::find(listed.paths.begin(), listed.paths.end(), beside) == listed.paths.end()) {
      listed.paths.push_back(beside);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Listed> List(absl::Span<const std::string> paths, FileFormat format) {
  Listed listed;
  for (const std::string& path : paths) {
    if (format == FileFormat::kBytes || !IsIndex(path)) listed.paths.push_back(path);
  }
  for (const std::string& path : paths) {
    if (format == FileFormat::kBytes || !IsIndex(path)) continue;
    if (absl::Status status = AddIndex(path, listed); !status.ok()) return status;
  }
  return listed;
}

absl::Status CheckShards(const Listed& listed, FileFormat format) {
  std::set<std::string> there;
  for (const std::string& path : listed.paths) there.insert(path.substr(path.rfind('/') + 1));
  for (const std::string& path : listed.paths) {
    if (!IsSafetensors(path, format)) continue;
    for (const std::string& name : ShardNames(path.substr(path.rfind('/') + 1))) {
      if (there.contains(name)) continue;
      return absl::NotFoundError(absl::StrCat(path, " is one of several files, and ", name,
                                              " is missing: name all of them"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Safetensors> ReadHeader(FileReader& reader) {
  std::string header(std::min(kSafetensorsLengthBytes, reader.bytes()), '\0');
  absl::Status status = reader.Read(0, header.size(), header.data());
  if (!status.ok()) return status;
  const absl::StatusOr<uint64_t> bytes = SafetensorsHeaderBytes(header, reader.bytes());
  if (!bytes.ok()) return bytes.status();
  header.resize(*bytes);
  status = reader.Read(0, header.size(), header.data());
  if (!status.ok()) return status;
  return ParseSafetensors(header, reader.bytes());
}

absl::Status AddSafetensors(const std::string& path, FileReader& reader, const Listed& listed,
                            Contents& contents) {
  auto parsed = ReadHeader(reader);
  if (!parsed.ok()) return In(path, parsed.status());
  PublishedFile file{.name = reader.name(), .bytes = reader.bytes()};
  file.header = Extent{.bytes = parsed->header_bytes};
  file.first_array = contents.arrays.size();
  file.arrays = parsed->tensors.size();
  for (SafetensorsTensor& tensor : parsed->tensors) {
    const auto said = listed.file_of.find(tensor.name);
    if (said != listed.file_of.end() && said->second != file.name) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor \"", tensor.name, "\" is in this file, and the index names another"));
    }
    contents.arrays.push_back({.name = std::move(tensor.name),
                               .dtype = std::move(tensor.dtype),
                               .shape = std::move(tensor.shape),
                               .extent = {.bytes = tensor.bytes}});
  }
  contents.metadata.merge(parsed->metadata);
  contents.files.push_back(std::move(file));
  return absl::OkStatus();
}

void AddBytes(const FileReader& reader, Contents& contents) {
  PublishedFile file{.name = reader.name(), .bytes = reader.bytes()};
  file.first_array = contents.arrays.size();
  file.arrays = 1;
  contents.arrays.push_back({.name = file.name,
                             .dtype = "uint8",
                             .shape = {file.bytes},
                             .extent = {.bytes = file.bytes}});
  contents.files.push_back(std::move(file));
}

// Whatever the index names is there.
absl::Status CheckIndex(const Listed& listed, const Contents& contents) {
  if (listed.file_of.empty()) return absl::OkStatus();
  std::set<absl::string_view> names;
  for (const PublishedArray& array : contents.arrays) names.insert(array.name);
  for (const auto& [tensor, file] : listed.file_of) {
    if (names.contains(tensor)) continue;
    return absl::InvalidArgumentError(absl::StrCat("the index has tensor \"", tensor, "\" in ",
                                                   file, ", which does not have it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Sources> OpenSources(absl::Span<const std::string> paths, FileFormat format) {
  auto listed = List(paths, format);
  if (!listed.ok()) return listed.status();
  if (listed->paths.empty()) return absl::InvalidArgumentError("there is no file to publish");
  if (absl::Status status = CheckShards(*listed, format); !status.ok()) return status;
  Sources sources;
  for (const std::string& path : listed->paths) {
    auto reader = FileReader::Open(path);
    if (!reader.ok()) return reader.status();
    if (IsSafetensors(path, format)) {
      absl::Status status = AddSafetensors(path, **reader, *listed, sources.contents);
      if (!status.ok()) return status;
    } else {
      AddBytes(**reader, sources.contents);
    }
    sources.readers.push_back(*std::move(reader));
  }
  if (absl::Status status = CheckIndex(*listed, sources.contents); !status.ok()) return status;
  // Only a check, before memory is taken: it reports invalid names, and too many.
  Contents with_checksums = sources.contents;
  for (PublishedFile& file : with_checksums.files) {
    for (Extent* extent : ExtentsOf(with_checksums, file)) extent->xxh128 = std::string(32, '0');
  }
  if (auto encoded = EncodeContents(with_checksums); !encoded.ok()) return encoded.status();
  return sources;
}

}  // namespace gpumem::internal
