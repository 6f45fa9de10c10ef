// SPDX-License-Identifier: Apache-2.0
// gpumemctl fetch and verify: a publication's contents, to files and against its checksums.
#include <sys/stat.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/exit_code.h"
#include "client/cli/commands/output.h"
#include "client/cli/files/file_list.h"
#include "client/cli/files/output_file.h"
#include "client/cli/files/progress.h"
#include "client/cli/files/staging_of.h"
#include "client/cli/files/transfer.h"
#include "client/cli/files/views.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/printable.h"
#include "client/cli/text/stop_signals.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"

namespace gpumem::cli {
namespace {

bool IsFolder(const std::string& path) {
  struct stat found = {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// Returns the files in the segments: those of the metadata, else each segment as a file.
absl::StatusOr<std::vector<ListedFile>> FilesIn(const Attachment& attachment,
                                                const std::string& publication) {
  const auto segments = attachment.segments();
  absl::StatusOr<std::vector<ListedFile>> files = DecodeFileList(attachment.metadata());
  if (absl::IsNotFound(files.status())) {
    const std::string name = publication.substr(publication.rfind('/') + 1);
    files.emplace();
    for (size_t i = 0; i < segments.size(); ++i) {
      files->push_back({.name = segments.size() == 1 ? name : absl::StrCat(name, ".", i),
                        .bytes = segments[i].size(),
                        .xxh128 = std::nullopt});
    }
  }
  if (!files.ok()) return files;
  bool fits = files->size() == segments.size();
  for (size_t i = 0; fits && i < segments.size(); ++i) {
    fits = (*files)[i].bytes <= segments[i].size();
  }
  if (!fits) {
    return absl::InvalidArgumentError(
        "the publication's list of files does not match its segments: publish it again");
  }
  return files;
}

absl::Status Differs(absl::string_view what) {
  absl::Status status = absl::DataLossError(what);
  status.SetPayload(kDiffersPayload, absl::Cord());
  return status;
}

// An attached publication, whose files are read one after another.
class Reading {
 public:
  static absl::StatusOr<std::unique_ptr<Reading>> Begin(const std::string& publication,
                                                        const std::string& tenant,
                                                        const GlobalOptions& options) {
    auto reading = std::unique_ptr<Reading>(new Reading);
    auto client = Client::Connect({.runtime_dir = options.runtime_dir,
                                   .tenant = tenant,
                                   .name = "gpumemctl",
                                   .timeout = options.timeout.value_or(ConnectOptions().timeout)});
    if (!client.ok()) return client.status();
    auto attachment = (*client)->Attach(publication);
    if (!attachment.ok()) return attachment.status();
    auto files = FilesIn(*attachment, publication);
    if (!files.ok()) return files.status();
    reading->read_.publication = publication;
    reading->read_.tenant = attachment->tenant();
    reading->read_.version = attachment->version();
    reading->read_.files = *std::move(files);
    reading->attachment_ = *std::move(attachment);
    reading->progress_.emplace(publication, BytesOf(reading->read_.files), !options.json);
    return reading;
  }

  const std::vector<ListedFile>& files() const { return read_.files; }
  // With the time that it took so far.
  Transferred Done() {
    progress_.reset();
    read_.took = absl::Now() - begun_;
    return read_;
  }

  // Passes the memory of this file to `use`, piece by piece, and returns its checksum.
  absl::StatusOr<std::string> Read(size_t file,
                                   absl::FunctionRef<absl::Status(absl::string_view)> use) {
    const Segment& segment = attachment_.segments()[file];
    std::unique_ptr<Staging>& staging = stagings_[segment.device_uuid()];
    if (staging == nullptr) {
      auto made = StagingOf(segment);
      if (!made.ok()) return made.status();
      staging = *std::move(made);
    }
    auto checksum = Unload(
        {.mapped = segment.data(), .bytes = files()[file].bytes}, *staging,
        [&](uint64_t done) {
          progress_->Show(before_ + done);
          return signals_.Wait(absl::InfinitePast()) == StopSignals::Event::kStop
                     ? absl::CancelledError("stopped by a signal")
                     : absl::OkStatus();
        },
        use);
    before_ += files()[file].bytes;
    return checksum;
  }

 private:
  Reading() = default;

  StopSignals signals_;  // constructed before the client's threads start
  const absl::Time begun_ = absl::Now();
  Transferred read_;
  Attachment attachment_;
  std::map<std::string, std::unique_ptr<Staging>> stagings_;  // by device
  std::optional<Progress> progress_;
  uint64_t before_ = 0;  // bytes of completed files
};

// Returns the paths of the files. The publisher chooses their names: in a folder, the next shell
// would run a name such as .bashrc.
//   INVALID_ARGUMENT  several files, and no folder; a name that is not allowed there
absl::StatusOr<std::vector<std::string>> PathsOf(const std::vector<ListedFile>& files,
                                                 const std::string& out, bool allow_dotfiles) {
  if (files.size() == 1 && !IsFolder(out)) return std::vector<std::string>{out};
  if (!IsFolder(out)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the publication has ", files.size(), " files, and ", out,
                     " is not a folder: create it, or name another with --out"));
  }
  std::vector<std::string> paths;
  for (const ListedFile& file : files) {
    if (!IsFileName(file.name) || Printable(file.name) != file.name) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", Printable(file.name),
          "\" has characters that are not allowed in file names: nothing was fetched"));
    }
    if (IsHidden(file.name) && !allow_dotfiles) {
      return absl::InvalidArgumentError(
          absl::StrCat("the publication has a hidden file, ", file.name,
                       ": nothing was fetched; use --allow-dotfiles to write such files"));
    }
    paths.push_back(absl::StrCat(out, absl::EndsWith(out, "/") ? "" : "/", file.name));
  }
  return paths;
}

}  // namespace

