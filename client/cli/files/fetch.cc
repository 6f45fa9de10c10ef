// SPDX-License-Identifier: Apache-2.0
// gpumemctl fetch: a publication's contents, to files.
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/files/output_file.h"
#include "client/cli/files/publication_reader.h"
#include "client/cli/files/views.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/printable.h"
#include "client/files/names.h"
#include "client/files/safetensors.h"

namespace gpumem::cli {
namespace {

using internal::Contents;
using internal::PublishedArray;

constexpr char kSafetensors[] = ".safetensors";

bool IsFolder(const std::string& path) {
  struct stat found = {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// A file to write: a header, if one is to be made, and the extents.
struct FileToWrite {
  std::string name;
  std::string made_header;
  Extents extents;
  bool one_array = false;  // of bytes
  uint64_t bytes = 0;
};

// Returns all arrays in one file, those with the largest elements first: so each is aligned.
absl::StatusOr<FileToWrite> AsSafetensors(const Contents& contents, absl::string_view name) {
  std::vector<const PublishedArray*> arrays;
  for (const PublishedArray& array : contents.arrays) arrays.push_back(&array);
  const auto element_bytes = [](const PublishedArray* array) {
    uint64_t elements = 1;
    for (const uint64_t extent : array->shape) elements *= std::max<uint64_t>(extent, 1);
    return array->extent.bytes / elements;
  };
  std::stable_sort(arrays.begin(), arrays.end(),
                   [&](const PublishedArray* a, const PublishedArray* b) {
                     return element_bytes(a) > element_bytes(b);
                   });
  auto header = internal::EncodeSafetensorsHeader(arrays, contents.metadata);
  if (!header.ok()) return header.status();
  FileToWrite file{.name = absl::StrCat(name, kSafetensors), .made_header = *std::move(header)};
  file.bytes = file.made_header.size();
  for (const PublishedArray* array : arrays) {
    file.extents.push_back(&array->extent);
    file.bytes += array->extent.bytes;
  }
  return file;
}

std::vector<FileToWrite> AsTheyWere(const Contents& contents) {
  std::vector<FileToWrite> files;
  for (const internal::PublishedFile& file : contents.files) {
    files.push_back({.name = file.name,
                     .extents = ExtentsOf(contents, file),
                     .one_array = !file.header.has_value(),
                     .bytes = file.bytes});
  }
  return files;
}

// `segments`: the publication's segments as files, for memory that came from no files.
absl::StatusOr<std::vector<FileToWrite>> FilesOf(const Contents& contents, const Contents& segments,
                                                 const FetchCommand& command) {
  if (!command.safetensors) {
    return AsTheyWere(contents.files.empty() ? segments : contents);
  }
  const bool are_safetensors =
      !contents.files.empty() &&
      std::all_of(contents.files.begin(), contents.files.end(),
                  [](const internal::PublishedFile& file) { return file.header.has_value(); });
  if (are_safetensors) return AsTheyWere(contents);
  auto file = AsSafetensors(contents, command.name.substr(command.name.rfind('/') + 1));
  if (!file.ok()) return file.status();
  return std::vector<FileToWrite>{*std::move(file)};
}

// Returns the paths of the files. The publisher chooses their names: in a folder, the next shell
// would run a name such as .bashrc.
//   INVALID_ARGUMENT  several files, and no folder; a name that is not allowed there
absl::StatusOr<std::vector<std::string>> PathsOf(const std::vector<FileToWrite>& files,
                                                 const std::string& out, bool allow_dotfiles) {
  if (files.size() == 1 && !IsFolder(out)) return std::vector<std::string>{out};
  if (!IsFolder(out)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the publication has ", files.size(), " files, and ", out,
                     " is not a folder: create it, or name another with --out"));
  }
  std::vector<std::string> paths;
  for (const FileToWrite& file : files) {
    if (!internal::IsFileName(file.name) || Printable(file.name) != file.name) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", Printable(file.name),
          "\" has characters that are not allowed in file names: nothing was fetched"));
    }
    if (internal::IsHidden(file.name) && !allow_dotfiles) {
      return absl::InvalidArgumentError(
          absl::StrCat("the publication has a hidden file, ", file.name,
                       ": nothing was fetched; use --allow-dotfiles to write such files"));
    }
    paths.push_back(absl::StrCat(out, absl::EndsWith(out, "/") ? "" : "/", file.name));
  }
  return paths;
}

// Writes one file and compares its checksums. Returns it as an answer lists it.
absl::StatusOr<TransferredFile> Write(const FileToWrite& file, PublicationReader& reader,
                                      OutputFile& output) {
  if (absl::Status status = output.Write(file.made_header); !status.ok()) return status;
  auto checksums =
      reader.Read(file.extents, [&](absl::string_view bytes) { return output.Write(bytes); });
  if (!checksums.ok()) return checksums.status();
  for (size_t i = 0; i < checksums->size(); ++i) {
    const auto& expected = file.extents[i]->xxh128;
    if (expected.value_or((*checksums)[i]) == (*checksums)[i]) continue;
    return Differs(absl::StrCat(file.name, " in memory differs from what was published (checksum ",
                                (*checksums)[i], ", not ", *expected, "): publish it again"));
  }
  TransferredFile written{.name = file.name, .bytes = file.bytes};
  if (file.one_array) written.xxh128 = checksums->front();
  return written;
}

}  // namespace

absl::Status Run(const FetchCommand& command, const GlobalOptions& options) {
  auto reader = PublicationReader::Attach(command.name, command.as, options);
  if (!reader.ok()) return reader.status();
  const Contents& contents = (*reader)->contents();
  const Contents segments = (*reader)->AsSegments();
  auto files = FilesOf(contents, segments, command);
  if (!files.ok()) return files.status();
  auto paths = PathsOf(*files, command.out, command.allow_dotfiles);
  if (!paths.ok()) return paths.status();

  Transferred fetched = {.publication = command.name,
                         .tenant = (*reader)->attachment().tenant(),
                         .version = (*reader)->attachment().version()};
  uint64_t total = 0;
  for (const FileToWrite& file : *files) {
    total += file.bytes;
    fetched.arrays += file.one_array ? 1 : file.extents.size() - file.made_header.empty();
  }
  (*reader)->Begin(total);
  std::vector<std::unique_ptr<OutputFile>> outputs;
  for (size_t i = 0; i < files->size(); ++i) {
    auto output = OutputFile::Create((*paths)[i], command.force);
    if (!output.ok()) return output.status();
    auto written = Write((*files)[i], **reader, **output);
    if (!written.ok()) return written.status();
    fetched.files.push_back(*std::move(written));
    // Closed here: open descriptors for all files could exceed the limit.
    if (auto status = (*output)->Finish(); !status.ok()) return status;
    outputs.push_back(*std::move(output));
  }
  // Commits all of them, or none, except if such a file was created meanwhile.
  for (const auto& output : outputs) {
    if (auto status = output->Commit(); !status.ok()) return status;
  }
  (*reader)->End();
  fetched.took = (*reader)->Took();
  if (command.out == "-") return absl::OkStatus();  // stdout has the bytes
  Print(options.json ? Document(FetchedJson(fetched, command.out))
                     : FetchedView(fetched, command.out, options.exact));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
