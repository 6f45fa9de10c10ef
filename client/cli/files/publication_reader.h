// SPDX-License-Identifier: Apache-2.0
// An attached publication, for fetch and verify: what it contains, and copies of its bytes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "client/cli/files/progress.h"
#include "client/cli/options/command_line.h"
#include "client/cli/text/stop_signals.h"
#include "client/files/contents.h"
#include "common/cuda/staging.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"

namespace gpumem::cli {

using Extents = std::vector<const internal::Extent*>;

// Returns the status of memory that differs from its checksums, with the exit code of that.
absl::Status Differs(absl::string_view what);

// Used by one thread. Draws the progress on stderr; CANCELLED by a signal.
class PublicationReader {
 public:
  // Attaches. Statuses of Client::Connect and Client::Attach; INVALID_ARGUMENT: the publication's
  // metadata is malformed.
  static absl::StatusOr<std::unique_ptr<PublicationReader>> Attach(const std::string& publication,
                                                                   const std::string& tenant,
                                                                   const GlobalOptions& options);

  // Of a publication that describes nothing, each segment is an array of bytes.
  const internal::Contents& contents() const { return contents_; }
  // Each segment as a file of bytes.
  internal::Contents AsSegments() const;
  const Attachment& attachment() const { return attachment_; }
  absl::Duration Took() const { return absl::Now() - begun_; }

  // Sets the number of bytes at which the progress is complete.
  void Begin(uint64_t total);
  void End() { progress_.reset(); }

  // Passes the bytes of the extents to `use`, in order. Returns the checksum of each. Statuses of
  // `use` and of Staging.
  absl::StatusOr<std::vector<std::string>> Read(
      const Extents& extents, absl::FunctionRef<absl::Status(absl::string_view)> use);
  // Returns the checksum of each, computed by several threads. Statuses of Staging.
  absl::StatusOr<std::vector<std::string>> Hash(const Extents& extents);

 private:
  PublicationReader(std::string publication, bool shows)
      : publication_(std::move(publication)), shows_(shows) {}

  // Shows that these bytes are done beside those of earlier calls.
  absl::Status Show(uint64_t done);
  const Segment& SegmentOf(const internal::Extent& extent) const {
    return attachment_.segments()[extent.segment];
  }

  StopSignals signals_;  // constructed before the client's threads start
  const std::string publication_;
  const bool shows_;
  const absl::Time begun_ = absl::Now();
  Attachment attachment_;
  internal::Contents contents_;
  std::map<std::pair<std::string, Kind>, std::unique_ptr<Staging>> stagings_;  // by device, kind
  std::optional<Progress> progress_;
  uint64_t before_ = 0;  // bytes of completed calls
};

}  // namespace gpumem::cli
