// SPDX-License-Identifier: Apache-2.0
#include "client/pool/sharing/shared_block.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/pool/sharing/block_ticket.h"
#include "gpumem/pool.h"

namespace gpumem {
namespace internal {

absl::StatusOr<std::shared_ptr<const OpenedSegments::Run>> OpenedSegments::Open(
    Client& client, const std::vector<std::string>& tickets, const OpenOptions& options) {
  const std::string key =
      absl::StrCat(options.read_only ? "ro " : "rw ", options.revocable ? "revocable " : "",
                   absl::StrJoin(options.map_devices, ","), " ", absl::StrJoin(tickets, " "));
  // Held while they are opened, too: other threads that ask for them must get the same ones.
  absl::MutexLock lock(&mutex_);
  std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
  if (auto found = open_.find(key); found != open_.end()) {
    if (std::shared_ptr<const Run> run = found->second.lock()) return run;
  }
  absl::StatusOr<std::vector<Segment>> segments = client.OpenMany(tickets, options);
  if (!segments.ok()) return segments.status();
  auto run = std::make_shared<const Run>(*std::move(segments));
  open_[key] = run;
  return run;
}

}  // namespace internal

absl::StatusOr<SharedBlock> OpenBlock(Client& client, absl::string_view text,
                                      const OpenOptions& options) {
  if (options.address != nullptr) {
    return absl::InvalidArgumentError(
        "the segment of a block is mapped once for all its blocks: do not request an address");
  }
  absl::StatusOr<internal::BlockTicket> ticket = internal::ParseBlockTicket(text);
  if (!ticket.ok()) return ticket.status();
  auto run = client.opened_->Open(client, ticket->segments, options);
  if (!run.ok()) return run.status();
  uint64_t bytes = 0;
  for (const Segment& segment : **run) {
    const auto* const expected = static_cast<char*>((*run)->front().data()) + bytes;
    if (segment.data() != expected) {
      return absl::UnimplementedError(absl::StrCat(
          "segments of kind ", KindName(segment.kind()),
          " cannot be mapped contiguously, and the block spans several; use kind vmm"));
    }
    bytes += segment.size();
  }
  if (ticket->offset + ticket->bytes > bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the ticket names a block that ends at ",
                                                   ticket->offset + ticket->bytes,
                                                   " bytes, and its segments have ", bytes));
  }
  SharedBlock block;
  block.data_ = static_cast<char*>((*run)->front().data()) + ticket->offset;
  block.bytes_ = ticket->bytes;
  const Segment& first = (*run)->front();
  block.device_uuid_ = first.device_uuid();
  block.kind_ = first.kind();
  block.backend_ = first.backend();
  block.memory_ = *std::move(run);
  return block;
}

}  // namespace gpumem
