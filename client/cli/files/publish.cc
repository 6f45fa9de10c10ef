// SPDX-License-Identifier: Apache-2.0
// gpumemctl publish: copies files into segments, one for each, and publishes these. The publication
// outlives this process, until it is unpublished or expires (--expire-after).
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands/client_devices.h"
#include "client/cli/commands/commands.h"
#include "client/cli/files/file_list.h"
#include "client/cli/files/file_reader.h"
#include "client/cli/files/progress.h"
#include "client/cli/files/staging_of.h"
#include "client/cli/files/transfer.h"
#include "client/cli/files/views.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/stop_signals.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"

namespace gpumem::cli {
namespace {

absl::StatusOr<std::vector<std::unique_ptr<FileReader>>> OpenAll(
    const std::vector<std::string>& paths) {
  std::vector<std::unique_ptr<FileReader>> readers;
  for (const std::string& path : paths) {
    auto reader = FileReader::Open(path);
    if (!reader.ok()) return reader.status();
    readers.push_back(*std::move(reader));
  }
  return readers;
}

// Returns the readers' files, without checksums: these come from loading.
std::vector<ListedFile> List(const std::vector<std::unique_ptr<FileReader>>& readers) {
  std::vector<ListedFile> files;
  for (const auto& reader : readers) {
    files.push_back({.name = reader->name(), .bytes = reader->bytes(), .xxh128 = std::nullopt});
  }
  return files;
}

// Acquires one segment for each file, all on one device: the first segment decides which. An error
// keeps its code and payloads, and names the file.
absl::StatusOr<std::vector<Segment>> AcquireFor(Client& client, const DeviceName& device, Kind kind,
                                                const std::vector<ListedFile>& files) {
  std::vector<Segment> segments;
  for (const ListedFile& file : files) {
    auto segment = client.Acquire({.bytes = file.bytes,
                                   .device = segments.empty() ? device : segments[0].device_uuid(),
                                   .kind = kind});
    if (!segment.ok()) {
      absl::Status status(segment.status().code(),
                          absl::StrCat(file.name, ": ", segment.status().message()));
      segment.status().ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
        status.SetPayload(url, payload);
      });
      return status;
    }
    segments.push_back(*std::move(segment));
  }
  return segments;
}

}  // namespace

absl::Status Run(const PublishCommand& command, const GlobalOptions& options) {
  StopSignals signals;
  const absl::Time begun = absl::Now();
  auto readers = OpenAll(command.files);
  if (!readers.ok()) return readers.status();
  std::vector<ListedFile> files = List(*readers);
  // Only a check, before any file is read: it reports invalid names. The checksums are still
  // missing.
  if (auto list = EncodeFileList(files); !list.ok()) return list.status();

  auto client = Client::Connect({.runtime_dir = options.runtime_dir,
                                 .tenant = command.as,
                                 .name = "gpumemctl publish",
                                 .timeout = options.timeout.value_or(ConnectOptions().timeout)});
  if (!client.ok()) return client.status();
  absl::StatusOr<DeviceName> device = DeviceForClient(**client, command.device);
  if (!device.ok()) return device.status();
  auto segments = AcquireFor(**client, *device, command.kind, files);
  if (!segments.ok()) return segments.status();
  // The command line requires at least one file. All segments are of one device and kind.
  auto staging = StagingOf((*segments)[0]);
  if (!staging.ok()) return staging.status();

  std::vector<FileReader*> sources;
  std::vector<Placed> places;
  for (size_t i = 0; i < files.size(); ++i) {
    sources.push_back((*readers)[i].get());
    places.push_back({.mapped = (*segments)[i].data(), .bytes = files[i].bytes});
  }
  std::vector<std::string> checksums;
  {
    Progress progress(command.name, BytesOf(files), !options.json);
    absl::Status loaded = Load(
        sources, places, **staging,
        [&](uint64_t done) {
          progress.Show(done);
          // Polls: returns at once.
          return signals.Wait(absl::InfinitePast()) == StopSignals::Event::kStop
                     ? absl::CancelledError("stopped by a signal; nothing was published")
                     : absl::OkStatus();
        },
        command.checksum ? &checksums : nullptr);
    if (!loaded.ok()) return loaded;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (auto status = sources[i]->CheckUnchanged(); !status.ok()) return status;
    if (command.checksum) files[i].xxh128 = checksums[i];
  }
  auto metadata = EncodeFileList(files);
  if (!metadata.ok()) return metadata.status();
  auto version = (*client)->Publish(command.name, *segments,
                                    {.metadata = *std::move(metadata),
                                     .access = command.access,
                                     .expire_after = command.expire_after});
  if (!version.ok()) return version.status();
  const Transferred published = {.publication = command.name,
                                 .tenant = (*client)->tenant(),
                                 .version = *version,
                                 .files = std::move(files),
                                 .took = absl::Now() - begun};
  Print(options.json ? Document(PublishedJson(published))
                     : PublishedView(published, options.exact));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
