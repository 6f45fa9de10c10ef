// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/publication_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/exit_code.h"
#include "client/files/staging_of.h"
#include "client/files/transfer.h"

namespace gpumem::cli {

using internal::Contents;
using internal::Extent;

absl::Status Differs(absl::string_view what) {
  absl::Status status = absl::DataLossError(what);
  status.SetPayload(kDiffersPayload, absl::Cord());
  return status;
}

absl::StatusOr<std::unique_ptr<PublicationReader>> PublicationReader::Attach(
    const std::string& publication, const std::string& tenant, const GlobalOptions& options) {
  auto reader =
      std::unique_ptr<PublicationReader>(new PublicationReader(publication, !options.json));
  auto client = Client::Connect({.runtime_dir = options.runtime_dir,
                                 .tenant = tenant,
                                 .name = "gpumemctl",
                                 .timeout = options.timeout.value_or(ConnectOptions().timeout)});
  if (!client.ok()) return client.status();
  auto attachment = (*client)->Attach(publication);
  if (!attachment.ok()) return attachment.status();
  reader->attachment_ = *std::move(attachment);
  std::vector<uint64_t> sizes;
  for (const Segment& segment : reader->attachment_.segments()) sizes.push_back(segment.size());
  absl::StatusOr<Contents> contents =
      internal::DecodeContents(reader->attachment_.metadata(), sizes);
  if (absl::IsNotFound(contents.status())) contents = reader->AsSegments();
  if (!contents.ok()) return contents.status();
  reader->contents_ = *std::move(contents);
  return reader;
}

Contents PublicationReader::AsSegments() const {
  Contents contents;
  const auto segments = attachment_.segments();
  const std::string name = publication_.substr(publication_.rfind('/') + 1);
  for (size_t i = 0; i < segments.size(); ++i) {
    contents.files.push_back({.name = segments.size() == 1 ? name : absl::StrCat(name, ".", i),
                              .bytes = segments[i].size(),
                              .header = std::nullopt,
                              .first_array = i,
                              .arrays = 1});
    contents.arrays.push_back({.name = contents.files.back().name,
                               .dtype = "uint8",
                               .shape = {segments[i].size()},
                               .extent = {.segment = i, .bytes = segments[i].size()}});
  }
  return contents;
}

void PublicationReader::Begin(uint64_t total) {
  progress_.emplace(publication_, total, shows_);
  before_ = 0;
}

absl::Status PublicationReader::Show(uint64_t done) {
  if (progress_.has_value()) progress_->Show(before_ + done);
  // Polls: returns at once.
  return signals_.Wait(absl::InfinitePast()) == StopSignals::Event::kStop
             ? absl::CancelledError("stopped by a signal")
             : absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> PublicationReader::Read(
    const Extents& extents, absl::FunctionRef<absl::Status(absl::string_view)> use) {
  std::vector<std::string> checksums;
  for (size_t begin = 0; begin < extents.size();) {
    // The extents up to `end` are on one device: one Staging copies them without a pause.
    const Segment& segment = SegmentOf(*extents[begin]);
    std::vector<internal::Part> parts;
    uint64_t bytes = 0;
    size_t end = begin;
    for (; end < extents.size(); ++end) {
      const Segment& of = SegmentOf(*extents[end]);
      if (of.device_uuid() != segment.device_uuid() || of.kind() != segment.kind()) break;
      parts.push_back({.mapped = static_cast<char*>(of.data()) + extents[end]->offset,
                       .bytes = extents[end]->bytes});
      bytes += extents[end]->bytes;
    }
    std::unique_ptr<Staging>& staging = stagings_[{segment.device_uuid(), segment.kind()}];
    if (staging == nullptr) {
      auto made = internal::StagingOf(segment);
      if (!made.ok()) return made.status();
      staging = *std::move(made);
    }
    auto some = internal::Unload(
        parts, *staging, [&](uint64_t done) { return Show(done); }, use);
    if (!some.ok()) return some.status();
    for (std::string& checksum : *some) checksums.push_back(std::move(checksum));
    before_ += bytes;
    begin = end;
  }
  return checksums;
}

absl::StatusOr<std::vector<std::string>> PublicationReader::Hash(const Extents& extents) {
  std::vector<std::string> checksums(extents.size());
  // By device and kind: how the memory is copied.
  std::map<std::pair<std::string, Kind>, std::vector<size_t>> groups;
  for (size_t i = 0; i < extents.size(); ++i) {
    const Segment& segment = SegmentOf(*extents[i]);
    groups[{segment.device_uuid(), segment.kind()}].push_back(i);
  }
  for (const auto& [key, indices] : groups) {
    std::vector<internal::Part> parts;
    uint64_t bytes = 0;
    for (const size_t i : indices) {
      parts.push_back(
          {.mapped = static_cast<char*>(SegmentOf(*extents[i]).data()) + extents[i]->offset,
           .bytes = extents[i]->bytes});
      bytes += extents[i]->bytes;
    }
    const Segment& segment = SegmentOf(*extents[indices.front()]);
    auto some = internal::Hash(
        parts, [&] { return internal::StagingOf(segment); },
        [&](uint64_t done) { return Show(done); });
    if (!some.ok()) return some.status();
    for (size_t i = 0; i < indices.size(); ++i) checksums[indices[i]] = std::move((*some)[i]);
    before_ += bytes;
  }
  return checksums;
}

}  // namespace gpumem::cli
