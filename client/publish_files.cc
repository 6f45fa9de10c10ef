// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/files/content_id.h"
#include "client/files/contents.h"
#include "client/files/read_ahead.h"
#include "client/files/sources.h"
#include "client/files/staging_of.h"
#include "client/files/transfer.h"
#include "gpumem/files.h"

namespace gpumem {
namespace {

using internal::Contents;
using internal::Extent;

// Returns the name of the first file with bytes in the segment.
std::string FileIn(const Contents& contents, size_t segment) {
  for (const internal::PublishedFile& file : contents.files) {
    for (const Extent* extent : ExtentsOf(contents, file)) {
      if (extent->bytes > 0 && extent->segment == segment) return file.name;
    }
  }
  return "";
}

// Acquires the segments, all on one device: the first decides which. An error keeps its code and
// payloads, and names a file.
absl::StatusOr<std::vector<Segment>> AcquireAll(Client& client, absl::Span<const uint64_t> sizes,
                                                const Contents& contents,
                                                const PublishFilesOptions& options) {
  std::vector<Segment> segments;
  for (const uint64_t bytes : sizes) {
    auto segment = client.Acquire(
        {.bytes = bytes,
         .device = segments.empty() ? options.device : DeviceName(segments[0].device_uuid()),
         .kind = options.kind,
         .timeout = options.timeout});
    if (!segment.ok()) {
      absl::Status status(segment.status().code(), absl::StrCat(FileIn(contents, segments.size()),
                                                                ": ", segment.status().message()));
      segment.status().ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
        status.SetPayload(url, payload);
      });
      return status;
    }
    segments.push_back(*std::move(segment));
  }
  return segments;
}

// `poll` may be null.
absl::StatusOr<std::string> IdOf(const internal::Sources& sources,
                                 const std::function<absl::Status()>& poll) {
  std::vector<internal::FileReader*> files;
  for (const auto& reader : sources.readers) files.push_back(reader.get());
  return internal::ContentId(files, internal::HashCache::OfUser(),
                             [&] { return poll ? poll() : absl::OkStatus(); });
}

// All extents of the files, with the bytes' places in file and memory.
struct Work {
  std::vector<Extent*> extents;
  std::vector<internal::Part> parts;
  uint64_t bytes = 0;
};

Work Plan(internal::Sources& sources, absl::Span<const Segment> segments) {
  Work work;
  for (size_t i = 0; i < sources.readers.size(); ++i) {
    uint64_t file_offset = 0;
    for (Extent* extent : ExtentsOf(sources.contents, sources.contents.files[i])) {
      void* const mapped =
          extent->bytes == 0
              ? nullptr
              : static_cast<char*>(segments[extent->segment].data()) + extent->offset;
      work.extents.push_back(extent);
      work.parts.push_back({.mapped = mapped,
                            .bytes = extent->bytes,
                            .file = sources.readers[i].get(),
                            .file_offset = file_offset});
      file_offset += extent->bytes;
    }
    work.bytes += file_offset;
  }
  return work;
}

}  // namespace

absl::StatusOr<PublishedFiles> PublishFiles(Client& client, absl::string_view name,
                                            absl::Span<const std::string> paths,
                                            const PublishFilesOptions& options) {
  auto sources = internal::OpenSources(paths, options.format);
  if (!sources.ok()) return sources.status();
  Contents& contents = sources->contents;
  const std::vector<uint64_t> sizes = internal::Place(contents);
  absl::StatusOr<std::vector<Segment>> segments;
  {
    const internal::ReadAhead meanwhile(*sources);
    segments = AcquireAll(client, sizes, contents, options);
  }
  if (!segments.ok()) return segments.status();

  const Work work = Plan(*sources, *segments);
  std::vector<std::string> checksums;
  absl::Status status = internal::Load(
      work.parts, [&] { return internal::StagingOf((*segments)[0]); },
      [&](uint64_t done) {
        return options.progress ? options.progress(done, work.bytes) : absl::OkStatus();
      },
      options.checksums ? &checksums : nullptr);
  if (!status.ok()) return status;
  for (const auto& reader : sources->readers) {
    if (status = reader->CheckUnchanged(); !status.ok()) return status;
  }
  if (!options.files_id.empty()) {
    // Of files that are in the cache nothing is read here.
    auto files_id = IdOf(*sources, nullptr);
    if (!files_id.ok()) return files_id.status();
    if (*files_id != options.files_id) {
      return absl::AbortedError(
          "the files have changed since their content id was found: nothing was published; try "
          "again");
    }
  }
  for (size_t i = 0; i < checksums.size(); ++i) work.extents[i]->xxh128 = std::move(checksums[i]);

  auto metadata = internal::EncodeContents(contents);
  if (!metadata.ok()) return metadata.status();
  auto version = client.Publish(name, *segments,
                                {.content_id = options.content_id,
                                 .metadata = *std::move(metadata),
                                 .access = options.access,
                                 .ephemeral = options.ephemeral,
                                 .expire_after = options.expire_after,
                                 .timeout = options.timeout});
  if (!version.ok()) return version.status();
  PublishedFiles published{
      .version = *version, .arrays = contents.arrays.size(), .bytes = work.bytes};
  for (const internal::PublishedFile& file : contents.files) {
    published.files.push_back({.name = file.name, .bytes = file.bytes});
    if (!file.header.has_value()) {
      published.files.back().xxh128 = contents.arrays[file.first_array].extent.xxh128;
    }
  }
  return published;
}

absl::StatusOr<std::string> ContentIdOf(absl::Span<const std::string> paths, FileFormat format,
                                        const std::function<absl::Status()>& poll) {
  auto sources = internal::OpenSources(paths, format);
  if (!sources.ok()) return sources.status();
  return IdOf(*sources, poll);
}

}  // namespace gpumem