absl::Status Run(const FetchCommand& command, const GlobalOptions& options) {
  auto reading = Reading::Begin(command.name, command.as, options);
  if (!reading.ok()) return reading.status();
  const std::vector<ListedFile>& files = (*reading)->files();
  auto paths = PathsOf(files, command.out, command.allow_dotfiles);
  if (!paths.ok()) return paths.status();
  std::vector<std::unique_ptr<OutputFile>> outputs;
  for (size_t i = 0; i < files.size(); ++i) {
    auto output = OutputFile::Create((*paths)[i], command.force);
    if (!output.ok()) return output.status();
    auto checksum =
        (*reading)->Read(i, [&](absl::string_view bytes) { return (*output)->Write(bytes); });
    if (!checksum.ok()) return checksum.status();
    if (files[i].xxh128.value_or(*checksum) != *checksum) {
      return Differs(absl::StrCat(files[i].name,
                                  " in memory differs from what was published (checksum ",
                                  *checksum, ", not ", *files[i].xxh128, "): publish it again"));
    }
    // Closed here: open descriptors for all files could exceed the limit.
    if (auto status = (*output)->Finish(); !status.ok()) return status;
    outputs.push_back(*std::move(output));
  }
  // Commits all of them, or none, except if such a file was created meanwhile.
  for (const auto& output : outputs) {
    if (auto status = output->Commit(); !status.ok()) return status;
  }
  const Transferred fetched = (*reading)->Done();
  if (command.out == "-") return absl::OkStatus();  // stdout has the bytes
  Print(options.json ? Document(FetchedJson(fetched, command.out))
                     : FetchedView(fetched, command.out, options.exact));
  return absl::OkStatus();
}

absl::Status Run(const VerifyCommand& command, const GlobalOptions& options) {
  auto reading = Reading::Begin(command.name, command.as, options);
  if (!reading.ok()) return reading.status();
  std::vector<Verified> verified;
  size_t different = 0;
  size_t unknown = 0;
  for (size_t i = 0; i < (*reading)->files().size(); ++i) {
    const ListedFile& file = (*reading)->files()[i];
    auto checksum = (*reading)->Read(i, [](absl::string_view) { return absl::OkStatus(); });
    if (!checksum.ok()) return checksum.status();
    Verified::State state = Verified::State::kUnknown;
    if (file.xxh128) {
      state = *checksum == *file.xxh128 ? Verified::State::kSame : Verified::State::kDifferent;
    }
    different += state == Verified::State::kDifferent ? 1 : 0;
    unknown += state == Verified::State::kUnknown ? 1 : 0;
    verified.push_back({.file = {file.name, file.bytes, *checksum}, .state = state});
  }
  const Transferred read = (*reading)->Done();
  Print(options.json ? Document(VerifiedJson(read, verified))
                     : VerifiedView(verified, options.exact, LayoutFor(options)));
  if (different > 0) {
    // The document says it already.
    if (options.json) return Silent(Differs("the memory differs from what was published"));
    return Differs(
        absl::StrCat(different, " of ", Counted(verified.size(), "file"),
                     ": the memory differs from what was published: a process has written "
                     "to it; publish it again"));
  }
  if (unknown > 0) {
    return absl::FailedPreconditionError(
        "the publication has no checksums to compare with: publish it by gpumemctl publish, "
        "without --no-checksum");
  }
  return absl::OkStatus();
}

}  // namespace gpumem::cli
